"""The benchmarks stay in step with the measured code, because they run rarely."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
TRIED = """
from importlib import import_module
for name in {names}:
    getattr(import_module(name), "count_all", lambda counts: None)(memoryview(bytearray(99)))
"""


@pytest.mark.slow
def test_each_can_be_imported_and_finds_what_it_counts():
    names = sorted(path.stem for path in FOLDER.glob("*.py"))
    subprocess.run([sys.executable, "-c", TRIED.format(names=names)], cwd=FOLDER, check=True, timeout=60)

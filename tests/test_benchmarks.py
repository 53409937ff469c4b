"""The benchmarks go on to fit what they measure: nobody runs them for weeks."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
TRIED = "import {module} as module; getattr(module, 'count_all', lambda counts: None)(memoryview(bytearray(99)))"


@pytest.mark.parametrize("module", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_it_can_be_imported_and_finds_what_it_counts(module: str):
    subprocess.run([sys.executable, "-c", TRIED.format(module=module)], cwd=FOLDER, check=True, timeout=60)

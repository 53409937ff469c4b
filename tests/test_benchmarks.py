"""The benchmarks stay in step with the measured code, because they run rarely."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks"
TRIED = """
from importlib import import_module
for name in {names}:
    getattr(import_module(name), "count_all", lambda counts: None)(memoryview(bytearray(99)))
"""


def imported() -> Iterator[tuple[str, str, str]]:
    """File, module of the product, and name of each import by benchmarks and scripts."""
    for path in sorted([*FOLDER.glob("*.py"), *(ROOT / "scripts").glob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fairlead"):
                yield from ((path.name, node.module or "", each.name) for each in node.names)


def test_names_that_benchmarks_and_scripts_import_exist():
    """They are not type-checked with the product, and most run rarely."""
    found = list(imported())
    assert len(found) > 100
    missing = [each for each in found if not exists(*each[1:])]
    assert missing == []


def exists(module: str, name: str) -> bool:
    found = import_module(module)
    return hasattr(found, name) or (hasattr(found, "__path__") and find_spec(f"{module}.{name}") is not None)


@pytest.mark.slow
def test_benchmarks_can_be_imported_and_find_their_counted_code():
    names = sorted(path.stem for path in FOLDER.glob("*.py"))
    subprocess.run([sys.executable, "-c", TRIED.format(names=names)], cwd=FOLDER, check=True, timeout=60)

"""Planted bugs: each must match the sources, because a mismatch would be noticed late."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "scripts"

TOY = """
LIMIT = 3

def doubled(number):
    return [2 * each for each in (number,)][0]

class Toy:
    def limited(self, number):
        return min(number, LIMIT)
"""


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)


def test_every_mutant_matches_its_source_exactly_once():
    mutate = importlib.import_module("mutate")
    sources = ROOT / "src" / "fairlead"
    found = {each.name: (sources / each.file).read_text().count(each.before) for each in mutate.MUTANTS}
    assert {name: count for name, count in found.items() if count != 1} == {}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a module that was never imported before."""
    (tmp_path / "planted_toy.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "planted_toy", raising=False)
    return importlib.import_module("planted_toy")


@pytest.mark.parametrize(
    ("before", "after", "found"), [("2 * each", "3 * each", (6, 3)), ("min(number", "max(number", (4, 7))]
)
def test_planted_mutant_changes_functions_already_imported(
    toy: ModuleType, before: str, after: str, found: tuple[int, int]
):
    doubled, limited = toy.doubled, toy.Toy().limited
    assert importlib.import_module("fault_planting").plant_bug("planted_toy", before, after)
    assert (doubled(2), limited(7)) == found


@pytest.mark.parametrize(
    ("before", "after"), [("LIMIT = 3", "LIMIT = 4"), ("class Toy:", "class Toy(list):"), ("=", "=")]
)
def test_import_time_code_is_not_planted(toy: ModuleType, before: str, after: str):
    assert not importlib.import_module("fault_planting").plant_bug(toy.__name__, before, after)

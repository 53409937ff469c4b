"""A planted bug must have its place in the sources: those whose text has moved would be noticed late."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "scripts" / "mutate.py"


def test_every_text_is_found_once():
    specification = importlib.util.spec_from_file_location("mutate", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    mutate = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(mutate)
    sources = SCRIPT.parent.parent / "src" / "fairlead"
    found = {each.name: (sources / each.file).read_text().count(each.before) for each in mutate.MUTANTS}
    assert {name: count for name, count in found.items() if count != 1} == {}

"""Scripts behind the Makefile: durations of targets, parts of `make test-all`, and flaky tests."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "scripts"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)


@pytest.fixture
def timed(tmp_path: Path) -> Path:
    """Copy the script, so that its records stay apart from those of the run that executes this test."""
    (tmp_path / "scripts").mkdir()
    copy = tmp_path / "scripts" / "timed"
    copy.write_text((SCRIPTS / "timed").read_text())
    return copy


def run(timed: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, timed, *words], capture_output=True, text=True, check=False)


def rows(timed: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(run(timed, "--table", "--json").stdout)
    return found


def test_timed_script_records_one_row_per_target(timed: Path):
    assert run(timed, "good", "true").returncode == 0
    assert run(timed, "bad", "sh", "-c", "exit 3").returncode == 3
    assert [(row["name"], row["code"]) for row in rows(timed)] == [("good", 0), ("bad", 3)]
    assert re.search(r"^bad +\d+\.\d +\d+\.\d +\d+\.\d +3$", run(timed, "--table").stdout, re.MULTILINE)
    assert run(timed, "--clear").returncode == 0
    assert rows(timed) == []


DAEMON = """
import os, resource, sys
if os.fork() == 0:
    os.setsid()
    for _ in range(5):
        sum(range(3_000_000))
    with open(sys.argv[1] + ".part", "w") as file:
        file.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_utime))
    os.rename(sys.argv[1] + ".part", sys.argv[1])
"""


def test_cpu_time_of_a_daemon_is_counted(timed: Path, tmp_path: Path):
    """CPU time of a daemon counts, although it outlives its parent; the record has at least the time that it measured
    itself."""
    done = tmp_path / "done"
    command = '"$1" -c "$2" "$3"; until [ -e "$3" ]; do sleep 0.1; done'
    assert run(timed, "daemon", "sh", "-c", command, "sh", sys.executable, DAEMON, str(done)).returncode == 0
    (row,) = rows(timed)
    assert float(str(row["cpu"])) >= round(float(done.read_text()), 1)


def test_a_process_that_outlives_its_target_is_a_failure(timed: Path):
    timed.write_text(timed.read_text().replace("GRACE = 10.0", "GRACE = 0.2"))
    ended = run(timed, "leaky", "sh", "-c", "setsid sleep 20 >/dev/null 2>&1 &")
    assert (ended.returncode, "left running" in ended.stderr, "sleep 20" in ended.stderr) == (70, True, True)
    pid = re.search(r"left running: (\d+)", ended.stderr)
    assert pid
    subprocess.run(["kill", pid[1]], check=True)


def test_changed_file_selects_the_parts_to_run():
    parts = importlib.import_module("parts")
    needed = {
        "src/fairlead/octavia_plugin/driver.py": {"tempest", "neutron", "octavia"},
        "src/fairlead/compilers/ovn/compiler.py": {
            *("long", "ovn", "ovn-sid", "kernels", "random", "mutants", "neutron"),
        },
        "src/fairlead/api/octavia/encode.py": {"fuzz", "siege", "tempest", "octavia-api"},
        "tests/fuzz/test_doors.py": {"random", "fuzz"},
        "README.md": set(),
    }
    assert {path: {part.name for part in parts.needed_by([path])} for path in needed} == needed


def test_every_target_of_a_part_is_in_the_makefile():
    parts = importlib.import_module("parts")
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {target for part in parts.PARTS for target in part.targets} <= known


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]):
    parts = importlib.import_module("parts")
    assert parts.run(["octavio"]) == 2
    assert "there is no part octavio: choose from long, ovn" in capsys.readouterr().err


@pytest.fixture
def flaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = importlib.import_module("flaky")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(module, "RUNS", tmp_path / "runs.jsonl")
    return module


@pytest.mark.thorough
def test_modules_with_waiting_tests_are_found(flaky: ModuleType):
    found = flaky.waiting_modules()
    assert "tests/lab/test_balancing.py" in found
    assert "tests/model/test_slots.py" not in found


def test_interrupted_rounds_resume_without_repeating_finished_modules(
    flaky: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Interrupted rounds continue without repeating a module; module b fails in its second run."""
    ran: list[str] = []

    def run_module(module: str) -> dict[str, str]:
        ran.append(module)
        if len(ran) == 3:
            raise KeyboardInterrupt
        return {"b::test": "assert 1 == 2"} if ran.count("b") == 2 and module == "b" else {}

    monkeypatch.setattr(flaky, "run", run_module)
    with pytest.raises(KeyboardInterrupt):
        flaky.run_rounds(["a", "b", "c"], 2)
    flaky.run_rounds(["a", "b", "c"], 2)
    assert ran == ["a", "b", "c", "c", "a", "b", "c"]
    assert flaky.report(["a", "b", "c"], as_json=True) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {
        "runs": {"a": 2, "b": 2, "c": 2},
        "failed": {"b::test": [1, "assert 1 == 2"]},
    }


def test_private_language_is_counted_in_prose_only(tmp_path: Path):
    prose = importlib.import_module("prose")
    module = tmp_path / "module.py"
    module.write_text(
        '"""Whose `asked` rows."""\n\nWHO = "who is told"  # somebody\nx = 1\n"""A number."""\n# At once\n'
    )
    assert prose.prose(module).split("\n") == ["Whose `asked` rows.", "A number.", "somebody", "At once"]
    assert prose.count(module) == (3, 7)

"""Leftovers of a killed test run in its lab: the next run removes them, and never touches an active run."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fairlead.lab import Lab, namespaces, processes
from fairlead.lab.layout import Layout
from harness.lab import labs
from harness.rules import TESTS
from harness.waiting import wait_until

pytestmark = pytest.mark.lab

HUNG = """
import subprocess
from pathlib import Path
from threading import Event
from fairlead.lab import Workload
from harness.lab.fixtures import machine, tidy
from harness.lab.labs import lab_of

def test_that_hangs(machine):
    with lab_of(chassis=1) as lab:
        lab.add_workload(Workload(name="w", chassis="chassis1", port_id="p", mac="02:00:00:00:00:01", serve=(80,)))
        program = subprocess.Popen(["sleep", "3600"])
        Path("{sign}").write_text(f"{{lab.name}} {{program.pid}}")
        Event().wait()
"""
ENDS = """
from harness.lab.fixtures import machine, tidy
from harness.lab.labs import lab_of

def test_that_ends(machine):
    with lab_of(chassis=1) as lab:
        assert lab.status().is_healthy
"""


class HungRuns:
    """Runs of pytest with labs of their own prefix, each with one module."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder = folder
        self.prefix = prefix

    @contextmanager
    def hung(self, name: str) -> Iterator["HungRun"]:
        """A run with a lab and a program that continues until it is killed."""
        sign = self._folder / f"{name}.sign"
        with self._run(name, HUNG.format(sign=sign)) as process:
            try:
                wait_until(lambda: process.poll() is not None or (sign.exists() and sign.read_text()), "it hangs")
                assert process.poll() is None, process.communicate()[0]
                lab, program = sign.read_text().split()
                yield HungRun(process, Layout(name=lab), int(program))
            finally:
                process.kill()

    def ending(self, name: str) -> None:
        """Run pytest with a module that succeeds."""
        with self._run(name, ENDS) as process:
            said, _ = process.communicate()
            assert process.returncode == 0, said

    def _run(self, name: str, source: str) -> "subprocess.Popen[str]":
        module = self._folder / f"test_{name}.py"
        module.write_text(source)
        words = ("-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(self._folder), "-c", "/dev/null")
        environment = {**os.environ, labs.OPTION: self.prefix, "PYTHONPATH": str(TESTS)}
        for each in [each for each in environment if each.startswith("PYTEST_")]:
            del environment[each]
        argv = [sys.executable, "-m", "pytest", *words, str(module)]
        return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class HungRun:
    def __init__(self, process: "subprocess.Popen[str]", layout: Layout, program: int) -> None:
        self.layout = layout
        self._process = process
        self._program = program

    def kill(self) -> None:
        """Kill the run with SIGKILL, as the kernel's OOM killer does."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def programs(self) -> frozenset[int]:
        """Programs of its lab, and the one that the test started itself."""
        found = {
            *processes.find_marked(self.layout.directory),
            *namespaces.processes(namespaces.existing(self.layout.prefix)),
        }
        return frozenset({*found, self._program} if lives(self._program) else found)


def lives(pid: int) -> bool:
    """Whether the program runs.

    An exited one remains as a zombie, without a command line, until its parent waits for it.
    """
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    return False


@pytest.fixture
def runs(machine: None, tmp_path: Path) -> HungRuns:
    return HungRuns(tmp_path, labs.lab_name("k"))


def test_next_run_removes_leftovers_of_killed_runs_but_not_of_active_ones(runs: HungRuns):
    with runs.hung("killed") as killed, runs.hung("going_on") as going_on:
        killed.kill()
        assert namespaces.existing(killed.layout.prefix)
        assert killed.layout.directory.exists()
        assert len(killed.programs()) == 8, "the daemons of the lab, a server in it, and a program of the test"
        before = going_on.programs()
        runs.ending("next")
        assert namespaces.existing(killed.layout.prefix) == ()
        assert killed.programs() == frozenset()
        labs.assert_nothing_left(killed.layout)
        assert going_on.programs() == before
        assert Lab.open(going_on.layout.name).status().is_healthy
        going_on.kill()
        runs.ending("last")
        assert going_on.programs() == frozenset()
        labs.assert_nothing_left(going_on.layout)


def test_completed_run_leaves_nothing(runs: HungRuns):
    runs.ending("only")
    assert [each for each in labs.remains(labs.lab_name()) if runs.prefix in each] == []

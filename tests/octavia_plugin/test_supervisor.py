"""After a kill of any one of the agent's three processes one works again, and at the end none is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness.waiting import DEADLINE, wait_equal, wait_until

pytestmark = pytest.mark.slow
PROGRAM = """
import multiprocessing, os, pathlib, sys
from threading import Event
from fairlead.octavia_plugin.supervisor import supervise

folder = pathlib.Path(sys.argv[1])

def work(is_over):
    (folder / f"{os.getpid()}.at.{os.getppid()}").touch()
    while not is_over():
        Event().wait(0.05)

context = multiprocessing.get_context("fork")
event = context.Event()
process = context.Process(target=supervise, args=(work, event))
process.start()
(folder / "first").write_text(str(process.pid))
sys.stdin.read()
event.set()
process.join()
"""


class ProcessChain:
    def __init__(self, folder: Path, starter: "subprocess.Popen[bytes]") -> None:
        self._folder, self.starter = folder, starter

    @property
    def first(self) -> int:
        return int((self._folder / "first").read_text())

    def working(self) -> tuple[int, int]:
        """PIDs of the most recent worker and of its watcher."""
        wait_until(lambda: list(self._folder.glob("*.at.*")))
        worker, _, watcher = max(self._folder.glob("*.at.*"), key=lambda each: each.stat().st_mtime_ns).name.split(".")
        return int(worker), int(watcher)

    def kill(self, process: int) -> None:
        """Kill a process, and wait until another one works."""
        before = self.working()
        os.kill(process, signal.SIGKILL)
        wait_until(self.working, is_enough=lambda working: working != before)
        wait_until(lambda: not _is_there(before[0]), f"the end of {before[0]}")

    def all_processes(self) -> set[int]:
        pids = {int(each.name.split(".")[0]) for each in self._folder.glob("*.at.*")}
        watchers = {int(each.name.split(".")[2]) for each in self._folder.glob("*.at.*")}
        return {pid for pid in pids | watchers | {self.first} if _is_there(pid)}


def _is_there(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def line(tmp_path: Path) -> Iterator[ProcessChain]:
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdin=subprocess.PIPE) as starter:
        made = ProcessChain(tmp_path, starter)
        yield made
        starter.kill()
    wait_equal(made.all_processes, set())


def test_any_agent_process_may_be_killed_repeatedly(line: ProcessChain):
    for _ in range(2):
        worker, watcher = line.working()
        line.kill(worker)
        assert line.working()[1] == watcher
        line.kill(watcher)
    line.kill(line.first)
    worker, watcher = line.working()
    line.kill(watcher)
    line.kill(line.working()[0])


def test_frozen_worker_is_replaced(line: ProcessChain):
    worker, _ = line.working()
    os.kill(worker, signal.SIGSTOP)
    os.kill(line.working()[1], signal.SIGKILL)
    wait_until(lambda: line.working()[0], is_enough=lambda working: working != worker)
    os.kill(worker, signal.SIGCONT)


def test_all_agent_processes_exit_after_the_starter(line: ProcessChain):
    line.working()
    assert len(line.all_processes()) == 3
    assert line.starter.stdin is not None
    line.starter.stdin.close()
    assert line.starter.wait(DEADLINE) == 0
    wait_equal(line.all_processes, set())

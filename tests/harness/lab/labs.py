"""Labs of the tests: their names, and the removal of what a killed run left.

A run claims a number by an abstract socket (unix(7)), which ends with the process. All names of the run begin with the
prefix and the number, and every program that the run starts inherits a mark with both in its environment. So the next
run finds and removes everything that belongs to a number without a process, and never touches a run that goes on.
"""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2s
from itertools import count
from pathlib import Path

import pytest

from fairlead.lab import Lab, LabError, names, namespaces, processes, require_machine, take_down
from fairlead.lab.layout import RUN_DIR, Layout
from fairlead.lab.namespaces import DIRECTORY
from fairlead.lab.native import NativeLab
from harness.rules import TESTS
from harness.waiting import wait_equal

OPTION = "FAIRLEAD_TEST_LAB"
PREFIX = os.environ.get(OPTION) or f"t{blake2s(str(TESTS).encode(), digest_size=2).hexdigest()}"
"""Another one for each checkout, so that their labs are apart. The name of a lab has at most 15 characters."""
MARK = "TEST_RUN_OF_FAIRLEAD"
"""In the environment of each program that a run starts. The product rejects unknown names that begin with FAIRLEAD_."""
MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class _Claim:
    run: str
    """The prefix and the number."""
    held: socket.socket


@cache
def _own_claim() -> _Claim:
    """Of this process, until its end."""
    claim = next(claim for number in count() if (claim := _claim(f"{PREFIX}{number}")) is not None)
    remove_leftovers()
    _remove(claim.run)
    os.environ.pop(OPTION, None)
    os.environ[MARK] = claim.run
    return claim


def _claim(run: str) -> _Claim | None:
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0fairlead-test-lab-{run}")
    except OSError:
        held.close()
        return None
    return _Claim(run, held)


def lab_name(purpose: str = "") -> str:
    """The name of a lab that no other run has; `purpose` is at most 8 letters and digits, and begins with a letter."""
    return f"{_own_claim().run}{purpose}"


def require_lab(require: Callable[[], None] = require_machine) -> None:
    """Skip the test where a lab cannot be; fail it on CI, and where the root of the lab's programs is named."""
    try:
        require()
    except LabError as reason:
        if os.environ.get("CI") or os.environ.get("FAIRLEAD_LAB_ROOT"):
            pytest.fail(f"the lab must run here: {reason}")
        pytest.skip(str(reason))


@contextmanager
def lab_of(purpose: str = "", *, chassis: int = 2) -> Iterator[Lab]:
    """A lab of OVN for the length of a `with` block."""
    name = lab_name(purpose)
    take_down(name)
    try:
        yield Lab.up(name, chassis=chassis)
    finally:
        take_down(name)


@contextmanager
def native_lab_of(purpose: str, *, chassis: int) -> Iterator[NativeLab]:
    """A lab of plain hosts for the length of a `with` block."""
    name = lab_name(purpose)
    take_down(name)
    try:
        yield NativeLab.up(name, chassis=chassis)
    finally:
        take_down(name)


@contextmanager
def leaving_nothing() -> Iterator[None]:
    """Assert that nothing of this process's run is left at the end of a `with` block, and remove what is."""
    run = _own_claim().run
    try:
        yield
        wait_equal(lambda: remains(run), [])
    finally:
        _remove(run)


def remains(run: str) -> list[str]:
    """Namespaces, folders, mounts and programs of the run of this prefix and number."""
    return sorted({f"{each.kind} {each.what}{each.text}" for each in _remains() if each.run == run})


def remove_leftovers() -> None:
    """Remove all of killed runs of this prefix; runs that go on keep theirs."""
    for run in sorted({each.run for each in _remains()}):
        if (claim := _claim(run)) is not None:
            with claim.held:
                _remove(run)


def _remove(run: str) -> None:
    """What names a lab goes with the lab, whole or in pieces. Without root there are no labs."""
    if os.geteuid() != 0:
        return
    programs = [int(each.what) for each in _remains() if (each.run, each.kind) == (run, "program")]
    processes.end(programs, lambda pid: _run_of_program(pid) == run)
    for lab in sorted({each.lab for each in _remains() if each.run == run and each.lab}):
        take_down(lab)
    for each in [each for each in _remains() if each.run == run]:
        if each.kind == "mount":
            subprocess.run(["umount", "--lazy", each.what], check=False)
        elif each.kind == "memory":
            shutil.rmtree(each.what, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remains:
    kind: str
    what: str
    run: str
    lab: str = ""
    """The name of the lab that it belongs to, if any."""
    text: str = ""
    """The command line of a program."""


_NAME = re.compile(rf"({re.escape(PREFIX)}\d+)(?:[a-z][a-z0-9]*)?")


def _remains() -> Iterator[_Remains]:
    """Of all runs of this prefix, those that go on too."""
    for kind, what, lab in _named():
        if found := _NAME.fullmatch(lab):
            yield _Remains(kind=kind, what=what, run=found[1], lab=lab if kind in ("namespace", "folder") else "")
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        if run := _run_of_program(pid):
            yield _Remains(kind="program", what=str(pid), run=run, text=_command_line(pid))


def _named() -> Iterator[tuple[str, str, str]]:
    """Kind, what there is, and the name of a lab that it may have."""
    for name in _entries(DIRECTORY):
        if name.startswith("fl-"):
            yield "namespace", name, name.split("-")[1]
    for name in _entries(RUN_DIR):
        yield "folder", name, name.removesuffix(".lock")
    for name in _entries(MEMORY):
        yield "memory", str(MEMORY / name), name.split("-")[0]
    for line in Path("/proc/self/mounts").read_text().splitlines():
        source, where, *_ = line.split()
        yield "mount", where, source


def _entries(folder: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return sorted(os.listdir(folder))
    return []


def _run_of_program(pid: int) -> str:
    """By the mark of its run, or by that of a lab, for programs that began without the environment of their run."""
    marks = _mark_of(pid, MARK), _mark_of(pid, processes.MARK).removeprefix(f"{RUN_DIR}/")
    return next((found[1] for mark in marks if (found := _NAME.fullmatch(mark))), "")


def _command_line(pid: int) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return f": {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode(errors='replace').strip()}"
    return ""


def _mark_of(pid: int, mark: str) -> str:
    """What the variable is in the environment with which the process began; "" without it."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
    found = (line for line in environment.split(b"\0") if line.startswith(f"{mark}=".encode()))
    return next(found, b"").decode(errors="replace").partition("=")[2]


def lab_processes(layout: Layout) -> frozenset[int]:
    """Found by their mark alone, wherever they are."""
    return processes.marked(layout.directory)


def assert_nothing_left(layout: Layout) -> None:
    assert namespaces.existing(layout.prefix) == ()
    assert frozenset() == lab_processes(layout)
    assert not layout.directory.exists()
    assert not layout.lock.exists()
    assert layout.name not in names()

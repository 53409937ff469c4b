"""Labs of the tests: their names, and the removal of leftovers of killed runs.

A run claims a number with an abstract socket (unix(7)), which ends with the process. All names of the run begin with
the prefix and the number, and every program that the run starts inherits a mark with both in its environment. So a
later run finds and removes everything that belongs to a number without a process, and never touches an active run.
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
"""Prefix of names, different for each checkout. The name of a lab has at most 15 characters."""
MARK = "TEST_RUN_OF_FAIRLEAD"
"""Variable in the environment of each program that a run starts. The product rejects unknown FAIRLEAD_ variables."""
MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class _Claim:
    run: str
    """The prefix and the number."""
    held: socket.socket


@cache
def _own_claim() -> _Claim:
    """Claim of this process, held until its end."""
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
    """Name of a lab that no other run has; `purpose` has at most 8 letters and digits, and begins with a letter."""
    return f"{_own_claim().run}{purpose}"


def require_lab(require: Callable[[], None] = require_machine) -> None:
    """Skip the test if the machine cannot run a lab. On CI, and if FAIRLEAD_LAB_ROOT is set, fail it instead."""
    try:
        require()
    except LabError as reason:
        if os.environ.get("CI") or os.environ.get("FAIRLEAD_LAB_ROOT"):
            pytest.fail(f"the lab must run here: {reason}")
        pytest.skip(str(reason))


@contextmanager
def lab_of(purpose: str = "", *, chassis: int = 2) -> Iterator[Lab]:
    """Run a lab of OVN in a `with` block."""
    name = lab_name(purpose)
    take_down(name)
    try:
        yield Lab.up(name, chassis=chassis)
    finally:
        take_down(name)


@contextmanager
def native_lab_of(purpose: str, *, chassis: int) -> Iterator[NativeLab]:
    """Run a lab of plain hosts in a `with` block."""
    name = lab_name(purpose)
    take_down(name)
    try:
        yield NativeLab.up(name, chassis=chassis)
    finally:
        take_down(name)


@contextmanager
def leaving_nothing() -> Iterator[None]:
    """Assert that nothing of this process's run is left at the end of a `with` block; remove leftovers."""
    run = _own_claim().run
    try:
        yield
        wait_equal(lambda: remains(run), [])
    finally:
        _remove(run)


def remains(run: str) -> list[str]:
    """Namespaces, folders, mounts and programs of the run with this prefix and number."""
    return sorted({f"{each.kind} {each.what}{each.text}" for each in _remains() if each.run == run})


def remove_leftovers() -> None:
    """Remove everything of killed runs with this prefix. Active runs are not touched."""
    for run in sorted({each.run for each in _remains()}):
        if (claim := _claim(run)) is not None:
            with claim.held:
                _remove(run)


def _remove(run: str) -> None:
    """Remove everything of a run: its labs, complete or partial, and its programs. Without root there are no labs."""
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
    """Name of the lab to which it belongs, if any."""
    text: str = ""
    """Command line of a program."""


_NAME = re.compile(rf"({re.escape(PREFIX)}\d+)(?:[a-z][a-z0-9]*)?")


def _remains() -> Iterator[_Remains]:
    """Remains of all runs with this prefix, including active ones."""
    for kind, what, lab in _named():
        if found := _NAME.fullmatch(lab):
            yield _Remains(kind=kind, what=what, run=found[1], lab=lab if kind in ("namespace", "folder") else "")
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        if run := _run_of_program(pid):
            yield _Remains(kind="program", what=str(pid), run=run, text=_command_line(pid))


def _named() -> Iterator[tuple[str, str, str]]:
    """Kind and name of each object, and the name of its lab if it has one."""
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
    """Run of a program by its mark, or by that of a lab for programs started without the environment of their run."""
    marks = _mark_of(pid, MARK), _mark_of(pid, processes.LAB_VARIABLE).removeprefix(f"{RUN_DIR}/")
    return next((found[1] for mark in marks if (found := _NAME.fullmatch(mark))), "")


def _command_line(pid: int) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return f": {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode(errors='replace').strip()}"
    return ""


def _mark_of(pid: int, mark: str) -> str:
    """Value of a variable in the process's initial environment, or ""."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
    found = (line for line in environment.split(b"\0") if line.startswith(f"{mark}=".encode()))
    return next(found, b"").decode(errors="replace").partition("=")[2]


def lab_processes(layout: Layout) -> frozenset[int]:
    """Processes of the lab, found by their mark alone, in any namespace."""
    return processes.find_marked(layout.directory)


def assert_nothing_left(layout: Layout) -> None:
    assert namespaces.existing(layout.prefix) == ()
    assert frozenset() == lab_processes(layout)
    assert not layout.directory.exists()
    assert not layout.lock.exists()
    assert layout.name not in names()

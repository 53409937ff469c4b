"""Files of a lab: its own record, one for each workload, and a lock.

The lab's record is written last, so a lab that did not come up has none. A record is replaced atomically: a reader sees
the whole file or none.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from fairlead.lab.chassis import DatapathType
from fairlead.lab.errors import LabMismatch, LabNotFound, UnknownNode, WorkloadExists
from fairlead.lab.layout import RUN_DIR, LabChassis, Layout

SOURCE_PORTS = range(33_000, 61_000)
"""Source ports of traffic. Lower ones are those that tests name, and below those the kernel's
(`namespaces.EPHEMERAL_PORTS`)."""


class LockMode(IntEnum):
    """Lock modes: `up` and `down` are exclusive; workloads are added and removed concurrently."""

    EXCLUSIVE = fcntl.LOCK_EX
    SHARED = fcntl.LOCK_SH


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRecord:
    name: str
    chassis: tuple[LabChassis, ...]
    datapath: DatapathType
    root: str = ""
    """Root of OVN and Open vSwitch; "" is the machine itself."""


class LabDataplane(StrEnum):
    """Dataplane of a lab, which determines the kind of its nodes."""

    OVN = "ovn"
    NATIVE = "native"


RECORD_FILES = {LabDataplane.OVN: "lab.json", LabDataplane.NATIVE: "native.json"}
"""File of a lab's own record, by dataplane."""

R = TypeVar("R")


class WorkloadRecord(Protocol):
    @property
    def name(self) -> str: ...


W = TypeVar("W", bound=WorkloadRecord)


def find_dataplane(layout: Layout) -> LabDataplane | None:
    """Return the dataplane of a running lab, or None."""
    return next((each for each, file in RECORD_FILES.items() if (layout.directory / file).exists()), None)


def require_dataplane(layout: Layout, wanted: LabDataplane) -> None:
    """Check that no lab of this name runs with another dataplane; raises LabMismatch."""
    if (found := find_dataplane(layout)) not in (None, wanted):
        raise LabMismatch(layout.name, f"the dataplane {found}", "--dataplane")


def write_lab(layout: Layout, dataplane: LabDataplane, record: object) -> None:
    path = layout.directory / RECORD_FILES[dataplane]
    os.replace(_write_draft(path, record), path)


def read_record(layout: Layout, dataplane: LabDataplane, kind: type[R]) -> R:
    try:
        return msgspec.json.decode((layout.directory / RECORD_FILES[dataplane]).read_bytes(), type=kind)
    except FileNotFoundError:
        raise LabNotFound(layout.name) from None


def read_lab(layout: Layout) -> LabRecord:
    return read_record(layout, LabDataplane.OVN, LabRecord)


class _Node(msgspec.Struct):
    name: str


class _Nodes(msgspec.Struct):
    chassis: list[_Node]


def read_chassis(layout: Layout) -> tuple[str, ...]:
    """Return the names of nodes with an agent, for any dataplane."""
    dataplane = find_dataplane(layout) or LabDataplane.OVN
    return tuple(node.name for node in read_record(layout, dataplane, _Nodes).chassis)


def write_workload(layout: Layout, workload: WorkloadRecord) -> None:
    """Write a new record; raises WorkloadExists for one of two concurrent writers of the same name."""
    path = _workload_path(layout, workload.name)
    draft = _write_draft(path, workload)
    try:
        os.link(draft, path)
    except FileExistsError:
        raise WorkloadExists(workload.name) from None
    finally:
        draft.unlink()


def replace_workload(layout: Layout, workload: WorkloadRecord) -> None:
    path = _workload_path(layout, workload.name)
    os.replace(_write_draft(path, workload), path)


def delete_workload(layout: Layout, name: str) -> None:
    _workload_path(layout, name).unlink(missing_ok=True)


def read_workloads(layout: Layout, kind: type[W]) -> tuple[W, ...]:
    texts = []
    for path in sorted(_workload_path(layout, "x").parent.glob("workload-*.json")):
        with suppress(FileNotFoundError):
            texts.append(path.read_bytes())
    return tuple(msgspec.json.decode(text, type=kind) for text in texts)


def read_workload(layout: Layout, name: str, kind: type[W]) -> W:
    workloads = {workload.name: workload for workload in read_workloads(layout, kind)}
    if name not in workloads:
        raise UnknownNode(name, sorted(workloads))
    return workloads[name]


def allocate_source_ports(layout: Layout, place: str, count: int) -> int:
    """Reserve `count` source ports, the least recently used ones of the workload, and return the first.

    A switch keeps the state of a closed connection for some seconds, so a port that is reused earlier may match an old
    entry.
    """
    path = layout.directory / f"ports-{place}"
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        first = int(file.read() or SOURCE_PORTS.start)
        if first + count > SOURCE_PORTS.stop:
            first = SOURCE_PORTS.start
        file.truncate(0)
        file.write(str(first + count))
    return first


def _workload_path(layout: Layout, name: str) -> Path:
    return layout.directory / f"workload-{name}.json"


def _write_draft(path: Path, record: object) -> Path:
    draft = path.with_name(f".{path.name}.{os.getpid()}.{id(record)}")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    return draft


@contextmanager
def locked(layout: Layout, hold: LockMode) -> Iterator[None]:
    """Hold the lab's lock for the block. Later callers wait; the kernel releases the lock of a killed holder. The last
    lab removes the lock's directory."""
    descriptor = _open_locked(layout.lock, hold)
    try:
        yield
    finally:
        if hold is LockMode.EXCLUSIVE and not layout.directory.exists():
            layout.lock.unlink()
            _remove_empty(layout.run_dir)
        os.close(descriptor)


def _remove_empty(run_dir: Path) -> None:
    """Remove the default directory of labs if empty, but never one that the caller gave."""
    if run_dir == RUN_DIR:
        with suppress(OSError):
            run_dir.rmdir()
            run_dir.parent.rmdir()


def _open_locked(path: Path, hold: LockMode) -> int:
    """Open and lock the file. A file that was removed during the wait locks nothing, so the open is repeated."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue
        fcntl.flock(descriptor, hold)
        with suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        os.close(descriptor)

"""State of one network's process on disk: the rows applied last, the configuration and the sockets, in one folder.

HAProxy continues to run when the agent ends; the next agent reads the state from this folder. `rows.json` is written
before the process receives a change; `settled` records whether the process has received all of it.
"""

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from fairlead.dataplane.haproxy import (
    AnyProcess,
    Backend,
    Certificate,
    Frontend,
    HAProxyRow,
    HostProcess,
    Process,
    Server,
)
from fairlead.dataplane.haproxy_policies import Slots, assign_all_policy_slots
from fairlead.dataplane.rows import Key, Rows
from fairlead.model.documents.addresses import IPAddress, parse_address
from fairlead.model.documents.owner import Owner
from fairlead.runtime.threads import in_thread

ROWS, PID = "rows.json", "pid"
CLASSES: Mapping[str, type[HAProxyRow]] = {
    each.__name__: each for each in (Process, HostProcess, Frontend, Backend, Server, Certificate)
}


class _File(msgspec.Struct):
    settled: bool
    owners: dict[str, list[tuple[str, dict[str, Any]]]]
    """Maps each owner to its rows: the class name and the fields of each."""
    left_out: dict[str, str] = {}
    slots: dict[str, Slots] = {}


@dataclasses.dataclass(slots=True)
class StoredState:
    """The rows of one network's process, by owner."""

    folder: Path
    owners: dict[Owner, dict[Key, HAProxyRow]] = dataclasses.field(default_factory=dict)
    is_applied: bool = False
    """Whether the process has received all rows."""
    excluded: dict[Owner, str] = dataclasses.field(default_factory=dict)
    """Maps owners with sections that HAProxy does not load, and that are in no file, to the error (`sound.py`)."""

    slots: Mapping[str, Slots] = dataclasses.field(default_factory=dict)
    """L7 policy slots of the process, by frontend."""

    def assign_slots(self) -> None:
        """Puts the L7 policies of these rows into slots. Raises Unwritable."""
        self.slots = assign_all_policy_slots(
            self.slots, {row.name: row.desired_policies for row in self.loaded if isinstance(row, Frontend)}
        )

    @property
    def loaded(self) -> Iterator[HAProxyRow]:
        """The rows that are in the files."""
        return (row for owner, rows in self.owners.items() if owner not in self.excluded for row in rows.values())

    @property
    def rows(self) -> Iterator[HAProxyRow]:
        return (row for rows in self.owners.values() for row in rows.values())

    @property
    def process(self) -> AnyProcess | None:
        return next((row for row in self.rows if isinstance(row, AnyProcess)), None)

    def rows_of(self, owner: Owner) -> Rows:
        return dict(self.owners.get(owner, {}))

    def write(self, *, settled: bool) -> None:
        """Write the rows. Raises OSError."""
        self.is_applied = self.is_applied and settled
        owners = {str(owner): [_plain(row) for row in rows.values()] for owner, rows in self.owners.items()}
        left_out = {str(owner): why for owner, why in self.excluded.items()}
        file = _File(settled=settled, owners=owners, left_out=left_out, slots=dict(self.slots))
        write_atomic(self.folder / ROWS, msgspec.json.encode(file))
        self.is_applied = settled

    async def save(self, *, settled: bool) -> None:
        """Write the rows in a thread, because a process may have 10,000 servers. Raises OSError."""
        await in_thread(self.write, settled=settled)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def read_state(folder: Path) -> StoredState:
    """Read the state that an earlier agent left; empty if it cannot be read."""
    kept = StoredState(folder)
    try:
        file = msgspec.json.decode((folder / ROWS).read_bytes(), type=_File)
        kept.is_applied = file.settled
        for name, rows in file.owners.items():
            made = [_row(kind, fields) for kind, fields in rows]
            kept.owners[Owner.parse(name)] = {row.key: row for row in made}
        kept.slots = file.slots
        kept.excluded = {Owner.parse(name): why for name, why in file.left_out.items()}
    except (OSError, ValueError, KeyError, TypeError):
        return StoredState(folder)
    return kept


def write_atomic(path: Path, text: bytes, mode: int = 0o640, user: int = -1, group: int = -1) -> None:
    """Replace a file atomically. Raises OSError."""
    draft = path.with_name(f".{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # before the file has another owner, because fchmod would then need CAP_FOWNER
        os.fchown(descriptor, user, group)
        file.write(text)
    draft.rename(path)


def _plain(row: HAProxyRow) -> tuple[str, dict[str, Any]]:
    fields = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    return type(row).__name__, fields | ({"address": str(row.address)} if isinstance(row, Server) else {})


def _row(kind: str, fields: dict[str, Any]) -> HAProxyRow:
    """Build a row from its stored fields. Raises ValueError (also msgspec's errors), KeyError, TypeError."""
    make: Callable[..., HAProxyRow] = CLASSES[kind]
    hints = get_type_hints(make)
    values = {
        name: parse_address(value) if hints[name] == IPAddress else msgspec.convert(value, hints[name])
        for name, value in fields.items()
    }
    return make(**values)

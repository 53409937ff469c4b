"""What the lab asks OVN's and Open vSwitch's databases, through their own command-line clients.

Waiting is for a condition, with an end; nothing sleeps in the hope that a state will have come.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from time import monotonic, sleep

import msgspec

from fairlead.lab.errors import ConditionTimedOut, LabCommandFailed
from fairlead.lab.layout import Layout
from fairlead.lab.processes import LabCommand, run
from fairlead.lab.timeouts import scale_timeout

COMMAND_TIMEOUT = scale_timeout(30.0)
POLL_INTERVAL = 0.02
_TIMEOUT_EXIT_CODE = -14  # how a client of these databases dies when its --timeout has passed


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseRow:
    """One row of an OVSDB table, its cells as RFC 7047 section 5.1 writes them."""

    cells: Mapping[str, object]

    def text(self, column: str) -> str:
        """A string, a UUID, or "" for an empty optional column."""
        return next(iter(self.texts(column)), "")

    def texts(self, column: str) -> tuple[str, ...]:
        match self.cells[column]:
            case ["set", list(members)]:
                return tuple(_render_atom(member) for member in members)
            case atom:
                return (_render_atom(atom),)

    def mapping(self, column: str) -> Mapping[str, str]:
        match self.cells[column]:
            case ["map", list(pairs)]:
                return {_render_atom(key): _render_atom(value) for key, value in pairs}
            case other:
                raise TypeError(f"{column} is not a map: {other!r}")


def northbound(layout: Layout) -> LabCommand:
    return LabCommand(argv=("ovn-nbctl", f"--db={layout.northbound}"), environment={"PATH": layout.search_path})


def southbound(layout: Layout) -> LabCommand:
    return LabCommand(argv=("ovn-sbctl", f"--db={layout.southbound}"), environment={"PATH": layout.search_path})


def switch(layout: Layout, node: str) -> LabCommand:
    database = f"--db=unix:{layout.node_directory(node) / 'db.sock'}"
    return LabCommand(argv=("ovs-vsctl", database), environment={"PATH": layout.search_path})


class _DatabaseTable(msgspec.Struct):
    headings: list[str]
    data: list[list[object]]


def _render_atom(cell: object) -> str:
    match cell:
        case ["uuid", str(uuid)]:
            return uuid
        case bool():
            return str(cell).lower()
        case _:
            return str(cell)


def find(client: LabCommand, table: str, columns: Sequence[str], *conditions: str) -> tuple[DatabaseRow, ...]:
    """The rows that meet the conditions (`column=value`); `client` is ovn-nbctl, ovn-sbctl or ovs-vsctl."""
    words = ("--format=json", f"--columns={','.join(columns)}", "find", table, *conditions)
    answer = msgspec.json.decode(run(_with_timeout(client, COMMAND_TIMEOUT, words)), type=_DatabaseTable)
    return tuple(DatabaseRow(cells=dict(zip(answer.headings, cells, strict=True))) for cells in answer.data)


def wait_until(client: LabCommand, seconds: float, *words: str) -> None:
    """Await rows: `words` are those of one or several `wait-until` commands."""
    wait(client, seconds, " ".join(words), words)


def wait(client: LabCommand, seconds: float, condition: str, words: Sequence[str]) -> None:
    """Run a command of a client that returns when the condition holds."""
    try:
        run(_with_timeout(client, seconds, words), timeout=seconds + scale_timeout(10))
    except LabCommandFailed as error:
        if error.code == _TIMEOUT_EXIT_CODE:
            raise ConditionTimedOut(condition, seconds) from error
        raise


def poll_until(seconds: float, condition: str, holds: Callable[[], bool]) -> None:
    """Look again and again: for what no client can wait for."""
    deadline = monotonic() + seconds
    while not holds():
        if monotonic() > deadline:
            raise ConditionTimedOut(condition, seconds)
        sleep(POLL_INTERVAL)


def _with_timeout(client: LabCommand, seconds: float, words: Sequence[str]) -> LabCommand:
    return LabCommand(argv=(*client.argv, f"--timeout={ceil(seconds)}", *words), environment=client.environment)

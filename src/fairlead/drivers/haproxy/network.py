"""What a driver of HAProxy knows of one network's process, and what its rows say of it."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
from fairlead.dataplane.haproxy_commands import Arranged, commands
from fairlead.dataplane.haproxy_policies import arrange
from fairlead.dataplane.haproxy_text import served
from fairlead.dataplane.rows import Diff, Key, Rows, diff
from fairlead.drivers.haproxy.kept import Kept
from fairlead.drivers.haproxy.pace import Pace, Restarts
from fairlead.drivers.haproxy.process import Running
from fairlead.drivers.haproxy.turn import Turn
from fairlead.model.owner import Owner
from fairlead.model.secrets import Secret


@dataclass(slots=True)
class Network:
    kept: Kept
    inside: Sequence[str] = ()
    """The words before those of a command that runs in its place."""
    running: Running | None = None
    leaving: Running | None = None
    """While another one takes its place: its end is none of the proxy's."""
    ports: frozenset[int] = frozenset()
    """At which the process that runs takes connections."""
    changing: frozenset[str] = frozenset()
    """Listeners of the owners for whose changes the next process comes."""
    changed_since: Mapping[Running, frozenset[str]] = field(default_factory=dict)
    """Processes that were replaced, and the listeners whose owners have changed since they were started."""
    counted_for: Mapping[str, str] = field(default_factory=dict)
    """Each backend of the process that runs, and the listener to which its errors are added (`counters.py`)."""
    watch: "asyncio.Task[None] | None" = None
    """Sees that it ends."""
    mending: "asyncio.Task[None] | None" = None
    """Brings another one, or does again what was not finished."""
    restarts: Restarts = field(default_factory=Restarts)
    failure: str = ""
    """Why the proxy does not come back, while it does not."""
    refused: dict[Owner, str] = field(default_factory=dict)
    """Maps owners whose renewed secret HAProxy does not load to the error. The secret before stays in use."""
    shortage: str = ""
    """Why the running proxy rejects connections; empty if it does not."""
    refused_memory: Mapping[str, int] = field(default_factory=dict)
    """Maps the process that was read last to its number of failed allocations."""
    turn: Turn = field(default_factory=Turn)
    before: Mapping[Owner, Rows] | None = None
    """While a change is at work: all rows of before. They hold until it is done."""
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    missing: frozenset[Secret] = frozenset()
    """Keys and certificates that the process was started without."""
    pace: Pace = field(default_factory=Pace)
    """Of processes that take the place of one for a change."""
    waiting: dict[Owner, dict[Key, HAProxyRow]] = field(default_factory=dict)
    """All rows of owners whose changes wait for the next process."""
    placed: AnyProcess | None = None
    """As its place was made by this driver; None if it was not yet."""
    again: float = 0.0
    """When a program may be tried that did not take the place of the one that runs (`upgrading.py`)."""
    is_silent: bool = False
    """Whether the process that runs stands still."""

    @property
    def is_there(self) -> bool:
        return self.running is not None and self.running.is_there

    @property
    def owners(self) -> Mapping[Owner, Rows]:
        """What has been applied."""
        return self.kept.owners if self.before is None else self.before

    @property
    def balancers(self) -> Sequence[Owner]:
        """Those that have a listener here."""
        found = self.kept.owners.items()
        return [owner for owner, rows in found if any(isinstance(row, Frontend) for row in rows.values())]

    @property
    def wanted(self) -> AnyProcess | None:
        """What is to run; None while it would have nothing to serve."""
        return self.kept.process if any(isinstance(row, Frontend) for row in self.kept.loaded) else None

    def asks_for_another(self, owner: Owner, rows: Rows) -> bool:
        """Whether these rows need another process, or one where none runs."""
        others = (row for each, its in self.kept.owners.items() if each != owner for row in its.values())
        if not any(isinstance(row, Frontend) for row in (*others, *rows.values())):
            return False
        is_told = self.kept.settled and self.is_there and owner not in self.kept.left_out
        return not is_told or commands(diff(rows, self.kept.of(owner)), self._arranged(rows)) is None

    def _arranged(self, rows: Rows) -> Arranged:
        """The slots of L7 policies that the process has, and those for these rows."""
        before = self.kept.slots
        its = (row for name in before if isinstance(row := rows.get(("Frontend", name)), Frontend))
        return Arranged(before=before, after={row.name: arrange(before[row.name], row.wanted) for row in its})

    def served(self, rows: Iterable[HAProxyRow]) -> Sequence[Frontend]:
        """Those of the frontends among them for which nothing is missing."""
        process = self.kept.process
        return served(process, rows, self.missing) if process is not None else ()


def ours(rows: Rows) -> dict[Key, HAProxyRow]:
    return {key: row for key, row in rows.items() if isinstance(row, HAProxyRow)}


def with_change(before: Rows, change: Diff) -> dict[Key, HAProxyRow]:
    rows = {key: row for key, row in before.items() if key not in change.deletes}
    return ours({**rows, **change.creates, **{key: update.after for key, update in change.updates.items()}})


def ports_of(rows: Iterable[HAProxyRow]) -> frozenset[int]:
    """At which the frontends among them take connections."""
    binds = (line[1] for row in rows if isinstance(row, Frontend) for line in row.lines if line[0] == "bind")
    return frozenset(int(place.rpartition(":")[2]) for place in binds)


def counted_for(rows: Iterable[HAProxyRow]) -> Mapping[str, str]:
    """Maps each backend to the first listener, by id, that leads to it."""
    frontends = sorted((row for row in rows if isinstance(row, Frontend)), key=lambda row: row.name, reverse=True)
    return {backend: row.name for row in frontends for backend in row.backends}


def folder_name(network_id: str) -> str:
    """Sockets have short paths (unix(7)), and others may call networks as they like."""
    return hashlib.sha256(network_id.encode()).hexdigest()[:12]


def device_of(process: AnyProcess) -> object:
    """As whom the switch knows it: another one is another device, with which all connections end. On a plain host it
    has none of its own."""
    return () if isinstance(process, HostProcess) else (process.port, process.mac)


def place_of(process: AnyProcess) -> object:
    """All that its place is made of."""
    if isinstance(process, HostProcess):
        return ()
    return device_of(process), process.mtu, process.addresses, process.routes


def network_of(rows: Mapping[Key, HAProxyRow]) -> Callable[[HAProxyRow], str]:
    """The network whose process has a row, among all rows of its owner."""
    sections = {
        (type(row).__name__, row.name): row.process for row in rows.values() if isinstance(row, Frontend | Backend)
    }

    def find(row: HAProxyRow) -> str:
        match row:
            case Process() | HostProcess():
                return row.network
            case Frontend() | Backend():
                return row.process
            case Server():
                return sections["Backend", row.backend]
            case Certificate():
                return sections["Frontend", row.frontend]

    return find

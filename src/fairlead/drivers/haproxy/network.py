"""State that the HAProxy driver holds for one network's process, and facts derived from its rows."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from fairlead.dataplane.haproxy_commands import Arranged, Commands, checked, commands, of_servers, tellable
from fairlead.dataplane.haproxy_policies import MAX_PROCESS_PATTERNS, Slots, arrange
from fairlead.dataplane.haproxy_text import Parts, served
from fairlead.dataplane.rows import Diff, Key, Row, Rows, diff
from fairlead.drivers.haproxy.backoff import CommandPace, Pace, Restarts
from fairlead.drivers.haproxy.change_queue import Turn
from fairlead.drivers.haproxy.process import Running
from fairlead.drivers.haproxy.state import Kept
from fairlead.drivers.interface import DriverError
from fairlead.model.documents.owner import Owner
from fairlead.model.queries.secrets import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Commands that apply the change of an owner to the running process."""

    change: Diff
    commands: Commands
    slots: Mapping[str, Slots]
    """L7 policy slots of the process after the change, by frontend."""
    checked: tuple[HAProxyRow, ...] = ()
    """Rows that HAProxy has to load before the commands are sent."""


@dataclass(slots=True)
class Network:
    kept: Kept
    inside: Sequence[str] = ()
    """Command prefix that runs a program in the process's network namespace."""
    running: Running | None = None
    leaving: Running | None = None
    """Process that is being replaced. Its end is expected and causes no restart."""
    ports: frozenset[int] = frozenset()
    """Ports on which the running process accepts connections."""
    changing: frozenset[str] = frozenset()
    """Listeners of the owners with changes that the next process will load."""
    changed_since: Mapping[Running, frozenset[str]] = field(default_factory=dict)
    """Replaced processes, with the listeners of the owners that have changed since their start."""
    counted_for: Mapping[str, str] = field(default_factory=dict)
    """Maps each backend of the running process to the listener that gets its errors (`counters.py`)."""
    watch: "asyncio.Task[None] | None" = None
    """Task that waits for the end of the running process."""
    mending: "asyncio.Task[None] | None" = None
    """Task that starts another process, or repeats an unfinished change."""
    restarts: Restarts = field(default_factory=Restarts)
    failure: str = ""
    """Reason why the proxy is not running; empty if it runs or starts."""
    refused: dict[Owner, str] = field(default_factory=dict)
    """Maps owners to the error of a renewed secret that HAProxy does not load. The previous secret stays in use."""
    shortage: str = ""
    """Reason why the running proxy rejects connections; empty if it does not."""
    refused_memory: Mapping[str, int] = field(default_factory=dict)
    """Maps the process that was read last to its number of failed allocations."""
    turn: Turn = field(default_factory=Turn)
    before: Mapping[Owner, Rows] | None = None
    """Rows of all owners before the change in progress; None if there is none. Reads return these until the change
    is applied."""
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    missing: frozenset[Secret] = frozenset()
    """Keys and certificates that were missing when the process started."""
    pace: Pace = field(default_factory=Pace)
    """Rate limit of replacements that load a change."""
    command_pace: CommandPace = field(default_factory=CommandPace)
    """Rate limit of changes that HAProxy checks before commands apply them."""
    parts: Parts = field(default_factory=dict)
    """Parts of the files as rendered last."""
    waiting: dict[Owner, dict[Key, HAProxyRow]] = field(default_factory=dict)
    """All rows of owners with changes that wait for the next process, or for their turn (`command_pace`)."""
    placed: AnyProcess | None = None
    """Process row with which this driver created the namespace; None if it has not yet."""
    again: float = 0.0
    """Time of the event loop before which a failed upgrade of the program is not retried (`upgrading.py`)."""
    is_silent: bool = False
    """Whether the running process does not respond."""

    @property
    def is_there(self) -> bool:
        return self.running is not None and self.running.is_there

    @property
    def owners(self) -> Mapping[Owner, Rows]:
        """Rows that have been applied."""
        return self.kept.owners if self.before is None else self.before

    @property
    def balancers(self) -> Sequence[Owner]:
        """Owners with a listener in this proxy."""
        found = self.kept.owners.items()
        return [owner for owner, rows in found if any(isinstance(row, Frontend) for row in rows.values())]

    @property
    def wanted(self) -> AnyProcess | None:
        """Process that should run; None if there is no frontend to serve."""
        return self.kept.process if any(isinstance(row, Frontend) for row in self.kept.loaded) else None

    def plan(self, owner: Owner, rows: Rows) -> Plan | None:
        """Return how commands apply these rows of an owner; None if they need a new process, because commands cannot
        apply them, or because none runs. The work grows with the rows, so it runs in a thread."""
        change = diff(rows, self.kept.of(owner))
        others = (row for each, its in self.kept.owners.items() if each != owner for row in its.values())
        if not any(isinstance(row, Frontend) for row in (*others, *rows.values())):
            return Plan(change=change, commands=(), slots=self.kept.slots)
        if not self.kept.settled or not self.is_there or owner in self.kept.left_out:
            return None
        before = self.kept.slots
        its = (each.after for each in change.updates.values() if isinstance(each.after, Frontend))
        after = {**before, **{row.name: arrange(before[row.name], row.wanted) for row in its if row.name in before}}
        told = commands(change, Arranged(before=before, after=after))
        if told is None:
            return None
        return Plan(change=change, commands=told, slots=after, checked=tuple(ours_of(checked(change, rows))))

    def plan_part(self, owner: Owner, rows: Rows, *, only_servers: bool) -> tuple[Rows, Plan] | None:
        """Return the part of these rows that commands can apply now; None if there is none."""
        before = self.kept.of(owner)
        part = tellable(diff(rows, before), before)
        after = with_change(before, of_servers(part) if only_servers else part)
        plan = self.plan(owner, after)
        return (after, plan) if plan is not None and plan.change else None

    def check_patterns(self, rows: Mapping[Owner, Rows]) -> None:
        """Reject rows with which the L7 rules of all owners together have too many patterns for one process, unless
        these owners have no more than before. Raises DriverError."""
        wanted = _patterns(rows.values())
        if wanted <= _patterns(self.kept.of(owner) for owner in rows):
            return
        total = wanted + _patterns(its for owner, its in self.kept.owners.items() if owner not in rows)
        if total > MAX_PROCESS_PATTERNS:
            named = ", ".join(sorted(owner.id for owner in rows))
            raise DriverError(
                f"load balancer {named}: with its L7 rules, all rules of the project's HAProxy on this network have "
                f"{total} values to compare, more than {MAX_PROCESS_PATTERNS}: delete or disable L7 policies or rules"
            )

    def wait(self, plan: Plan | None, now: float) -> float:
        """Return the seconds until a change may be applied."""
        if plan is None:
            return self.pace.wait(now)
        return self.command_pace.wait(now) if plan.checked else 0.0

    def served(self, rows: Iterable[HAProxyRow]) -> Sequence[Frontend]:
        """Return the frontends among these rows with all their secrets present."""
        process = self.kept.process
        return served(process, rows, self.missing) if process is not None else ()


def _patterns(some: Iterable[Rows]) -> int:
    return sum(row.patterns for rows in some for row in rows.values() if isinstance(row, Frontend))


def ours_of(rows: Iterable[Row]) -> Iterator[HAProxyRow]:
    return (row for row in rows if isinstance(row, HAProxyRow))


def ours(rows: Rows) -> dict[Key, HAProxyRow]:
    return {key: row for key, row in rows.items() if isinstance(row, HAProxyRow)}


def with_change(before: Rows, change: Diff) -> dict[Key, HAProxyRow]:
    rows = {key: row for key, row in before.items() if key not in change.deletes}
    return ours({**rows, **change.creates, **{key: update.after for key, update in change.updates.items()}})


def ports_of(rows: Iterable[HAProxyRow]) -> frozenset[int]:
    """Return the ports on which the frontends among these rows accept connections."""
    binds = (line[1] for row in rows if isinstance(row, Frontend) for line in row.lines if line[0] == "bind")
    return frozenset(int(place.rpartition(":")[2]) for place in binds)


def counted_for(rows: Iterable[HAProxyRow]) -> Mapping[str, str]:
    """Maps each backend to the first listener, by id, that leads to it."""
    frontends = sorted((row for row in rows if isinstance(row, Frontend)), key=lambda row: row.name, reverse=True)
    return {backend: row.name for row in frontends for backend in row.backends}


def folder_name(network_id: str) -> str:
    """Folder name of a network: a short hash, because socket paths are limited (unix(7)) and network ids can be any
    text."""
    return hashlib.sha256(network_id.encode()).hexdigest()[:12]


def device_of(process: AnyProcess) -> object:
    """Identity of the proxy's device at the switch; a change of it ends all connections. Empty on a plain host, where
    the process has no device of its own."""
    return () if isinstance(process, HostProcess) else (process.port, process.mac)


def place_of(process: AnyProcess) -> object:
    """All attributes of the process's network namespace."""
    if isinstance(process, HostProcess):
        return ()
    return device_of(process), process.mtu, process.addresses, process.routes


def network_of(rows: Mapping[Key, HAProxyRow]) -> Callable[[HAProxyRow], str]:
    """Return a function that maps each row of an owner to the network of its process."""
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

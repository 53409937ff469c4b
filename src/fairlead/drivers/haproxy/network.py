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
from fairlead.dataplane.haproxy_commands import Commands, SlotChange, checked, commands, of_servers, part_without_reload
from fairlead.dataplane.haproxy_policies import MAX_PROCESS_PATTERNS, Slots, assign_policy_slots
from fairlead.dataplane.haproxy_text import Parts, loadable_frontends
from fairlead.dataplane.rows import Diff, Key, Row, Rows, diff
from fairlead.drivers.haproxy.backoff import CommandPace, ReplacementBackoff, RestartBackoff
from fairlead.drivers.haproxy.change_queue import ChangeQueue
from fairlead.drivers.haproxy.process import RunningProcess
from fairlead.drivers.haproxy.state import StoredState
from fairlead.drivers.interface import DriverError
from fairlead.model.documents.owner import Owner
from fairlead.model.queries.secrets import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlan:
    """Commands that apply the change of an owner to the running process."""

    change: Diff
    commands: Commands
    slots: Mapping[str, Slots]
    """L7 policy slots of the process after the change, by frontend."""
    checked: tuple[HAProxyRow, ...] = ()
    """Rows that HAProxy has to load before the commands are sent."""


@dataclass(slots=True)
class ProxyNetwork:
    state: StoredState
    command_prefix: Sequence[str] = ()
    """Command prefix that runs a program in the process's network namespace."""
    running: RunningProcess | None = None
    replacing: RunningProcess | None = None
    """Process that is being replaced. Its end is expected and causes no restart."""
    ports: frozenset[int] = frozenset()
    """Ports on which the running process accepts connections."""
    changed_listeners: frozenset[str] = frozenset()
    """Listeners of the owners with changes that the next process will load."""
    changed_since_replaced: Mapping[RunningProcess, frozenset[str]] = field(default_factory=dict)
    """Replaced processes, with the listeners of the owners that have changed since their start."""
    error_listeners: Mapping[str, str] = field(default_factory=dict)
    """Maps each backend of the running process to the listener that gets its errors (`counters.py`)."""
    watch: "asyncio.Task[None] | None" = None
    """Task that waits for the end of the running process."""
    restart: "asyncio.Task[None] | None" = None
    """Task that starts another process, or repeats an unfinished change."""
    restarts: RestartBackoff = field(default_factory=RestartBackoff)
    failure: str = ""
    """Reason why the proxy is not running; empty if it runs or starts."""
    rejected_secrets: dict[Owner, str] = field(default_factory=dict)
    """Maps owners to the error of a renewed secret that HAProxy does not load. The previous secret stays in use."""
    memory_error: str = ""
    """Reason why the running proxy rejects connections; empty if it does not."""
    failed_allocations: Mapping[str, int] = field(default_factory=dict)
    """Maps the process that was read last to its number of failed allocations."""
    queue: ChangeQueue = field(default_factory=ChangeQueue)
    rows_before: Mapping[Owner, Rows] | None = None
    """Rows of all owners before the change in progress; None if there is none. Reads return these until the change
    is applied."""
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    missing: frozenset[Secret] = frozenset()
    """Keys and certificates that were missing when the process started."""
    replacement_backoff: ReplacementBackoff = field(default_factory=ReplacementBackoff)
    """Rate limit of replacements that load a change."""
    command_pace: CommandPace = field(default_factory=CommandPace)
    """Rate limit of changes that HAProxy checks before commands apply them."""
    parts: Parts = field(default_factory=dict)
    """Parts of the files as rendered last."""
    pending: dict[Owner, dict[Key, HAProxyRow]] = field(default_factory=dict)
    """All rows of owners with changes that wait for the next process, or for their turn (`command_pace`)."""
    namespace_process: AnyProcess | None = None
    """Process row with which this driver created the namespace; None if it has not yet."""
    upgrade_retry_at: float = 0.0
    """Time of the event loop before which a failed upgrade of the program is not retried (`upgrading.py`)."""
    is_unresponsive: bool = False
    """Whether the running process does not respond."""

    @property
    def is_running(self) -> bool:
        return self.running is not None and self.running.is_alive

    @property
    def owners(self) -> Mapping[Owner, Rows]:
        """Rows that have been applied."""
        return self.state.owners if self.rows_before is None else self.rows_before

    @property
    def balancers(self) -> Sequence[Owner]:
        """Owners with a listener in this proxy."""
        found = self.state.owners.items()
        return [owner for owner, rows in found if any(isinstance(row, Frontend) for row in rows.values())]

    @property
    def desired(self) -> AnyProcess | None:
        """Process that should run; None if there is no frontend to serve."""
        return self.state.process if any(isinstance(row, Frontend) for row in self.state.loaded) else None

    def plan(self, owner: Owner, rows: Rows) -> ChangePlan | None:
        """Return how commands apply these rows of an owner; None if they need a new process, because commands cannot
        apply them, or because none runs. The work grows with the rows, so it runs in a thread."""
        change = diff(rows, self.state.rows_of(owner))
        others = (row for each, its in self.state.owners.items() if each != owner for row in its.values())
        if not any(isinstance(row, Frontend) for row in (*others, *rows.values())):
            return ChangePlan(change=change, commands=(), slots=self.state.slots)
        if not self.state.is_applied or not self.is_running or owner in self.state.excluded:
            return None
        before = self.state.slots
        its = (each.after for each in change.updates.values() if isinstance(each.after, Frontend))
        after = {
            **before,
            **{
                row.name: assign_policy_slots(before[row.name], row.desired_policies)
                for row in its
                if row.name in before
            },
        }
        told = commands(change, SlotChange(before=before, after=after))
        if told is None:
            return None
        return ChangePlan(change=change, commands=told, slots=after, checked=tuple(ours_of(checked(change, rows))))

    def plan_part(self, owner: Owner, rows: Rows, *, only_servers: bool) -> tuple[Rows, ChangePlan] | None:
        """Return the part of these rows that commands can apply now; None if there is none."""
        before = self.state.rows_of(owner)
        part = part_without_reload(diff(rows, before), before)
        after = with_change(before, of_servers(part) if only_servers else part)
        plan = self.plan(owner, after)
        return (after, plan) if plan is not None and plan.change else None

    def check_patterns(self, rows: Mapping[Owner, Rows]) -> None:
        """Reject rows with which the L7 rules of all owners together have too many patterns for one process, unless
        these owners have no more than before. Raises DriverError."""
        wanted = _patterns(rows.values())
        if wanted <= _patterns(self.state.rows_of(owner) for owner in rows):
            return
        total = wanted + _patterns(its for owner, its in self.state.owners.items() if owner not in rows)
        if total > MAX_PROCESS_PATTERNS:
            named = ", ".join(sorted(owner.id for owner in rows))
            raise DriverError(
                f"load balancer {named}: the L7 rules of the project's HAProxy process on this network have {total}"
                f" values to compare, the limit is {MAX_PROCESS_PATTERNS}: delete or disable L7 policies or rules"
            )

    def wait(self, plan: ChangePlan | None, now: float) -> float:
        """Return the seconds until a change may be applied."""
        if plan is None:
            return self.replacement_backoff.wait(now)
        return self.command_pace.wait(now) if plan.checked else 0.0

    def servable_frontends(self, rows: Iterable[HAProxyRow]) -> Sequence[Frontend]:
        """Return the frontends among these rows with all their secrets present."""
        process = self.state.process
        return loadable_frontends(process, rows, self.missing) if process is not None else ()


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


def error_listeners_of(rows: Iterable[HAProxyRow]) -> Mapping[str, str]:
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


def namespace_of(process: AnyProcess) -> object:
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

"""Facts from the OVN Southbound database: probe results of ovn-controller, chassis, and port bindings; also names of
logical datapaths.

* Read-only and without a lock: every server has its own reader.

* While the database is disconnected, the last known state is kept.

* An endpoint with a port on no chassis, or on a dead one, is down, because it is not probed and cannot answer.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count, islice

from fairlead.drivers.interface import Unreachable
from fairlead.drivers.ovn.southbound.reader import Observe, Reader
from fairlead.drivers.ovn.southbound.tables import TABLES, SouthboundTables
from fairlead.drivers.ovsdb.client import Changes, Connected, Contents, Event, Settings, Timing, Tls
from fairlead.drivers.ovsdb.large import in_parts
from fairlead.drivers.ovsdb.remotes import Remote
from fairlead.drivers.ovsdb.values import Json
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.queries.statistics import Announced, CountingPlace, Datapath
from fairlead.model.registry.facts import CHASSIS, HEALTH, PLUGGED, HealthNews
from fairlead.runtime.steps import Steps

DATABASE = "OVN_Southbound"
PART, SOME = 200, 500
"""Rows per step, and ports or chassis per report."""
JUDGE_PAUSE = 0.1
"""Seconds."""
_DONE = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class SouthboundSettings:
    remotes: tuple[Remote, ...]
    tls: Tls | None = None
    timing: Timing = field(default_factory=Timing)
    patience: float = 0.0
    """Maximum lag in seconds of a chassis behind the others before it counts as dead; 0 disables the check."""


class SouthboundReader(Reader):
    """Reader of the Southbound database. Use `start` and `close`. `observe` receives the facts `HEALTH`, `CHASSIS` and
    `PLUGGED`.

    Health reports contain only changes. Reports of chassis and ports contain everything that OVN has updated, which may
    equal the previous state.
    """

    def __init__(self, settings: SouthboundSettings, observe: Observe) -> None:
        super().__init__(
            Settings(
                remotes=settings.remotes, database=DATABASE, tables=TABLES, tls=settings.tls, timing=settings.timing
            )
        )
        self._observe = observe
        self._patience = settings.patience
        self._tables = SouthboundTables(settings.patience)
        self._told: dict[Endpoint, Health] = {}
        self._untold: dict[Endpoint, Health | None] = {}
        """Unreported results; reported after all endpoints of one batch have been evaluated."""
        self._half_told: set[Endpoint] = set()
        """Endpoints with a report in progress, or interrupted by the end of the connection, which is then repeated."""
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._numbers = count()
        self._judging: asyncio.TimerHandle | None = None
        self._judged = -JUDGE_PAUSE
        self.has_told_all = False
        """Whether the complete contents have been reported once since the start."""

    @property
    def counted(self) -> int:
        """Highest NB_Global:nb_cfg confirmed by any chassis."""
        return self._tables.nodes.counted

    @property
    def counted_at(self) -> float:
        """Time of that confirmation, on the clock of `time.monotonic`."""
        return self._tables.nodes.counted_at

    def figures(self) -> Mapping[str, int]:
        """Return the number of live and dead chassis, and of unreadable probes."""
        nodes = self._tables.nodes
        dead = len(nodes.dead)
        return {"alive": len(nodes) - dead, "dead": dead, "unreadable": len(self._tables.unreadable)}

    def locate(self, place: CountingPlace) -> str | None:
        """Return the Northbound name of a node's counting place, if any.

        A zone is named after a port, or after a datapath: by its UUID in OVN 23.03, by its name in later versions.
        Raises Unreachable while disconnected.
        """
        self.check_connected()
        if isinstance(place, Datapath):
            return self._tables.datapaths.by_key.get(place.key)
        if isinstance(place, Announced):
            return None
        name = place.name.removesuffix("_dnat").removesuffix("_snat")
        return self._tables.datapaths.by_uuid.get(name, name)

    def check_connected(self) -> None:
        """Raise Unreachable while disconnected, because the known state may be outdated."""
        if not self.connected:
            raise Unreachable("the Southbound database is not connected")

    async def close(self) -> None:
        await super().close()
        self._cancel_timers()

    def _see(self, event: Event) -> Steps[None] | None:
        match event:
            case Contents(tables=tables):
                self._cancel_timers()  # they refer to the previous tables
                before = self._tables
                self._tables = SouthboundTables(self._patience)
                self._tables.moved.update(before.moved, before.bindings.ports())
                self._tables.bindings.changed.update(before.bindings.changed, before.bindings.names())
                self._untold.clear()
                return self._take(tables, {*self._told, *self._half_told})
            case Changes(tables=tables):
                return self._take(tables, ())
            case Connected():
                self.has_told_all = True
            case _:
                pass
        return None

    def _take(self, tables: Mapping[str, Mapping[str, Mapping[str, Json]]], told: Iterable[Endpoint]) -> Steps[None]:
        """Process a transaction and report the state after it, never a state in its middle."""
        touched = set(told)
        for part in in_parts(tables, PART):
            touched.update(self._tables.change(part))
            yield
        if "Chassis_Private" in tables:
            touched.update(self._judge())
        yield from self._tell_all(touched)
        yield from self._tell_of_chassis()
        yield from self._tell_of_ports()
        self._wait_for_first_probes()
        self._complain("Service_Monitor", self._tables.reasons)

    def _judge(self) -> Iterable[Endpoint]:
        """Judge liveness with pauses, because a thousand nodes confirm a count one by one, and a check covers all."""
        loop = asyncio.get_running_loop()
        if self._judging is not None:
            return ()
        if loop.time() >= self._judged + JUDGE_PAUSE:
            self._judged = loop.time()
            return self._tables.judge()
        self._judging = loop.call_at(self._judged + JUDGE_PAUSE, self._judge_late)
        return ()

    def _judge_late(self) -> None:
        self._judging, self._judged = None, asyncio.get_running_loop().time()
        self._tell_by_and_by(chain(self._tell_all(self._tables.judge()), self._tell_of_chassis()))

    def _tell_by_and_by(self, work: Iterator[None]) -> None:
        """Report changes that no database update caused."""
        self._go_on(self._tables, work)

    def _go_on(self, tables: SouthboundTables, work: Iterator[None]) -> None:
        if tables is self._tables and next(work, _DONE) is not _DONE:
            asyncio.get_running_loop().call_soon(self._go_on, tables, work)

    def _tell_all(self, touched: Iterable[Endpoint]) -> Steps[None]:
        """Report all changes together, so that the observer processes each load balancer once.

        An endpoint that cannot have been probed yet keeps its last state. While such work yields, another may evaluate
        the same endpoint; the later result wins.
        """
        for endpoint in touched:
            told = self._told.get(endpoint)
            health = self._tables.health(endpoint, told)
            if health is told and endpoint not in self._half_told:
                self._untold.pop(endpoint, None)
            else:
                self._untold[endpoint] = health
            yield
        news, self._untold = self._untold, {}
        for endpoint, health in news.items():
            if health is None:
                self._told.pop(endpoint, None)
            else:
                self._told[endpoint] = health
        if news:
            yield from self._tell(news)

    def _tell(self, news: HealthNews) -> Steps[None]:
        self._half_told.update(news)  # interrupted work gives no notice before the next evaluation
        yield from self._observe(HEALTH, news) or ()
        self._half_told.difference_update(news)

    def _tell_of_ports(self) -> Steps[None]:
        tables = self._tables
        while tables.moved:
            some = list(islice(tables.moved, SOME))
            tables.moved.difference_update(some)
            yield from self._observe(PLUGGED, {port: tables.bindings.node_of(port) for port in some}) or ()
            yield

    def _tell_of_chassis(self) -> Steps[None]:
        tables = self._tables
        while tables.bindings.changed:
            some = list(islice(tables.bindings.changed, SOME))
            news = {name: tables.bindings.describe(name, tables.nodes.dead) for name in some}
            tables.bindings.changed.difference_update(some)
            yield from self._observe(CHASSIS, news) or ()
            yield

    def _wait_for_first_probes(self) -> None:
        """Start one timer per delay for all new rows, because ten thousand timers together would block the loop."""
        loop, tables = asyncio.get_running_loop(), self._tables
        due: dict[float, list[str]] = {}
        for uuid, seconds in tables.new_rows:
            due.setdefault(seconds, []).append(uuid)
        tables.new_rows.clear()
        for seconds, uuids in due.items():
            number = next(self._numbers)
            self._timers[number] = loop.call_later(seconds, self._end_first_probes, number, uuids)

    def _end_first_probes(self, number: int, uuids: Iterable[str]) -> None:
        """Use the rows' status from now on, because a probe had time to complete."""
        del self._timers[number]
        self._tell_by_and_by(self._tell_all(chain.from_iterable(map(self._tables.end_first_probe, uuids))))

    def _cancel_timers(self) -> None:
        for timer in (*self._timers.values(), *([self._judging] if self._judging else [])):
            timer.cancel()
        self._timers.clear()
        self._judging = None

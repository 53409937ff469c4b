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
from fairlead.drivers.ovsdb.client import ConnectionSynced, ContentChanges, Event, FullContents, Settings, Timing, Tls
from fairlead.drivers.ovsdb.remotes import Remote
from fairlead.drivers.ovsdb.split_message import split_rows
from fairlead.drivers.ovsdb.values import Json
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.queries.statistics import AnnouncedPlace, CountingPlace, Datapath
from fairlead.model.registry.facts import CHASSIS, HEALTH, PLUGGED, HealthUpdate
from fairlead.runtime.steps import Steps

DATABASE = "OVN_Southbound"
ROWS_PER_STEP, REPORT_SIZE = 200, 500
"""Rows per step, and ports or chassis per report."""
LIVENESS_CHECK_INTERVAL = 0.1
"""Seconds."""
_DONE = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class SouthboundSettings:
    remotes: tuple[Remote, ...]
    tls: Tls | None = None
    timing: Timing = field(default_factory=Timing)
    max_lag: float = 0.0
    """Maximum lag in seconds of a chassis behind the others before it counts as dead; 0 disables the check."""


class SouthboundReader(Reader):
    """Reader of the Southbound database. Use `start` and `close`. `observe` receives the facts `HEALTH`,
    `CHASSIS` and `PLUGGED`.

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
        self._max_lag = settings.max_lag
        self._tables = SouthboundTables(settings.max_lag)
        self._reported: dict[Endpoint, Health] = {}
        self._pending: dict[Endpoint, Health | None] = {}
        """Unreported results; reported after all endpoints of one batch have been evaluated."""
        self._in_progress: set[Endpoint] = set()
        """Endpoints with a report in progress, or interrupted by the end of the connection, which is then repeated."""
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._numbers = count()
        self._evaluation_timer: asyncio.TimerHandle | None = None
        self._evaluated_at = -LIVENESS_CHECK_INTERVAL
        self.has_reported_all = False
        """Whether the complete contents have been reported once since the start."""

    @property
    def max_nb_cfg(self) -> int:
        """Highest NB_Global:nb_cfg confirmed by any chassis."""
        return self._tables.liveness.max_nb_cfg

    @property
    def max_nb_cfg_time(self) -> float:
        """Time of that confirmation, on the clock of `time.monotonic`."""
        return self._tables.liveness.max_nb_cfg_time

    def counts(self) -> Mapping[str, int]:
        """Return the number of live and dead chassis, and of unreadable probes."""
        nodes = self._tables.liveness
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
        if isinstance(place, AnnouncedPlace):
            return None
        name = place.name.removesuffix("_dnat").removesuffix("_snat")
        return self._tables.datapaths.by_uuid.get(name, name)

    def check_connected(self) -> None:
        """Raise Unreachable while disconnected, because the known state may be outdated."""
        if not self.connected:
            raise Unreachable("not connected to the OVN Southbound database")

    async def close(self) -> None:
        await super().close()
        self._cancel_timers()

    def _handle_event(self, event: Event) -> Steps[None] | None:
        match event:
            case FullContents(tables=tables):
                self._cancel_timers()  # they refer to the previous tables
                before = self._tables
                self._tables = SouthboundTables(self._max_lag)
                self._tables.moved_ports.update(before.moved_ports, before.bindings.ports())
                self._tables.bindings.changed.update(before.bindings.changed, before.bindings.names())
                self._pending.clear()
                return self._apply_changes(tables, {*self._reported, *self._in_progress})
            case ContentChanges(tables=tables):
                return self._apply_changes(tables, ())
            case ConnectionSynced():
                self.has_reported_all = True
            case _:
                pass
        return None

    def _apply_changes(
        self, tables: Mapping[str, Mapping[str, Mapping[str, Json]]], told: Iterable[Endpoint]
    ) -> Steps[None]:
        """Process a transaction and report the state after it, never a state in its middle."""
        touched = set(told)
        for part in split_rows(tables, ROWS_PER_STEP):
            touched.update(self._tables.change(part))
            yield
        if "Chassis_Private" in tables:
            touched.update(self._evaluate_liveness())
        yield from self._report_all(touched)
        yield from self._report_chassis()
        yield from self._report_ports()
        self._wait_for_first_probes()
        self._log_reasons("Service_Monitor", self._tables.reasons)

    def _evaluate_liveness(self) -> Iterable[Endpoint]:
        """Judge liveness with pauses, because a thousand nodes confirm a count one by one, and a check covers all."""
        loop = asyncio.get_running_loop()
        if self._evaluation_timer is not None:
            return ()
        if loop.time() >= self._evaluated_at + LIVENESS_CHECK_INTERVAL:
            self._evaluated_at = loop.time()
            return self._tables.evaluate_liveness()
        self._evaluation_timer = loop.call_at(self._evaluated_at + LIVENESS_CHECK_INTERVAL, self._evaluate_deferred)
        return ()

    def _evaluate_deferred(self) -> None:
        self._evaluation_timer, self._evaluated_at = None, asyncio.get_running_loop().time()
        self._report_in_background(chain(self._report_all(self._tables.evaluate_liveness()), self._report_chassis()))

    def _report_in_background(self, work: Iterator[None]) -> None:
        """Report changes that no database update caused."""
        self._continue(self._tables, work)

    def _continue(self, tables: SouthboundTables, work: Iterator[None]) -> None:
        if tables is self._tables and next(work, _DONE) is not _DONE:
            asyncio.get_running_loop().call_soon(self._continue, tables, work)

    def _report_all(self, touched: Iterable[Endpoint]) -> Steps[None]:
        """Report all changes together, so that the observer processes each load balancer once.

        An endpoint that cannot have been probed yet keeps its last state. While such work yields, another may evaluate
        the same endpoint; the later result wins.
        """
        for endpoint in touched:
            told = self._reported.get(endpoint)
            health = self._tables.health(endpoint, told)
            if health is told and endpoint not in self._in_progress:
                self._pending.pop(endpoint, None)
            else:
                self._pending[endpoint] = health
            yield
        news, self._pending = self._pending, {}
        for endpoint, health in news.items():
            if health is None:
                self._reported.pop(endpoint, None)
            else:
                self._reported[endpoint] = health
        if news:
            yield from self._report(news)

    def _report(self, news: HealthUpdate) -> Steps[None]:
        self._in_progress.update(news)  # interrupted work gives no notice before the next evaluation
        yield from self._observe(HEALTH, news) or ()
        self._in_progress.difference_update(news)

    def _report_ports(self) -> Steps[None]:
        tables = self._tables
        while tables.moved_ports:
            some = list(islice(tables.moved_ports, REPORT_SIZE))
            tables.moved_ports.difference_update(some)
            yield from self._observe(PLUGGED, {port: tables.bindings.host_of(port) for port in some}) or ()
            yield

    def _report_chassis(self) -> Steps[None]:
        tables = self._tables
        while tables.bindings.changed:
            some = list(islice(tables.bindings.changed, REPORT_SIZE))
            news = {name: tables.bindings.describe(name, tables.liveness.dead) for name in some}
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
        self._report_in_background(self._report_all(chain.from_iterable(map(self._tables.end_first_probe, uuids))))

    def _cancel_timers(self) -> None:
        for timer in (*self._timers.values(), *([self._evaluation_timer] if self._evaluation_timer else [])):
            timer.cancel()
        self._timers.clear()
        self._evaluation_timer = None

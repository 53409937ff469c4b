"""Traffic counters that nodes report, in memory: after a restart of the server each node reports its totals again.

- A total that has grown since the last report counts by the growth. A total that has fallen means that the node lost
  its file: counting continues from the new value. A total that has grown faster than a node's hardware allows is
  ignored.
- The totals of an unresponsive node count for a day; its open connections do not.
- The counters of a node that has become unresponsive are stored (`model/documents/unresponsive_nodes.py`). A server
  that did not receive its last report uses the stored ones, so all servers return the same sums, also after the node
  has reconnected.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from operator import itemgetter

from immutables import Map

from fairlead.changes.unresponsive_nodes import REPORT_TOLERANCE
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.documents.unresponsive_nodes import UnresponsiveNode
from fairlead.runtime.steps import Steps, run_to_completion, sort_cooperatively

MISSED_REPORTS = 3
"""Missed report intervals after which a node is unresponsive."""
RETENTION_SECONDS = 86_400.0
"""Seconds after which an unresponsive node and its counters are dropped."""
MAX_GROWTH_PER_SECOND = TrafficCounters(
    connections=10**6, errors=10**6, bytes_in=5 * 10**10, bytes_out=5 * 10**10, active=10**7
)
"""Maximum plausible growth per second of one listener on one node: connections opened and rejected, bytes received
and sent (400 Gbit/s each); and maximum open connections."""
CUMULATIVE_COUNTERS = tuple(field.name for field in fields(TrafficCounters) if field.name != "active")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListenerCounters:
    """Counters of one listener on one node."""

    reported: TrafficCounters
    """Last accepted report."""
    accepted: TrafficCounters
    """Sum of the accepted growth."""
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeReport:
    entries: Mapping[str, _ListenerCounters]
    """Entries by listener."""
    until: float
    """Time at which the node becomes unresponsive without another report."""
    received_at: datetime
    is_own: bool = True
    """Whether this server received the report; otherwise it was read from the store."""


class NodeCounts:
    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        stored: Callable[[], Mapping[str, UnresponsiveNode]] = Map,
    ) -> None:
        """`stored` returns the stored counters of unresponsive nodes."""
        self._clock, self._wall = clock, wall
        self._stored = stored
        self._known_stored: Mapping[str, UnresponsiveNode] = {}
        """Stored counters that have been read."""
        self._reports: dict[str, _NodeReport] = {}
        self._counted: dict[str, set[str]] = {}
        """Maps listeners to the nodes that count for them, so reading a listener costs only these."""
        self._take_stored(clock())  # not in the first request, which would delay others

    def record(
        self, chassis: str, figures: Mapping[str, TrafficCounters], interval: float, age: Callable[[str], float]
    ) -> list[str]:
        """Run `reporting` to completion."""
        return run_to_completion(self.reporting(chassis, figures, interval, age))

    def reporting(
        self, chassis: str, figures: Mapping[str, TrafficCounters], interval: float, age: Callable[[str], float]
    ) -> Steps[list[str]]:
        """Record a node's counters. `interval` is the number of seconds until its next report.

        `age` returns the age of a listener in seconds, which bounds its first report. Returns the listeners with
        ignored counters.
        """
        now = self._clock()
        self._forget(now)
        self._take_stored(now)
        before = self._reports[chassis].entries if chassis in self._reports else {}
        entries: dict[str, _ListenerCounters] = {}
        doubtful: list[str] = []
        for listener, told in figures.items():
            known = before.get(listener)
            since = (now - known.at if known else age(listener)) + interval
            entry = _accept(known, told, since, now)
            if entry is None:
                doubtful.append(listener)
                entry = known
            if entry is not None:
                entries[listener] = entry
            yield
        self._replace(
            chassis, _NodeReport(entries=entries, until=now + MISSED_REPORTS * interval, received_at=self._wall())
        )
        return doubtful

    def total(self, listeners: Iterable[str]) -> TrafficCounters | None:
        """Return the sum for these listeners on all nodes; None while no node has reported."""
        now, total = self._clock(), TrafficCounters()
        self._take_stored(now)
        if not self._reports:
            return None
        for listener in listeners:
            for chassis in self._counted.get(listener, ()):
                report = self._reports[chassis]
                figures = report.entries[listener].accepted
                total += figures if now < report.until else replace(figures, active=0)
        return total

    def __len__(self) -> int:
        """Number of remembered nodes."""
        return len(self._reports)

    @property
    def nodes(self) -> int:
        """Number of nodes that report counters and are responsive."""
        now = self._clock()
        return sum(1 for report in self._reports.values() if now < report.until)

    def unresponsive(self) -> Mapping[str, float]:
        """Map unresponsive nodes that reported to this server to the seconds since they became so."""
        now = self._clock()
        reports = self._reports.items()
        return {chassis: now - each.until for chassis, each in reports if each.is_own and each.until <= now}

    def is_responsive(self, chassis: str) -> bool:
        report = self._reports.get(chassis)
        return report is not None and self._clock() < report.until

    def last_report_at(self, chassis: str) -> datetime:
        return self._reports[chassis].received_at

    def stored_report(self, chassis: str) -> Steps[UnresponsiveNode]:
        """Return the counters of an unresponsive node for the store, without open connections."""
        report = self._reports[chassis]
        counted, told = [], []
        for listener, each in (yield from sort_cooperatively([*report.entries.items()], itemgetter(0))):
            counted.append((listener, replace(each.accepted, active=0)))
            if each.reported != each.accepted:
                told.append((listener, replace(each.reported, active=0)))
            yield
        return UnresponsiveNode(name=chassis, since=report.received_at, counted=tuple(counted), told=tuple(told))

    def _take_stored(self, now: float) -> None:
        """Read stored counters that are newer than the reports that this server received."""
        stored, known = self._stored(), self._known_stored
        if stored is known:
            return
        self._known_stored = stored
        for chassis, node in stored.items():
            if node is known.get(chassis):
                continue
            own = self._reports.get(chassis)
            if own is None or own.received_at + REPORT_TOLERANCE < node.since:
                self._replace(chassis, _stored_report(node, now - _seconds(self._wall() - node.since)))

    def _replace(self, chassis: str, report: _NodeReport | None) -> None:
        before = self._reports.pop(chassis, None)
        after = report.entries if report else {}
        for listener in set(before.entries if before else ()) - set(after):
            self._counted[listener].discard(chassis)
            if not self._counted[listener]:
                del self._counted[listener]
        for listener in after:
            self._counted.setdefault(listener, set()).add(chassis)
        if report is not None:
            self._reports[chassis] = report

    def _forget(self, now: float) -> None:
        for chassis in [name for name, report in self._reports.items() if report.until + RETENTION_SECONDS < now]:
            self._replace(chassis, None)


def _seconds(time_ago: timedelta) -> float:
    return max(0.0, time_ago.total_seconds())


def _stored_report(node: UnresponsiveNode, at: float) -> _NodeReport:
    """Convert stored counters; `at` is the time of the node's last report."""
    told = dict(node.told)
    entries = {
        listener: _ListenerCounters(reported=told.get(listener, counted), accepted=counted, at=at)
        for listener, counted in node.counted
    }
    return _NodeReport(entries=entries, until=at, received_at=node.since, is_own=False)


def _accept(
    known: _ListenerCounters | None, told: TrafficCounters, seconds: float, now: float
) -> _ListenerCounters | None:
    """Return the new entry of a listener; None if its counters have grown by more than is plausible."""
    old, counted = (known.reported, known.accepted) if known else (TrafficCounters(), TrafficCounters())
    grown = {name: getattr(told, name) - getattr(old, name) for name in CUMULATIVE_COUNTERS}
    if told.active > MAX_GROWTH_PER_SECOND.active or any(
        more > getattr(MAX_GROWTH_PER_SECOND, name) * seconds for name, more in grown.items()
    ):
        return None
    if min(grown.values()) < 0:  # the node has restarted its count
        grown = dict.fromkeys(CUMULATIVE_COUNTERS, 0)
    growth = TrafficCounters(**grown)
    return _ListenerCounters(reported=told, accepted=replace(counted + growth, active=told.active), at=now)

"""What the nodes have told of their counts, in memory: after a start of the server each node tells it again.

A sum that has grown since the node told it last counts by that growth. A sum that has fallen says that the node has
lost its file: counting goes on from there. A sum that has grown faster than wires and processors can is not believed.
The sums of a silent node still count, for a day; the open connections that it told do not.

What a node had counted when it fell silent is stored (`model/silence.py`). A server that did not hear it, or missed its
last words, takes it from there; so all say the same, and go on from the same if the node is heard again.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from operator import itemgetter

from immutables import Map

from fairlead.changes.silence import TOGETHER
from fairlead.model.figures import Figures
from fairlead.model.silence import SilentNode
from fairlead.model.steps import Steps, at_once, in_order

SILENCES = 3
"""Intervals after which a node that was to tell something again is silent."""
MEMORY = 86_400.0
"""Seconds of silence after which a node is forgotten, and what it counted with it."""
MOST = Figures(connections=10**6, errors=10**6, bytes_in=5 * 10**10, bytes_out=5 * 10**10, active=10**7)
"""More than a node can have of one listener: opened, turned away, received and sent (400 Gbit/s each) in a second; open
at once."""
GROWING = tuple(field.name for field in fields(Figures) if field.name != "active")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """Of one listener on one node."""

    told: Figures
    """By the node, and believed."""
    counted: Figures
    """What it comes to."""
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    entries: Mapping[str, _Entry]
    """By listener."""
    until: float
    """When the node is silent, unless it tells something again."""
    heard: datetime
    is_own: bool = True
    """Whether this server heard it; else it was stored."""


class NodeCounts:
    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        stored: Callable[[], Mapping[str, SilentNode]] = Map,
    ) -> None:
        """`stored` is what is kept of nodes that have fallen silent."""
        self._clock, self._wall = clock, wall
        self._stored = stored
        self._known: Mapping[str, SilentNode] = {}
        """Of what is stored, all that was looked at."""
        self._reports: dict[str, _Report] = {}
        self._counted: dict[str, set[str]] = {}
        """Listener -> the nodes that have counted for it: reading a listener costs these only."""
        self._take_stored(clock())  # whoever asked first would keep all others waiting

    def report(
        self, chassis: str, figures: Mapping[str, Figures], interval: float, age: Callable[[str], float]
    ) -> list[str]:
        """`reporting` without a rest."""
        return at_once(self.reporting(chassis, figures, interval, age))

    def reporting(
        self, chassis: str, figures: Mapping[str, Figures], interval: float, age: Callable[[str], float]
    ) -> Steps[list[str]]:
        """All that a node has to tell, and after how many seconds it will do that again.

        `age` is that of a listener, in seconds: nothing was counted for it before. Answers the listeners of which
        nothing new is believed.
        """
        now = self._clock()
        self._forget(now)
        self._take_stored(now)
        before = self._reports[chassis].entries if chassis in self._reports else {}
        entries: dict[str, _Entry] = {}
        doubtful: list[str] = []
        for listener, told in figures.items():
            known = before.get(listener)
            since = (now - known.at if known else age(listener)) + interval
            entry = _believe(known, told, since, now)
            if entry is None:
                doubtful.append(listener)
                entry = known
            if entry is not None:
                entries[listener] = entry
            yield
        self._replace(chassis, _Report(entries=entries, until=now + SILENCES * interval, heard=self._wall()))
        return doubtful

    def total(self, listeners: Iterable[str]) -> Figures | None:
        """Of these listeners on all nodes; None while no node has told anything."""
        now, total = self._clock(), Figures()
        self._take_stored(now)
        if not self._reports:
            return None
        for listener in listeners:
            for chassis in self._counted.get(listener, ()):
                report = self._reports[chassis]
                figures = report.entries[listener].counted
                total += figures if now < report.until else replace(figures, active=0)
        return total

    def __len__(self) -> int:
        """How many nodes are remembered."""
        return len(self._reports)

    @property
    def nodes(self) -> int:
        """How many tell what they count, and are not silent."""
        now = self._clock()
        return sum(1 for report in self._reports.values() if now < report.until)

    def silent(self) -> Mapping[str, float]:
        """The nodes that this server heard itself and hears no more -> for how many seconds they are silent."""
        now = self._clock()
        reports = self._reports.items()
        return {chassis: now - each.until for chassis, each in reports if each.is_own and each.until <= now}

    def is_heard(self, chassis: str) -> bool:
        report = self._reports.get(chassis)
        return report is not None and self._clock() < report.until

    def heard_at(self, chassis: str) -> datetime:
        return self._reports[chassis].heard

    def last_words(self, chassis: str) -> Steps[SilentNode]:
        """What is to be stored of a silent one; nothing yet of what it had seen."""
        report = self._reports[chassis]
        counted, told = [], []
        for listener, each in (yield from in_order([*report.entries.items()], itemgetter(0))):
            counted.append((listener, replace(each.counted, active=0)))
            if each.told != each.counted:
                told.append((listener, replace(each.told, active=0)))
            yield
        return SilentNode(name=chassis, since=report.heard, counted=tuple(counted), told=tuple(told))

    def _take_stored(self, now: float) -> None:
        """What is newer than what this server has heard itself."""
        stored, known = self._stored(), self._known
        if stored is known:
            return
        self._known = stored
        for chassis, node in stored.items():
            if node is known.get(chassis):
                continue
            own = self._reports.get(chassis)
            if own is None or own.heard + TOGETHER < node.since:
                self._replace(chassis, _stored_report(node, now - _seconds(self._wall() - node.since)))

    def _replace(self, chassis: str, report: _Report | None) -> None:
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
        for chassis in [name for name, report in self._reports.items() if report.until + MEMORY < now]:
            self._replace(chassis, None)


def _seconds(time_ago: timedelta) -> float:
    return max(0.0, time_ago.total_seconds())


def _stored_report(node: SilentNode, at: float) -> _Report:
    """`at` is when the node was heard last."""
    told = dict(node.told)
    entries = {
        listener: _Entry(told=told.get(listener, counted), counted=counted, at=at) for listener, counted in node.counted
    }
    return _Report(entries=entries, until=at, heard=node.since, is_own=False)


def _believe(known: _Entry | None, told: Figures, seconds: float, now: float) -> _Entry | None:
    """What comes of the sums; None when nobody could have counted so much since."""
    old, counted = (known.told, known.counted) if known else (Figures(), Figures())
    grown = {name: getattr(told, name) - getattr(old, name) for name in GROWING}
    if told.active > MOST.active or any(more > getattr(MOST, name) * seconds for name, more in grown.items()):
        return None
    if min(grown.values()) < 0:  # it begins anew
        grown = dict.fromkeys(GROWING, 0)
    growth = Figures(**grown)
    return _Entry(told=told, counted=replace(counted + growth, active=told.active), at=now)

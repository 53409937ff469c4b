"""What the nodes have told of their counts, in memory: after a start of the server each node tells it again.

A sum that has grown since the node told it last counts by that growth. A sum that has fallen says that the node has
lost its file: counting goes on from there. A sum that has grown faster than wires and processors can is not believed.
The sums of a silent node still count, for a day; the open connections that it told do not.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace

from fairlead.model.statistics import Figures
from fairlead.model.steps import Steps, at_once

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


class NodeCounts:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reports: dict[str, _Report] = {}
        self._counted: dict[str, set[str]] = {}
        """Listener -> the nodes that have counted for it: reading a listener costs these only."""

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
        self._replace(chassis, _Report(entries=entries, until=now + SILENCES * interval))
        return doubtful

    def total(self, listeners: Iterable[str]) -> Figures | None:
        """Of these listeners on all nodes; None while no node has told anything."""
        if not self._reports:
            return None
        now, total = self._clock(), Figures()
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

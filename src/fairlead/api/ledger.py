"""What the nodes have told of their counts, in memory: after a start of the server each tells it again.

Each report replaces the last of its node. Sums of a node that has fallen silent still count; what it said of open
connections does not.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from fairlead.model.statistics import Figures

SILENCES = 3
"""Intervals after which a node that was to tell something again is silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    figures: Mapping[str, Figures]
    """By listener."""
    until: float
    """When the node is silent, unless it tells something again."""


class Ledger:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reports: dict[str, _Report] = {}
        self._counted: dict[str, set[str]] = {}
        """Listener -> the nodes that have counted for it: reading a listener costs these only."""

    def report(self, chassis: str, figures: Mapping[str, Figures], interval: float) -> None:
        """All that a node has to tell, and after how many seconds it will do that again."""
        before = self._reports.get(chassis)
        for listener in set(before.figures if before else ()) - set(figures):
            self._counted[listener].discard(chassis)
            if not self._counted[listener]:
                del self._counted[listener]
        for listener in figures:
            self._counted.setdefault(listener, set()).add(chassis)
        self._reports[chassis] = _Report(figures=figures, until=self._clock() + SILENCES * interval)

    def total(self, listeners: Iterable[str]) -> Figures | None:
        """Of these listeners on all nodes; None while no node has told anything."""
        if not self._reports:
            return None
        now, total = self._clock(), Figures()
        for listener in listeners:
            for chassis in self._counted.get(listener, ()):
                report = self._reports[chassis]
                figures = report.figures[listener]
                total += figures if now < report.until else replace(figures, active=0)
        return total

    @property
    def nodes(self) -> int:
        """How many tell what they count, and are not silent."""
        now = self._clock()
        return sum(1 for report in self._reports.values() if now < report.until)

"""Sums of what a switch has counted, by listener. Pure: what was read, and whose it is, are arguments."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fairlead.drivers.ovn.counters import Count, Readings
from fairlead.model.statistics import CountedService, Figures

SAME_FLOW = 1.0
"""Seconds by which two looks may differ about when a flow was made."""


@dataclass(slots=True)
class Tally:
    """What was read last, and what has come together. A value that only its own methods change."""

    last: dict[CountedService, Mapping[str, Count]] = field(default_factory=dict)
    sums: dict[str, Figures] = field(default_factory=dict)
    """By listener."""

    def grown(self, readings: Readings) -> list[CountedService]:
        """Where something was counted since the last look, or something is open."""
        return [
            service
            for service, reading in readings.items()
            if reading.active or any(self._growth(service, reading.counts).values())
        ]

    def take(self, readings: Readings, listeners: Mapping[CountedService, str | None]) -> None:
        """Add what has grown to its listener; what is nobody's is dropped."""
        self.sums = {listener: replace(sums, active=0) for listener, sums in self.sums.items()}
        for service, listener in listeners.items():
            reading = readings[service]
            if listener is not None:
                grown = Figures(**self._growth(service, reading.counts), active=reading.active)
                self.sums[listener] = self.sums.get(listener, Figures()) + grown
        self.last = {service: reading.counts for service, reading in readings.items()}

    def forget(self, listeners: Iterable[str]) -> None:
        for listener in listeners:
            self.sums.pop(listener, None)

    def _growth(self, service: CountedService, counts: Mapping[str, Count]) -> dict[str, int]:
        last = self.last.get(service, {})
        return {name: _growth(last.get(name), count) for name, count in counts.items()}


def _growth(before: Count | None, now: Count) -> int:
    """A flow that was made anew has counted from nothing."""
    same = before is not None and before.cookie == now.cookie and abs(before.created - now.created) < SAME_FLOW
    return now.value - before.value if before is not None and same and now.value >= before.value else now.value

"""Sums of what a switch, or a plain host's kernel, and the proxies of a node have counted, by listener. Pure: what was
read, and whose it is, are arguments.

A connection that a proxy takes has passed the switch too. Of such a listener the proxies count, wherever it is, and a
switch only those that it turned away because no proxy served.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from fairlead.api.agent_messages import MOST_LISTENERS
from fairlead.model.figures import Figures
from fairlead.model.readings import Count, Readings
from fairlead.model.statistics import CountedService


@dataclass(slots=True)
class Tally:
    """What was read last, and what has come together. A value that only its own methods change."""

    last: dict[CountedService, Mapping[str, Count]] = field(default_factory=dict)
    sums: dict[str, Figures] = field(default_factory=dict)
    """By listener; as many as a server hears of. `active` is that of the switch."""
    processes: dict[str, Mapping[str, Figures]] = field(default_factory=dict)
    """What each process of a proxy had counted when it was looked at last, by listener."""

    def grown(self, readings: Readings) -> list[CountedService]:
        """Where something was counted since the last look, or something is open."""
        return [
            service
            for service, reading in readings.items()
            if reading.active or any(self._growth(service, reading.counts).values())
        ]

    def take(
        self, readings: Readings, listeners: Mapping[CountedService, str | None], proxied: Collection[str] = ()
    ) -> None:
        """Add what has grown to its listener; what is nobody's is dropped. `proxied` lead to proxies."""
        self.sums = {listener: replace(sums, active=0) for listener, sums in self.sums.items()}
        for service, listener in listeners.items():
            reading = readings[service]
            if listener is not None:
                grown = Figures(**self._growth(service, reading.counts), active=reading.active)
                self._add(listener, Figures(errors=grown.errors) if listener in proxied else grown)
        self.last = {service: reading.counts for service, reading in readings.items()}

    def take_process(self, process: str, counted: Mapping[str, Figures]) -> None:
        """All that a process has counted since it began; a look that comes late says nothing new."""
        last = dict(self.processes.get(process, {}))
        for listener, now in counted.items():
            before = last.get(listener, Figures())
            newest = before.raised(now)
            if newest != before:
                last[listener] = newest
                self._add(listener, newest.grown(before))
        self.processes[process] = last

    def forget_processes(self, gone: Iterable[str]) -> None:
        """Those that will never be looked at again."""
        for process in gone:
            self.processes.pop(process, None)

    @property
    def told(self) -> Mapping[str, Figures]:
        """What servers are told: the sums, with the connections that proxies have open."""
        told = dict(self.sums)
        for counted in self.processes.values():
            for listener, figures in counted.items():
                if figures.active and listener in told:
                    told[listener] += Figures(active=figures.active)
        return told

    def _add(self, listener: str, grown: Figures) -> None:
        if listener in self.sums or len(self.sums) < MOST_LISTENERS:
            self.sums[listener] = self.sums.get(listener, Figures()) + grown

    def forget(self, listeners: Iterable[str]) -> None:
        for listener in listeners:
            self.sums.pop(listener, None)

    def _growth(self, service: CountedService, counts: Mapping[str, Count]) -> dict[str, int]:
        last = self.last.get(service, {})
        return {name: _growth(last.get(name), count) for name, count in counts.items()}


def _growth(before: Count | None, now: Count) -> int:
    """A counter that was made anew has counted from nothing."""
    return now.value - before.value if before is not None and now.goes_on(before) else now.value

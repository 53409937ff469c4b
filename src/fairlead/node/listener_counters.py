"""Sums per listener of the counters of a switch or a plain host's kernel, and of the node's proxies. Pure: counters and
listeners are arguments.

A connection to a proxy also passes the switch. For a listener with proxies only the proxies' counters are used, on
every node, and from the switch only the connections it rejected because no proxy served.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from fairlead.agent_protocol.messages import MAX_LISTENERS
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.queries.counter_samples import CounterSamples, CounterValue
from fairlead.model.queries.statistics import CountedService


@dataclass(slots=True)
class CounterSums:
    """Last counters and the sums. Only its methods change it."""

    last: dict[CountedService, Mapping[str, CounterValue]] = field(default_factory=dict)
    sums: dict[str, TrafficCounters] = field(default_factory=dict)
    """Sums by listener, limited to the number in a report. `active` is that of the switch."""
    processes: dict[str, Mapping[str, TrafficCounters]] = field(default_factory=dict)
    """Last counters of each proxy process, by listener."""

    def changed_services(self, readings: CounterSamples) -> list[CountedService]:
        """Return the services with counters that have grown, or with active connections."""
        return [
            service
            for service, reading in readings.items()
            if reading.active or any(self._growth(service, reading.counts).values())
        ]

    def add(
        self, readings: CounterSamples, listeners: Mapping[CountedService, str | None], proxied: Collection[str] = ()
    ) -> None:
        """Add the increments to their listeners, and drop those without one. `proxied` are listeners with proxies."""
        self.sums = {listener: replace(sums, active=0) for listener, sums in self.sums.items()}
        for service, listener in listeners.items():
            reading = readings[service]
            if listener is not None:
                grown = TrafficCounters(**self._growth(service, reading.counts), active=reading.active)
                self._add(listener, TrafficCounters(errors=grown.errors) if listener in proxied else grown)
        self.last = {service: reading.counts for service, reading in readings.items()}

    def add_process(self, process: str, counted: Mapping[str, TrafficCounters]) -> None:
        """Add the counters of a proxy process. Counters that have not grown, as in a late reading, add nothing."""
        last = dict(self.processes.get(process, {}))
        for listener, now in counted.items():
            before = last.get(listener, TrafficCounters())
            newest = before.merge(now)
            if newest != before:
                last[listener] = newest
                self._add(listener, newest.increase_since(before))
        self.processes[process] = last

    def forget_processes(self, gone: Iterable[str]) -> None:
        """Forget processes that have ended."""
        for process in gone:
            self.processes.pop(process, None)

    @property
    def reported_sums(self) -> Mapping[str, TrafficCounters]:
        """Return the sums for the servers, including the open connections of proxies."""
        told = dict(self.sums)
        for counted in self.processes.values():
            for listener, figures in counted.items():
                if figures.active and listener in told:
                    told[listener] += TrafficCounters(active=figures.active)
        return told

    def _add(self, listener: str, grown: TrafficCounters) -> None:
        if listener in self.sums or len(self.sums) < MAX_LISTENERS:
            self.sums[listener] = self.sums.get(listener, TrafficCounters()) + grown

    def forget(self, listeners: Iterable[str]) -> None:
        for listener in listeners:
            self.sums.pop(listener, None)

    def _growth(self, service: CountedService, counts: Mapping[str, CounterValue]) -> dict[str, int]:
        last = self.last.get(service, {})
        return {name: _growth(last.get(name), count) for name, count in counts.items()}


def _growth(before: CounterValue | None, now: CounterValue) -> int:
    """Return the increment; a recreated counter starts at 0."""
    return now.value - before.value if before is not None and now.is_same_counter(before) else now.value

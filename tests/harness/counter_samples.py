"""Counter samples of a dataplane, as an agent reads and sums them."""

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.queries.counter_samples import CounterSample, CounterSamples, CounterValue
from fairlead.model.queries.statistics import ConntrackZone, CountedService, Datapath
from fairlead.node.listener_counters import CounterSums

WEB = CountedService(place=Datapath(1), transport=Transport.TCP, address=parse_address("10.0.0.10"), port=80)
DNS = CountedService(place=ConntrackZone("vm1"), transport=Transport.UDP, address=parse_address("fd00::10"), port=53)


def counted_sample(
    value: int, *, cookie: int = 1, created: float = 0.0, slack: float = 0.0, active: int = 0
) -> CounterSample:
    count = CounterValue(value=value, cookie=cookie, created=created, slack=slack)
    return CounterSample(counts={"connections": count}, active=active)


def add_to_tally(tally: CounterSums, *readings: CounterSamples, listener: str | None = "web") -> TrafficCounters | None:
    for each in readings:
        tally.add(each, dict.fromkeys(tally.changed_services(each), listener))
    return tally.sums.get("web")

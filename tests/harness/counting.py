"""Counter samples of a dataplane, as an agent reads and sums them."""

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.traffic_counters import Figures
from fairlead.model.queries.counter_samples import Count, Reading, Readings
from fairlead.model.queries.statistics import CountedService, Datapath, Zone
from fairlead.node.listener_counters import Tally

WEB = CountedService(place=Datapath(1), transport=Transport.TCP, address=parse_address("10.0.0.10"), port=80)
DNS = CountedService(place=Zone("vm1"), transport=Transport.UDP, address=parse_address("fd00::10"), port=53)


def counted(value: int, *, cookie: int = 1, created: float = 0.0, slack: float = 0.0, active: int = 0) -> Reading:
    count = Count(value=value, cookie=cookie, created=created, slack=slack)
    return Reading(counts={"connections": count}, active=active)


def take(tally: Tally, *readings: Readings, listener: str | None = "web") -> Figures | None:
    for each in readings:
        tally.take(each, dict.fromkeys(tally.grown(each), listener))
    return tally.sums.get("web")

"""Kernel counters of the plain hosts of a fabric."""

from collections import Counter
from collections.abc import Callable
from contextlib import closing

from fairlead.drivers.native.nftables.counters import KernelCounters
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.queries.counter_samples import CounterSamples
from fairlead.model.queries.statistics import CountedService
from harness.fabric import HOSTS, Fabric

BOOT_ID = "one"


def accept_all(_: CountedService) -> bool:
    return True


def read(
    site: Fabric, number: int, is_ours: Callable[[CountedService], bool] = accept_all, *, boot: str = BOOT_ID
) -> CounterSamples:
    """Read the counters of one host, as a newly started agent does."""
    with site.hosts[number].inside(), closing(KernelCounters("fairlead", boot, 100_000)) as counters:
        return counters.read(is_ours)


def values(readings: CounterSamples, name: str) -> dict[CountedService, int]:
    """Values of this counter, for services that have it."""
    return {each: reading.counts[name].value for each, reading in readings.items() if name in reading.counts}


def total(site: Fabric, name: str) -> Counter[CountedService]:
    """Sum over the hosts, by service."""
    return sum((Counter(values(read(site, each), name)) for each in HOSTS), Counter[CountedService]())


def active(site: Fabric, transport: Transport) -> int:
    """Open connections, summed over the hosts."""
    readings = [each for number in HOSTS for each in read(site, number).items()]
    return sum(reading.active for service, reading in readings if service.transport is transport)

"""Counters of a plain host, mapped to listeners by its slice, without a request to a server."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from immutables import Map

from fairlead.drivers.native.nftables.counters import KernelCounters
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.queries.counter_samples import CounterSamples
from fairlead.model.queries.proxies import uses_proxies
from fairlead.model.queries.statistics import CountedService, listener_at
from fairlead.node.server_requests import ListenerLookup, ReportResult
from fairlead.node.slice_view import SliceView


class CounterSink(Protocol):
    """Interface for sending sums to the servers."""

    async def report(self, chassis: str, interval: int, sums: Mapping[str, TrafficCounters]) -> ReportResult: ...


class HostCounterSource:
    """Source of counters that takes the place of a switch, and of the servers' listener lookup."""

    def __init__(self, given: SliceView, counters: KernelCounters, servers: CounterSink) -> None:
        self._slice = given
        self._counters = counters
        self._servers = servers
        self._balancers: Map[str, LoadBalancer] = Map()
        self._by_vip: Mapping[IPAddress, LoadBalancer] = {}

    async def name(self) -> str:
        """Return the chassis' name."""
        return self._slice.name

    async def read(self) -> CounterSamples:
        """Read the counters. It waits for a slice from a server, because the file of an earlier process may lack a
        counted load balancer. Raises DriverError, and OSError."""
        await self._slice.synced.wait()
        return await asyncio.to_thread(self._counters.read, partial(_has_listener, self._vips()))

    async def find_listeners(self, _: str, services: Sequence[CountedService]) -> ListenerLookup:
        vips, snapshot = self._vips(), self._slice.snapshot
        found = [listener_at(vips[each.address], each) if each.address in vips else None for each in services]
        proxied = {each for each in {*found} if each is not None and uses_proxies(snapshot, each)}
        return ListenerLookup(listeners=found, proxied=proxied)

    async def report(self, chassis: str, interval: int, sums: Mapping[str, TrafficCounters]) -> ReportResult:
        return await self._servers.report(chassis, interval, sums)

    def _vips(self) -> Mapping[IPAddress, LoadBalancer]:
        """Return address -> load balancer for all VIPs of the slice; rebuilt when a load balancer has changed."""
        balancers = self._slice.snapshot.load_balancers
        if balancers is not self._balancers:
            self._by_vip = {vip.address: balancer for balancer in balancers.values() for vip in balancer.vips}
            self._balancers = balancers
        return self._by_vip


def _has_listener(vips: Mapping[IPAddress, LoadBalancer], service: CountedService) -> bool:
    balancer = vips.get(service.address)
    return balancer is not None and listener_at(balancer, service) is not None

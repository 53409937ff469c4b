"""Counters of a plain host, mapped to listeners by its slice, without a request to a server."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from immutables import Map

from fairlead.drivers.native.nftables.counters import Counters
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.traffic_counters import Figures
from fairlead.model.queries.counter_samples import Readings
from fairlead.model.queries.proxies import leads_to_proxies
from fairlead.model.queries.statistics import CountedService, listener_at
from fairlead.node.server_requests import Told, Whose
from fairlead.node.slice_view import Given


class Tells(Protocol):
    """Interface for sending sums to the servers."""

    async def tell(self, chassis: str, interval: int, sums: Mapping[str, Figures]) -> Told: ...


class HostCounting:
    """Source of counters that takes the place of a switch, and of the servers' listener lookup."""

    def __init__(self, given: Given, counters: Counters, servers: Tells) -> None:
        self._given = given
        self._counters = counters
        self._servers = servers
        self._balancers: Map[str, LoadBalancer] = Map()
        self._at: Mapping[IPAddress, LoadBalancer] = {}

    async def name(self) -> str:
        """Return the chassis' name."""
        return self._given.name

    async def read(self) -> Readings:
        """Read the counters. It waits for a slice from a server, because the file of an earlier process may lack a
        counted load balancer. Raises DriverError, and OSError."""
        await self._given.heard.wait()
        return await asyncio.to_thread(self._counters.read, partial(_is_there, self._vips()))

    async def ask_whose(self, _: str, services: Sequence[CountedService]) -> Whose:
        vips, snapshot = self._vips(), self._given.snapshot
        found = [listener_at(vips[each.address], each) if each.address in vips else None for each in services]
        proxied = {each for each in {*found} if each is not None and leads_to_proxies(snapshot, each)}
        return Whose(listeners=found, proxied=proxied)

    async def tell(self, chassis: str, interval: int, sums: Mapping[str, Figures]) -> Told:
        return await self._servers.tell(chassis, interval, sums)

    def _vips(self) -> Mapping[IPAddress, LoadBalancer]:
        """Return address -> load balancer for all VIPs of the slice; rebuilt when a load balancer has changed."""
        balancers = self._given.snapshot.load_balancers
        if balancers is not self._balancers:
            self._at = {vip.address: balancer for balancer in balancers.values() for vip in balancer.vips}
            self._balancers = balancers
        return self._at


def _is_there(vips: Mapping[IPAddress, LoadBalancer], service: CountedService) -> bool:
    balancer = vips.get(service.address)
    return balancer is not None and listener_at(balancer, service) is not None

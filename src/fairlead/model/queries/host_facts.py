"""Owners affected by the observations of a plain host: unreachable peers, recovered members and its own addresses."""

from collections.abc import Iterator, Mapping
from ipaddress import ip_network
from typing import TypeAlias

from immutables import Map

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.health import HealthKey
from fairlead.model.documents.loadbalancer import LoadBalancer, probed_address
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.host_proxies import owners_with_host_proxies
from fairlead.model.queries.placement import find_balancers_in_prefixes
from fairlead.model.snapshot import Snapshot

OwnAddressUpdate: TypeAlias = Mapping[str, frozenset[IPAddress] | None]
"""Host name -> its own addresses; None removes them."""


def dependents_of_unreachable_hosts(old: Snapshot, new: Snapshot, news: frozenset[str]) -> Iterator[Owner]:
    """Yield load balancers with members behind a host that was lost or has returned, or with proxies on hosts."""
    hosts = (new.hosts[each] for each in old.lost_hosts ^ news if each in new.hosts)
    found = find_balancers_in_prefixes(new, (prefix.cidr for host in hosts for prefix in host.prefixes))
    yield from (Owner(Kind.LOAD_BALANCER, each) for each in found)
    yield from owners_with_host_proxies(new)


def dependents_of_recoveries(old: Snapshot, new: Snapshot, news: Map[str, frozenset[HealthKey]]) -> Iterator[Owner]:
    changed = (each for each in sorted({*old.returned, *news}) if old.returned.get(each) != news.get(each))
    return (Owner(Kind.LOAD_BALANCER, each) for each in changed)


def dependents_of_own_addresses(old: Snapshot, new: Snapshot, news: OwnAddressUpdate) -> Iterator[Owner]:
    """Yield load balancers that may have a member at an address that a host has gained or lost."""
    nothing = frozenset[IPAddress]()
    both = ((old.own_addresses.get(each, nothing), new.own_addresses.get(each, nothing)) for each in news)
    changed = {address for before, after in both for address in before ^ after}
    near = find_balancers_in_prefixes(new, map(ip_network, changed))
    found = (each for each in near if not changed.isdisjoint(_addresses(new.load_balancers[each])))
    return (Owner(Kind.LOAD_BALANCER, each) for each in found)


def _addresses(balancer: LoadBalancer) -> Iterator[IPAddress]:
    """Yield the addresses of members, their monitor addresses, and the previous owners of slots."""
    for pool in balancer.pools:
        for member in pool.members:
            yield from (member.address, probed_address(member))
    yield from (each.before for each in balancer.moved)

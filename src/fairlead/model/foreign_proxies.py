"""Proxies on networks of others: who has to make a port there, on which chassis, and which ones are to go.

Addresses are theirs to give. So servers say what they would write on a network of their own, as a fact, and whoever
keeps load balancers for another service does it by that service's own means (Octavia's provider agent in Neutron). The
port that comes back is a proxy's like any other (`model/proxy_place.py`).
"""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from fairlead.model.foreign import SERVED, ForeignNetwork
from fairlead.model.indexes import NO_IDS
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.names import describe_owner
from fairlead.model.network import Network
from fairlead.model.observed_proxy import WantedProxies
from fairlead.model.owner import Kind, Owner
from fairlead.model.proxy_place import ProxyPlace, place_of
from fairlead.model.snapshot import Snapshot
from fairlead.model.steps import Steps

NOTHING = WantedProxies()
WantedNews: TypeAlias = Mapping[ProxyPlace, WantedProxies | None]
"""None where all is as it should be."""
RefusedNews: TypeAlias = Mapping[str, str | None]
"""Network -> why; None for one on which nothing is refused any more."""


def makes_ports(network: Network | None, balancer: LoadBalancer) -> bool:
    """Whether somebody makes the ports of this load balancer's proxies on that network."""
    return isinstance(network, ForeignNetwork) and network.writer in SERVED and balancer.kept is not None


def proxied_network(snapshot: Snapshot, balancer: LoadBalancer) -> str | None:
    """The network of others on which this load balancer needs proxies; None if it needs none there."""
    network = snapshot.networks.get(balancer.vip.network_id)
    is_proxied = balancer.id in snapshot.proxied.get(place_of(balancer), NO_IDS)
    return network.id if network is not None and is_proxied and makes_ports(network, balancer) else None


def wanted_there(snapshot: Snapshot, network_id: str) -> Steps[dict[ProxyPlace, WantedProxies]]:
    """All places with load balancers that lead to proxies on this network, and what differs there. What has a proxy's
    port on it and is none of these needs none any more."""
    found = dict[ProxyPlace, WantedProxies]()
    for balancer_id in snapshot.network_vips.get(network_id, NO_IDS):
        place = place_of(snapshot.load_balancers[balancer_id])
        if place in snapshot.proxied:
            found[place] = snapshot.wanted_proxies.get(place, NOTHING)
        yield
    return found


def led_from(snapshot: Snapshot, network_id: str) -> Iterator[str]:
    """The load balancers with VIPs on this network that lead to proxies."""
    for balancer_id in snapshot.network_vips.get(network_id, NO_IDS):
        if balancer_id in snapshot.proxied.get(place_of(snapshot.load_balancers[balancer_id]), NO_IDS):
            yield balancer_id


# Whom these facts concern


def served_at(old: Snapshot, new: Snapshot, news: WantedNews) -> Iterator[Owner]:
    """No row of theirs differs: who makes the ports hears of it."""
    yield from (Owner(Kind.LOAD_BALANCER, each) for place in sorted(news) for each in new.proxied.get(place, NO_IDS))


def refused_on(old: Snapshot, new: Snapshot, news: RefusedNews) -> Iterator[Owner]:
    yield from (Owner(Kind.LOAD_BALANCER, each) for network_id in news for each in led_from(new, network_id))


def describe_refused(snapshot: Snapshot, owner: Owner) -> str:
    balancer = snapshot.load_balancers[owner.id]
    why = snapshot.refused_proxies.get(balancer.vip.network_id, "they are given again")
    return f"the ports of the proxies of {describe_owner(snapshot, owner)}: {why}"

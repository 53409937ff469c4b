"""Proxies on unmanaged networks: the chassis that need a port for a proxy, and the ports to delete.

Only the manager of an unmanaged network can allocate addresses there. Servers therefore publish the ports that they
would create on a managed network as a fact, and an agent of that manager creates them (Octavia's provider agent in
Neutron). The resulting port is a normal proxy port (`model/documents/proxy_place.py`).
"""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.network import Network
from fairlead.model.documents.observed_proxy import ProxyPortChanges
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.proxy_place import ProxyPlace, place_of
from fairlead.model.documents.unmanaged import SUPPORTED_WRITERS, UnmanagedNetwork
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps

NO_PROXY_CHANGES = ProxyPortChanges()
ProxyPortUpdate: TypeAlias = Mapping[ProxyPlace, ProxyPortChanges | None]
"""Place -> ports to create and delete; None if nothing differs."""
RejectionUpdate: TypeAlias = Mapping[str, str | None]
"""Network id -> reason why ports are rejected; None if no port is rejected any more."""


def creates_proxy_ports(network: Network | None, balancer: LoadBalancer) -> bool:
    """Return whether an agent creates the ports of this load balancer's proxies on the network."""
    return isinstance(network, UnmanagedNetwork) and network.writer in SUPPORTED_WRITERS and balancer.kept is not None


def proxied_network(snapshot: Snapshot, balancer: LoadBalancer) -> str | None:
    """Return the unmanaged network where this load balancer needs proxies; None if it needs none there."""
    network = snapshot.networks.get(balancer.vip.network_id)
    is_proxied = balancer.id in snapshot.proxied.get(place_of(balancer), NO_IDS)
    return network.id if network is not None and is_proxied and creates_proxy_ports(network, balancer) else None


def required_proxy_changes(snapshot: Snapshot, network_id: str) -> Steps[dict[ProxyPlace, ProxyPortChanges]]:
    """Return all places with proxied load balancers on this network, with their differences. A place with proxy ports
    that is not in the result no longer needs them."""
    found = dict[ProxyPlace, ProxyPortChanges]()
    for balancer_id in snapshot.network_vips.get(network_id, NO_IDS):
        place = place_of(snapshot.load_balancers[balancer_id])
        if place in snapshot.proxied:
            found[place] = snapshot.wanted_proxies.get(place, NO_PROXY_CHANGES)
        yield
    return found


def proxied_balancers(snapshot: Snapshot, network_id: str) -> Iterator[str]:
    """Yield the load balancers with a VIP on this network that use proxies."""
    for balancer_id in snapshot.network_vips.get(network_id, NO_IDS):
        if balancer_id in snapshot.proxied.get(place_of(snapshot.load_balancers[balancer_id]), NO_IDS):
            yield balancer_id


# Owners that these facts affect


def owners_of_proxy_port_changes(old: Snapshot, new: Snapshot, news: ProxyPortUpdate) -> Iterator[Owner]:
    """Yield load balancers with a change in their wanted proxy ports. Their rows do not change, but the agent that
    creates the ports is notified."""
    yield from (Owner(Kind.LOAD_BALANCER, each) for place in sorted(news) for each in new.proxied.get(place, NO_IDS))


def owners_of_rejections(old: Snapshot, new: Snapshot, news: RejectionUpdate) -> Iterator[Owner]:
    yield from (Owner(Kind.LOAD_BALANCER, each) for network_id in news for each in proxied_balancers(new, network_id))

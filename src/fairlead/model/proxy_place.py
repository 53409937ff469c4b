"""Whose listeners a proxy takes: those of one project with VIPs on one network, or on the gateway of one router.

So no proxy serves two tenants, on whosever network they meet. Which place a load balancer's proxies are of, and which
one a proxy's port is for, follows from that document alone (`ProxyPlace`).
"""

from typing import NamedTuple

from fairlead.model.foreign import is_foreign
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.network import Port, PortUse


class ProxyPlace(NamedTuple):
    """The key under which a load balancer finds its proxies, and these find whom they serve."""

    at: str
    """The VIPs' network, or the router whose gateway has them."""
    project_id: str


def place_of(balancer: LoadBalancer) -> ProxyPlace:
    return ProxyPlace(balancer.router_id or balancer.vip.network_id, balancer.project_id)


def place_of_port(port: Port) -> ProxyPlace | None:
    """None of a port that is no proxy's: others may call ports of theirs as they like."""
    if port.use is not PortUse.PROXY or is_foreign(port):
        return None
    return ProxyPlace(port.device_id, port.project_id)

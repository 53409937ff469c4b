"""Whose listeners a proxy takes: those of one project with VIPs on one network, or on the gateway of one router.

So no proxy serves two tenants, on whosever network they meet. Which place a load balancer's proxies are of, and which
one a proxy's port is for, follows from that document alone (`ProxyPlace`).

On networks of Neutron's a proxy's port is one that Neutron made (ADR 58). It says in its device on which chassis it is,
and it is believed by whose it is: it serves nobody but the project that has it, and only who administers all binds a
port to a machine.
"""

from typing import NamedTuple

from fairlead.model.addresses import derive_mac
from fairlead.model.foreign import PROXY_OWNER, SERVED, ForeignPort
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.network import Port, PortUse

DEVICE = "fairlead-proxy-"
"""How the `device_id` of a proxy's port begins on a network of others; the network's id and the chassis follow."""


class ProxyPlace(NamedTuple):
    """The key under which a load balancer finds its proxies, and these find whom they serve."""

    at: str
    """The VIPs' network, or the router whose gateway has them."""
    project_id: str


def place_of(balancer: LoadBalancer) -> ProxyPlace:
    return ProxyPlace(balancer.router_id or balancer.vip.network_id, balancer.project_id)


def place_of_port(port: Port) -> ProxyPlace | None:
    """None of a port that is no proxy's: others may call ports of theirs as they like."""
    if port.use is not PortUse.PROXY:
        return None
    if not isinstance(port, ForeignPort):
        return ProxyPlace(port.device_id, port.project_id)
    is_bound = port.device_owner == PROXY_OWNER and bool(port.host and proxy_chassis(port))
    return ProxyPlace(port.network_id, port.project_id) if is_bound and port.writer in SERVED else None


def host_proxy_id(place: ProxyPlace, host: str) -> str:
    """What is told of a plain host's proxy is told under this: it has no port. The host's agent leaves out the host."""
    return "/".join((*place, host))


def place_of_host_proxy(identity: str) -> ProxyPlace | None:
    """None for what is called otherwise."""
    network_id, _, rest = identity.partition("/")
    project_id, slash, _ = rest.rpartition("/")
    return ProxyPlace(network_id, project_id) if slash else None


def proxy_device(network_id: str, chassis: str) -> str:
    """The `device_id` of a proxy's port on a network of others."""
    return f"{DEVICE}{network_id}-{chassis}"


def proxy_mac(port: Port) -> str:
    """Where nobody serves DHCP Neutron does not say which one its port has: it was asked for this one."""
    return port.mac_address or device_mac(port.device_id, port.project_id)


def device_mac(device_id: str, project_id: str) -> str:
    """No network has two ports with one MAC, so whoever asks for a second one of this device is refused."""
    return derive_mac(f"{device_id}/{project_id}")


def proxy_chassis(port: Port) -> str:
    """On which the port of a proxy is. What others call its host is the machine's name; so it says the chassis itself,
    or nothing if it is no proxy's."""
    if not isinstance(port, ForeignPort):
        return port.host
    before, _, chassis = port.device_id.partition(proxy_device(port.network_id, ""))
    return "" if before else chassis

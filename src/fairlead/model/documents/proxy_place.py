"""Place of a proxy: the load balancers of one project with VIPs on one network, or on the gateway of one router.

A proxy therefore never serves two tenants, on any network. The place (`ProxyPlace`) of a load balancer, and of a
proxy's port, follows from that document alone.

On Neutron's networks, Neutron creates a proxy's port (ADR 58). The port's `device_id` names its chassis. The port is
accepted by its project: it serves that project only, and only administrators can bind a port to a chassis.
"""

from typing import NamedTuple

from fairlead.model.documents.addresses import derive_mac
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.network import Port, PortUse
from fairlead.model.documents.unmanaged import PROXY_DEVICE_OWNER, SUPPORTED_WRITERS, UnmanagedPort

PROXY_DEVICE_PREFIX = "fairlead-proxy-"
"""Prefix of the `device_id` of a proxy's port on an unmanaged network; the network's id and the chassis follow."""


class ProxyPlace(NamedTuple):
    """Key that relates load balancers and proxies."""

    at: str
    """Network of the VIPs, or router with the VIPs on its gateway."""
    project_id: str


def place_of(balancer: LoadBalancer) -> ProxyPlace:
    return ProxyPlace(balancer.router_id or balancer.vip.network_id, balancer.project_id)


def place_of_port(port: Port) -> ProxyPlace | None:
    """Return the place of a proxy's port; None for other ports. Tenants can name ports on unmanaged networks freely, so
    the device owner, host and device id must all match."""
    if port.use is not PortUse.PROXY:
        return None
    if not isinstance(port, UnmanagedPort):
        return ProxyPlace(port.device_id, port.project_id)
    is_bound = port.device_owner == PROXY_DEVICE_OWNER and bool(port.host and proxy_chassis(port))
    return ProxyPlace(port.network_id, port.project_id) if is_bound and port.writer in SUPPORTED_WRITERS else None


def host_proxy_id(place: ProxyPlace, host: str) -> str:
    """Return the id of a plain host's proxy, which has no port, in reports. The host's agent omits the host name."""
    return "/".join((*place, host))


def place_of_host_proxy(identity: str) -> ProxyPlace | None:
    """Return the place of a plain host's proxy; None for other ids."""
    network_id, _, rest = identity.partition("/")
    project_id, slash, _ = rest.rpartition("/")
    return ProxyPlace(network_id, project_id) if slash else None


def proxy_device(network_id: str, chassis: str) -> str:
    """Return the `device_id` of a proxy's port on an unmanaged network."""
    return f"{PROXY_DEVICE_PREFIX}{network_id}-{chassis}"


def proxy_mac(port: Port) -> str:
    """Return the port's MAC. Neutron reports none for networks without DHCP;
    the port was created with the derived MAC."""
    return port.mac_address or device_mac(port.device_id, port.project_id)


def device_mac(device_id: str, project_id: str) -> str:
    """Return the MAC for this device. A network rejects duplicate MACs,
    so a second port for the same device cannot be created."""
    return derive_mac(f"{device_id}/{project_id}")


def proxy_chassis(port: Port) -> str:
    """Return the chassis of a proxy's port; empty if it is no proxy. On unmanaged networks the host is a machine's
    name, so the chassis is in the `device_id`."""
    if not isinstance(port, UnmanagedPort):
        return port.host
    before, _, chassis = port.device_id.partition(proxy_device(port.network_id, ""))
    return "" if before else chassis

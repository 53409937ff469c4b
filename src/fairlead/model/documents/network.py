"""Networks with subnets, ports, routers and floating IPs, in Neutron's terms.
Each class with an owner is one document."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from fairlead.model.documents.addresses import IPAddress, IPNetwork


class PortUse(StrEnum):
    """Use of a port. The values are Neutron's `device_owner`; a machine's port can have any other value."""

    MACHINE = ""
    ROUTER_INTERFACE = "network:router_interface"
    """Interface of the router in `device_id`."""
    ROUTER_GATEWAY = "network:router_gateway"
    """External gateway port of the router in `device_id`."""
    FLOATING_IP = "network:floatingip"
    """Port with the address of the floating IP in `device_id`."""
    VIP = "Octavia"
    """Port of a VIP; its `device_id` is `lb-<load balancer id>`, as in Octavia."""
    LOCAL_IP = "network:local_ip"
    """Port with the address of the Local IP in `device_id`, without a machine."""
    PROBE = "ovn-lb-hm:distributed"
    """Port with the source address of probes on its subnet, as in Octavia's OVN provider."""
    PROXY = "network:load_balancer_proxy"
    """Port of a chassis's proxy. Its `device_id` is the network of the VIPs, or the router that has them."""


_USES = {use.value: use for use in PortUse}
SYSTEM_USES = frozenset({PortUse.PROBE, PortUse.PROXY})
"""Uses of ports that no request creates or deletes.
Such a port exists while it is needed, and is deleted with its network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """Attributes of all resources of every API. Times are in UTC."""

    id: str
    project_id: str
    name: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    created_at: datetime
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationPool:
    """Range of addresses; both ends are included."""

    start: IPAddress
    end: IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    destination: IPNetwork
    nexthop: IPAddress


def sort_routes(routes: Iterable[Route]) -> tuple[Route, ...]:
    """Return the routes in canonical order."""
    return tuple(sorted(routes, key=lambda route: (str(route.destination), str(route.nexthop))))


class Ipv6Mode(StrEnum):
    """Assignment of IPv6 addresses to workloads (RFC 4862, RFC 8415), in Neutron's terms."""

    DHCPV6_STATEFUL = "dhcpv6-stateful"
    DHCPV6_STATELESS = "dhcpv6-stateless"
    SLAAC = "slaac"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnet(Resource):
    cidr: IPNetwork
    gateway: IPAddress | None
    allocation_pools: tuple[AllocationPool, ...]
    enable_dhcp: bool = True
    dns_nameservers: tuple[IPAddress, ...] = ()
    host_routes: tuple[Route, ...] = ()
    ipv6_address_mode: Ipv6Mode | None = None
    ipv6_ra_mode: Ipv6Mode | None = None


class SegmentType(StrEnum):
    FLAT = "flat"
    VLAN = "vlan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Provider segment, in Neutron's terms: a physical network, which chassis map to a bridge, or a VLAN on it."""

    type: SegmentType
    physical_network: str
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Network(Resource):
    admin_state_up: bool = True
    mtu: int
    """MTU of the workloads' interfaces in bytes: that of the underlay minus the tunnel header."""
    shared: bool = False
    external: bool = False
    """Whether all projects may have router gateways and floating IPs on the network."""
    segment: Segment | None = None
    announced: bool = False
    """Whether the network has no physical segment and hosts announce its addresses one by one, so all of them are VIPs.
    An operator declares the network and its subnets; announced networks never overlap."""
    port_security_enabled: bool = True
    """Default for new ports."""
    subnets: tuple[Subnet, ...] = ()
    config: tuple[tuple[str, str], ...] = ()
    """Sorted keys and values of a network from a declarative spec, as given in the request, for display."""
    routes: tuple[IPNetwork, ...] = ()
    """Prefixes of an external network that are routed to it from outside and can be used behind it, for VIPs. A prefix
    outside all subnets has its own subnet, without automatic allocation."""
    router_id: str | None = None
    """Router that was created with the network and is deleted with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedIP:
    subnet_id: str
    address: IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Port(Resource):
    network_id: str
    mac_address: str
    fixed_ips: tuple[FixedIP, ...] = ()
    admin_state_up: bool = True
    device_id: str = ""
    device_owner: str = ""
    host: str = ""
    """`binding:host_id`: the chassis where the workload should run; the actual chassis is observed."""
    port_security_enabled: bool = True

    @property
    def use(self) -> PortUse:
        return _USES.get(self.device_owner, PortUse.MACHINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalGateway:
    """External gateway of a router; its addresses are those of the port."""

    network_id: str
    port_id: str
    enable_snat: bool = True
    """SNAT of IPv4 to an address of the port."""
    enable_snat_ipv6: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Router(Resource):
    admin_state_up: bool = True
    routes: tuple[Route, ...] = ()
    gateway: ExternalGateway | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatingIP(Resource):
    """Address of an external network that leads to a fixed address; a port of its own holds it.

    `port_id`, `fixed_address` and `router_id` are all set or all None.
    """

    network_id: str
    address: IPAddress
    address_port_id: str
    port_id: str | None = None
    fixed_address: IPAddress | None = None
    router_id: str | None = None


def find_subnet(network: Network, subnet_id: str) -> Subnet | None:
    return next((subnet for subnet in network.subnets if subnet.id == subnet_id), None)


def subnet_with(network: Network, address: IPAddress) -> Subnet | None:
    """Return the subnet that contains the address; None if there is none."""
    return next((subnet for subnet in network.subnets if address in subnet.cidr), None)


def is_routed(network: Network, subnet: Subnet) -> bool:
    """Return whether the subnet exists for a route only.
    It is then on no segment, and its addresses are not allocated automatically."""
    return subnet.cidr in network.routes and subnet.gateway is None and not subnet.allocation_pools


def has_destination(floating_ip: FloatingIP, port: Port | None) -> bool:
    """Return whether the port has the fixed address of the floating IP."""
    return port is not None and any(fixed.address == floating_ip.fixed_address for fixed in port.fixed_ips)


def clear_destination(floating_ip: FloatingIP) -> FloatingIP:
    """Return the floating IP without a destination."""
    return replace(floating_ip, port_id=None, fixed_address=None, router_id=None)

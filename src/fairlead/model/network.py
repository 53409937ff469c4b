"""Networks with their subnets, ports and routers, by Neutron's names. Each class that has an owner is one document."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from fairlead.model.addresses import IPAddress, IPNetwork


class PortUse(StrEnum):
    """What a port is for. The values are Neutron's `device_owner`; a machine's port may have any other one too."""

    MACHINE = ""
    ROUTER_INTERFACE = "network:router_interface"
    """An interface of the router named by its `device_id`."""
    ROUTER_GATEWAY = "network:router_gateway"
    """By it the router named by its `device_id` is on an external network."""
    FLOATING_IP = "network:floatingip"
    """It holds the address of the floating IP named by its `device_id`."""
    VIP = "Octavia"
    """It holds a VIP; its `device_id` is `lb-<load balancer id>`, as Octavia writes it."""
    LOCAL_IP = "network:local_ip"
    """It holds the address of the Local IP named by its `device_id`, and is on no machine."""
    PROBE = "ovn-lb-hm:distributed"
    """It holds the address from which the members on its subnet are probed, as Octavia's OVN provider has it."""
    PROXY = "network:load_balancer_proxy"
    """A chassis's own proxy is behind it. Its `device_id` is the network of the VIPs, or the router that has them."""


_USES = {use.value: use for use in PortUse}
UNASKED = frozenset({PortUse.PROBE, PortUse.PROXY})
"""What no request makes or deletes: it comes with what needs it, and goes with its network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What every resource of every API has. Times are UTC."""

    id: str
    project_id: str
    name: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    created_at: datetime
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationPool:
    """Both ends belong to the pool."""

    start: IPAddress
    end: IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    destination: IPNetwork
    nexthop: IPAddress


def in_order(routes: Iterable[Route]) -> tuple[Route, ...]:
    """The one order of a set of routes."""
    return tuple(sorted(routes, key=lambda route: (str(route.destination), str(route.nexthop))))


class Ipv6Mode(StrEnum):
    """How a workload gets its IPv6 address (RFC 4862, RFC 8415), in Neutron's words."""

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
    """What a network is outside OVN, in Neutron's words: a wire that chassis map to a bridge, or a VLAN on it."""

    type: SegmentType
    physical_network: str
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Network(Resource):
    admin_state_up: bool = True
    mtu: int
    """Of the workloads' interfaces, in bytes: the underlay's less the tunnel's header."""
    shared: bool = False
    external: bool = False
    """Every project may have router gateways and floating IPs on it."""
    segment: Segment | None = None
    announced: bool = False
    """It is on no wire: hosts announce its addresses one by one, so these are VIPs and nothing else. An operator
    declares it and its subnets; no two such networks have an address in common."""
    port_security_enabled: bool = True
    """What new ports have, unless they are made otherwise."""
    subnets: tuple[Subnet, ...] = ()
    config: tuple[tuple[str, str], ...] = ()
    """Keys and values, sorted, of a network that was described as a whole: as they were said, to be shown again."""
    routes: tuple[IPNetwork, ...] = ()
    """Of an external network: prefixes that are led to it from outside, and may be used behind it: VIPs have
    addresses of them. One that is in no subnet has a subnet of its own, of which nothing is given out unasked."""
    router_id: str | None = None
    """The router that was made with the network, and goes with it."""


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
    """`binding:host_id`: the chassis on which the workload should run; on which it does is observed."""
    port_security_enabled: bool = True

    @property
    def use(self) -> PortUse:
        return _USES.get(self.device_owner, PortUse.MACHINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalGateway:
    """The addresses are those of the port."""

    network_id: str
    port_id: str
    enable_snat: bool = True
    """Of IPv4: what leaves has an address of the port."""
    enable_snat_ipv6: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Router(Resource):
    admin_state_up: bool = True
    routes: tuple[Route, ...] = ()
    gateway: ExternalGateway | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatingIP(Resource):
    """An address of an external network that leads to a fixed one; a port of its own holds it.

    `port_id`, `fixed_address` and `router_id` are there together or not at all.
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
    """The one that the address is in."""
    return next((subnet for subnet in network.subnets if address in subnet.cidr), None)


def is_routed(network: Network, subnet: Subnet) -> bool:
    """Whether the subnet is there for a route alone: it is on no wire, and no port gets an address of it unasked."""
    return subnet.cidr in network.routes and subnet.gateway is None and not subnet.allocation_pools


def is_reached(floating_ip: FloatingIP, port: Port | None) -> bool:
    """Whether the port has the address that the floating IP leads to."""
    return port is not None and any(fixed.address == floating_ip.fixed_address for fixed in port.fixed_ips)


def release(floating_ip: FloatingIP) -> FloatingIP:
    """Leading nowhere."""
    return replace(floating_ip, port_id=None, fixed_address=None, router_id=None)

"""Routers: interfaces, gateways to external networks, and floating IPs.

A router's gateway port is on one chassis at a time, the first live one of its list. All traffic from and to outside
passes there: load balancing for clients outside, NAT, and connection tracking of the replies.

Each router orders the deployment's chassis by rendezvous hashing, so that the load spreads, and adding or removing a
chassis moves only the routers that it gets or had.
"""

from collections.abc import Iterator
from hashlib import sha256

from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn import (
    GatewayChassis,
    LogicalRouter,
    LogicalRouterPort,
    LogicalSwitchPort,
    Nat,
    OvnRow,
    Pairs,
    StaticRoute,
    pairs,
)
from fairlead.model.documents.addresses import render_interface
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import (
    ExternalGateway,
    FixedIP,
    FloatingIP,
    Network,
    Port,
    Router,
    find_subnet,
    has_destination,
)
from fairlead.model.snapshot import Snapshot, has_working_gateway

PROVIDER = "ovn"
MAX_GATEWAY_CHASSIS = 5
"""Maximum gateway chassis of one router, as in Neutron: each monitors all others by BFD."""
ANYWHERE = {4: "0.0.0.0/0", 6: "::/0"}
MULTICAST = "mcast_flood"
"""The option of a switch port that receives all multicast. OVN 26.03 delivers a neighbour solicitation to a router only
for an address of the router's port or of one of its subnets (ovn-northd(8), "Destination Lookup"). Earlier versions
deliver it to every router; there the option changes nothing, because no switch snoops multicast."""


def router_rows(snapshot: Snapshot, router: Router) -> Iterator[OvnRow]:
    """Yield the rows of a router. Raises Unsupported."""
    yield LogicalRouter(name=router.id, title=router.name, enabled=router.admin_state_up)
    for port_id in snapshot.router_interfaces.get(router.id, NO_IDS):
        yield _router_port(snapshot, snapshot.ports[port_id])
    for route in router.routes:
        yield StaticRoute(router=router.id, ip_prefix=str(route.destination), nexthop=str(route.nexthop))
    if router.gateway is not None:
        yield from _gateway(snapshot, router, router.gateway)


def floating_ip_rows(snapshot: Snapshot, floating_ip: FloatingIP) -> Iterator[OvnRow]:
    """Yield the NAT entry, which makes the gateway announce the address and answer ARP for it.

    Also for a VIP: load balancers have the floating IP as another VIP, and other packets (ping, ports without a
    listener) go to the VIP's router through the NAT entry. Without its port a floating IP has no entry, because the
    fixed address may be reused, and without an address of the gateway neither, because the router has no gateway port
    (`_gateway`).
    """
    reached = has_destination(floating_ip, snapshot.ports.get(floating_ip.port_id or ""))
    router = snapshot.routers.get(floating_ip.router_id or "")
    if reached and router is not None and has_working_gateway(snapshot, router):
        yield Nat(
            name=floating_ip.id,
            router=router.id,
            type="dnat_and_snat",
            external_ip=str(floating_ip.address),
            logical_ip=str(floating_ip.fixed_address),
        )


def localnet_rows(network: Network) -> Iterator[OvnRow]:
    """Yield the `localnet` port; each chassis maps its physical network to a bridge (ovn-controller(8))."""
    if network.segment is not None:
        yield LogicalSwitchPort(
            name=f"wire-{network.id}",
            switch=network.id,
            type="localnet",
            addresses=("unknown",),
            options=pairs({"network_name": network.segment.physical_network}),
            tag=network.segment.id,
            tag_request=network.segment.id,
        )


def router_attachment(name: str, *, switch: str, router_port: str) -> LogicalSwitchPort:
    return LogicalSwitchPort(
        name=name, switch=switch, type="router", addresses=("router",), options=pairs({"router-port": router_port})
    )


def gateway_attachment(snapshot: Snapshot, port: Port) -> LogicalSwitchPort:
    """The chassis that has the gateway announces what is translated there (GARP). VIPs in tenants' networks are not."""
    options = {} if port.device_id not in snapshot.solicited_vips else {MULTICAST: "true"}
    options |= {
        "router-port": router_port_name(port.id),
        "nat-addresses": "router",
        "exclude-lb-vips-from-garp": "true",
    }
    return LogicalSwitchPort(
        name=port.id, switch=port.network_id, type="router", addresses=("router",), options=pairs(options)
    )


def router_port_name(port_id: str) -> str:
    return f"lrp-{port_id}"


def interface(network: Network, fixed: FixedIP) -> str:
    subnet = find_subnet(network, fixed.subnet_id)
    assert subnet is not None, f"{fixed} names no subnet of {network.id}"  # noqa: S101 - ensured by the API
    return render_interface(fixed.address, subnet.cidr)


def _router_port(snapshot: Snapshot, port: Port, options: Pairs = ()) -> LogicalRouterPort:
    network = snapshot.networks[port.network_id]
    return LogicalRouterPort(
        name=router_port_name(port.id),
        router=port.device_id,
        mac=port.mac_address,
        networks=tuple(sorted(interface(network, fixed) for fixed in port.fixed_ips)),
        enabled=port.admin_state_up,
        options=options,
    )


def _largest_packet(snapshot: Snapshot, router: Router, gateway: Port) -> int:
    """Maximum packet size at the gateway in bytes: the minimum MTU of the networks that the router joins.

    OVN has one number for both directions. Senders of larger packets get an ICMP error (RFC 1191, RFC 8201). Without
    the option such packets are lost, in the tunnel inbound or on the wire outbound.
    """
    inside = (snapshot.ports[each].network_id for each in snapshot.router_interfaces.get(router.id, NO_IDS))
    return min(snapshot.networks[each].mtu for each in {gateway.network_id, *inside})


def _gateway(snapshot: Snapshot, router: Router, gateway: ExternalGateway) -> Iterator[OvnRow]:
    if not snapshot.gateway_chassis:
        raise Unsupported("external_gateway_info without option ovn.gateway_chassis", PROVIDER)
    port = snapshot.ports[gateway.port_id]
    if not port.fixed_ips:  # a port of a router has an address (ovn-nb(5)): so the router leads nowhere
        return
    largest = _largest_packet(snapshot, router, port)
    yield _router_port(snapshot, port, pairs({"gateway_mtu": str(largest)}))
    chassis = _in_order(snapshot.gateway_chassis, router.id)[:MAX_GATEWAY_CHASSIS]
    for priority, name in enumerate(reversed(chassis), 1):
        yield GatewayChassis(port=router_port_name(port.id), chassis=name, priority=priority)
    yield from _default_routes(snapshot.networks[port.network_id], router, port)
    for version, translated in ((4, gateway.enable_snat), (6, gateway.enable_snat_ipv6)):
        if translated:
            yield from _translations(snapshot, router, port, version)


def _in_order(chassis: tuple[str, ...], router_id: str) -> list[str]:
    return sorted(chassis, key=lambda name: sha256(f"{router_id} {name}".encode()).digest())


def _default_routes(network: Network, router: Router, port: Port) -> Iterator[StaticRoute]:
    """Yield a default route per IP version, by the subnet's gateway, unless the tenant has one."""
    taken = {str(route.destination) for route in router.routes}
    for fixed in port.fixed_ips:
        subnet, anywhere = find_subnet(network, fixed.subnet_id), ANYWHERE[fixed.address.version]
        if subnet is not None and subnet.gateway is not None and anywhere not in taken:
            taken.add(anywhere)
            yield StaticRoute(router=router.id, ip_prefix=anywhere, nexthop=str(subnet.gateway))


def _translations(snapshot: Snapshot, router: Router, gateway: Port, version: int) -> Iterator[Nat]:
    """Yield SNAT entries for the router's networks, to the first gateway address; IPv6 only on request."""
    external = next((fixed.address for fixed in gateway.fixed_ips if fixed.address.version == version), None)
    if external is None:
        return
    for port_id in snapshot.router_interfaces.get(router.id, NO_IDS):
        port = snapshot.ports[port_id]
        for fixed in port.fixed_ips:
            subnet = find_subnet(snapshot.networks[port.network_id], fixed.subnet_id)
            if subnet is not None and subnet.cidr.version == version:
                cidr = str(subnet.cidr)
                yield Nat(
                    name=f"{router.id} {cidr}",
                    router=router.id,
                    type="snat",
                    external_ip=str(external),
                    logical_ip=cidr,
                )

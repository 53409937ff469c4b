"""Routers: their interfaces, the way out through an external network, and the addresses that lead in.

The gateway of a router is a port that is on one chassis at a time, the first of its list that lives. All that comes in
or goes out passes there: load balancers of the tenant's networks decide there for clients outside, NAT happens there,
and an answer finds its way back through the same connection tracking.

Each router has the chassis of the deployment in an order of its own, by rendezvous: the load spreads, and a chassis
that comes or goes moves no router but those that it takes or had.
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
from fairlead.model.addresses import render_interface
from fairlead.model.indexes import NO_IDS
from fairlead.model.network import ExternalGateway, FixedIP, FloatingIP, Network, Port, Router, find_subnet, is_reached
from fairlead.model.snapshot import Snapshot

PROVIDER = "ovn"
MOST_GATEWAY_CHASSIS = 5
"""Of one router, as in Neutron: each of them watches all others by BFD."""
ANYWHERE = {4: "0.0.0.0/0", 6: "::/0"}


def router_rows(snapshot: Snapshot, router: Router) -> Iterator[OvnRow]:
    """Raises Unsupported."""
    yield LogicalRouter(name=router.id, title=router.name, enabled=router.admin_state_up)
    for port_id in snapshot.router_interfaces.get(router.id, NO_IDS):
        yield _router_port(snapshot, snapshot.ports[port_id])
    for route in router.routes:
        yield StaticRoute(router=router.id, ip_prefix=str(route.destination), nexthop=str(route.nexthop))
    if router.gateway is not None:
        yield from _gateway(snapshot, router, router.gateway)


def floating_ip_rows(snapshot: Snapshot, floating_ip: FloatingIP) -> Iterator[OvnRow]:
    """It is what makes the gateway answer ARP for the address, and announce it.

    For a VIP too: load balancers have the floating IP as one more VIP, and what they do not take (ping, ports without a
    listener) goes to the VIP's router this way. Where its port is gone it leads nowhere: the address may be another's.
    """
    reached = is_reached(floating_ip, snapshot.ports.get(floating_ip.port_id or ""))
    router = snapshot.routers.get(floating_ip.router_id or "")
    if reached and router is not None:
        yield Nat(
            name=floating_ip.id,
            router=router.id,
            type="dnat_and_snat",
            external_ip=str(floating_ip.address),
            logical_ip=str(floating_ip.fixed_address),
        )


def wire_rows(network: Network) -> Iterator[OvnRow]:
    """What is behind a `localnet` port is what each chassis maps the physical network to (ovn-controller(8))."""
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


def gateway_attachment(port: Port) -> LogicalSwitchPort:
    """The chassis that has the gateway announces what is translated there (GARP). VIPs in tenants' networks are not."""
    options = {
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
    assert subnet is not None, f"{fixed} names no subnet of {network.id}"  # noqa: S101 - the doors keep this true
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
    """Bytes of what may pass the gateway: as much as each network that the router joins can carry.

    OVN asks for one number for both directions. Who sends more is told so (ICMP, RFC 1191 and RFC 8201); without the
    number it vanishes, in the tunnel on its way in, or on the wire on its way out.
    """
    inside = (snapshot.ports[each].network_id for each in snapshot.router_interfaces.get(router.id, NO_IDS))
    return min(snapshot.networks[each].mtu for each in {gateway.network_id, *inside})


def _gateway(snapshot: Snapshot, router: Router, gateway: ExternalGateway) -> Iterator[OvnRow]:
    if not snapshot.gateway_chassis:
        raise Unsupported("external_gateway_info while the configuration names no ovn.gateway_chassis", PROVIDER)
    port = snapshot.ports[gateway.port_id]
    largest = _largest_packet(snapshot, router, port)
    yield _router_port(snapshot, port, pairs({"gateway_mtu": str(largest)}))
    chassis = _in_order(snapshot.gateway_chassis, router.id)[:MOST_GATEWAY_CHASSIS]
    for priority, name in enumerate(reversed(chassis), 1):
        yield GatewayChassis(port=router_port_name(port.id), chassis=name, priority=priority)
    yield from _ways_out(snapshot.networks[port.network_id], router, port)
    for version, translated in ((4, gateway.enable_snat), (6, gateway.enable_snat_ipv6)):
        if translated:
            yield from _translations(snapshot, router, port, version)


def _in_order(chassis: tuple[str, ...], router_id: str) -> list[str]:
    return sorted(chassis, key=lambda name: sha256(f"{router_id} {name}".encode()).digest())


def _ways_out(network: Network, router: Router, port: Port) -> Iterator[StaticRoute]:
    """One for each family, by the gateway of the subnet; a route that the tenant gave to everywhere goes before."""
    taken = {str(route.destination) for route in router.routes}
    for fixed in port.fixed_ips:
        subnet, anywhere = find_subnet(network, fixed.subnet_id), ANYWHERE[fixed.address.version]
        if subnet is not None and subnet.gateway is not None and anywhere not in taken:
            taken.add(anywhere)
            yield StaticRoute(router=router.id, ip_prefix=anywhere, nexthop=str(subnet.gateway))


def _translations(snapshot: Snapshot, router: Router, gateway: Port, version: int) -> Iterator[Nat]:
    """What the router's own networks send gets the first address of the gateway; of IPv6 only if it is asked for, which
    Neutron never does."""
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

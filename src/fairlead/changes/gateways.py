"""External gateways of routers, and the subnets that a router joins."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from fairlead.changes import access
from fairlead.changes.access import Verb
from fairlead.changes.addresses import AddressHolder, AddressRequest, choose_fixed_ips, choose_mac, with_missing
from fairlead.changes.identity import Identity
from fairlead.changes.ids import check_new
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.resources import with_update_time
from fairlead.changes.untranslated_prefixes import check_untranslated_subnets
from fairlead.model.documents.addresses import IPAddress, IPNetwork
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import (
    ExternalGateway,
    FloatingIP,
    Network,
    Port,
    PortUse,
    Resource,
    Router,
    Subnet,
    clear_destination,
    find_subnet,
    is_routed,
)
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot

MAX_INTERFACES = 256
"""Maximum interfaces of one router, which is compiled as a whole. A new subnet is compared with all of them."""
MAX_ATTACHED_ROUTERS = 1024
"""Maximum gateways that get an address in one write, when their network gets its first subnet of an IP version.
Each is a document of the write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRequest:
    """Requested gateway; None for attributes absent from the request. No network means no gateway."""

    network_id: str | None = None
    enable_snat: bool | None = None
    enable_snat_ipv6: bool | None = None
    fixed_ips: tuple[AddressRequest, ...] | None = None
    """Requested addresses. A gateway without any is possible only on an external network without a subnet on its
    segment; it has no route until there is one."""


# Refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkNotExternal(Refusal):
    """The network is not external, but a router gateway or floating IP needs one."""

    network_id: str
    what: type[Resource]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressIsNextHop(Refusal):
    """The router would have the address of its next hop."""

    address: IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class NoExternalAddress(Refusal):
    """The external network has no free address."""

    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayNeededByFloatingIP(Refusal):
    """Floating IPs use the gateway."""

    router_id: str
    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayHasVips(Refusal):
    """Load balancers have addresses of the gateway."""

    router_id: str
    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyAttachedRouters(Refusal):
    """Too many gateways would get an address of another IP version in one write."""

    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyInterfaces(Refusal):
    router_id: str
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetAlreadyAttached(Refusal):
    router_id: str
    subnet_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedSubnetsOverlap(Refusal):
    """The subnets overlap, so a router cannot join both."""

    cidr: IPNetwork
    subnet_id: str
    other_cidr: IPNetwork
    other_id: str


# Gateway


def check_request(asker: Identity, request: GatewayRequest | None, verb: Verb) -> None:
    """Check that only an administrator sets addresses and SNAT of the gateway. Raises Refused."""
    said = {name for name in ("enable_snat", "fixed_ips") if getattr(request, name, None) is not None}
    access.check_fields(asker.is_admin, verb, Router, said)


def set_gateway(
    snapshot: Snapshot, asker: Identity, router: Router, request: GatewayRequest, port_id: str, now: datetime
) -> Changes:
    """Return the changes that set or remove the router's gateway. The first put is the router. Raises Refused."""
    if request.network_id is None:
        deletes, freed = _without_gateway(snapshot, router)
        return Changes(
            puts=(replace(router, gateway=None), *freed), deletes=deletes, requires_unchanged_model=bool(deletes)
        )
    network = find_external_network(snapshot, asker, request.network_id, Router)
    _check_addresses(network, request)
    old = router.gateway
    deletes, freed = (), ()
    if old is not None and old.network_id == network.id:
        port = _with_requested_addresses(snapshot, network, snapshot.ports[old.port_id], request, now)
        had = {fixed.subnet_id for fixed in snapshot.ports[old.port_id].fixed_ips}
        check_no_overlap(snapshot, router, [subnet for subnet in subnets_of(snapshot, port) if subnet.id not in had])
    else:
        deletes, freed = _without_gateway(snapshot, router)
        port = _new_port(snapshot, network, router, request, port_id, now)
        check_new_subnets(snapshot, replace(router, gateway=None), subnets_of(snapshot, port))
    changed = replace(router, gateway=_gateway(network, port, request, old))
    check_untranslated_subnets(snapshot, asker, changed, _attached_subnets(snapshot, router))
    ports = () if snapshot.ports.get(port.id) == port else (port,)
    reads = (Owner(Kind.NETWORK, network.id),)
    return Changes(puts=(changed, *ports, *freed), deletes=deletes, reads=reads, requires_unchanged_model=bool(deletes))


def _attached_subnets(snapshot: Snapshot, router: Router) -> Iterator[tuple[Network, IPNetwork]]:
    """Yield the networks and subnets behind the router."""
    for port_id in snapshot.router_interfaces.get(router.id, NO_IDS):
        port = snapshot.ports[port_id]
        yield from ((snapshot.networks[port.network_id], subnet.cidr) for subnet in subnets_of(snapshot, port))


def add_missing_addresses(snapshot: Snapshot, router: Router, now: datetime) -> Changes:
    """Add an address for each IP version that the external network has and the gateway lacks. Raises Refused."""
    if router.gateway is None:
        return Changes()
    port, network = snapshot.ports[router.gateway.port_id], snapshot.networks[router.gateway.network_id]
    holder = AddressHolder(port_id=port.id, mac=port.mac_address, network=network, current_addresses=port.fixed_ips)
    fixed_ips = with_missing(snapshot, holder)
    if fixed_ips == port.fixed_ips:
        return Changes()
    new = with_update_time(port, replace(port, fixed_ips=fixed_ips), now)
    had = {subnet.id for subnet in subnets_of(snapshot, port)}
    check_no_overlap(snapshot, router, [subnet for subnet in subnets_of(snapshot, new) if subnet.id not in had])
    return Changes(puts=(new,), reads=(Owner(Kind.ROUTER, router.id),))


def find_external_network(snapshot: Snapshot, asker: Identity, network_id: str, what: type[Resource]) -> Network:
    """Return an external network that the caller may see. Raises Refused."""
    network = access.find_network(snapshot, asker, network_id)
    if not network.external:
        raise Refused(NetworkNotExternal(network_id=network_id, what=what))
    return network


def _gateway(network: Network, port: Port, request: GatewayRequest, old: ExternalGateway | None) -> ExternalGateway:
    """Return the new gateway. Absent attributes of IPv4 get Neutron's defaults; absent ones of IPv6, which Neutron
    lacks, keep their value."""
    stays = old is not None and old.enable_snat_ipv6
    return ExternalGateway(
        network_id=network.id,
        port_id=port.id,
        enable_snat=True if request.enable_snat is None else request.enable_snat,
        enable_snat_ipv6=stays if request.enable_snat_ipv6 is None else request.enable_snat_ipv6,
    )


def _check_addresses(network: Network, request: GatewayRequest) -> None:
    next_hops = {subnet.gateway for subnet in network.subnets if subnet.gateway is not None}
    for asked in request.fixed_ips or ():
        if asked.address is not None and asked.address in next_hops:
            raise Refused(AddressIsNextHop(address=asked.address))


def _without_gateway(snapshot: Snapshot, router: Router) -> tuple[tuple[Owner, ...], tuple[FloatingIP, ...]]:
    """Return the gateway port to delete and the floating IPs to release. Raises Refused if they are needed."""
    if router.gateway is None:
        return (), ()
    check_free_of_vips(snapshot, router)
    through = floating_ips_through(snapshot, router)
    if any(prevents_change(snapshot, router, each) for each in through):
        raise Refused(GatewayNeededByFloatingIP(router_id=router.id, network_id=router.gateway.network_id))
    return (Owner(Kind.PORT, router.gateway.port_id),), tuple(clear_destination(each) for each in through)


def check_free_of_vips(snapshot: Snapshot, router: Router) -> None:
    """Check that the gateway has no VIPs before it is removed or moved,
    because no other router answers for them. Raises Refused."""
    if router.gateway is not None and router.id in snapshot.router_vips:
        raise Refused(GatewayHasVips(router_id=router.id, network_id=router.gateway.network_id))


def floating_ips_through(snapshot: Snapshot, router: Router) -> list[FloatingIP]:
    return [snapshot.floating_ips[each] for each in snapshot.router_floating_ips.get(router.id, NO_IDS)]


def prevents_change(snapshot: Snapshot, router: Router, floating_ip: FloatingIP) -> bool:
    """Return whether the floating IP prevents a change of the router. One of another project is released instead."""
    port = snapshot.ports.get(floating_ip.port_id or "")
    return port is not None and serves_project(snapshot, router, port, floating_ip.project_id)


def serves_project(snapshot: Snapshot, router: Router, port: Port, project_id: str) -> bool:
    """Return whether a floating IP of the project may use the router for this port.

    The router must belong to the project, or the network must and not be shared, so only an administrator can have
    attached the router.
    """
    network = snapshot.networks[port.network_id]
    return router.project_id == project_id or (network.project_id == project_id and not network.shared)


def has_link_subnet(network: Network) -> bool:
    """Whether it has a subnet that is not led to it from elsewhere."""
    return any(not is_routed(network, subnet) for subnet in network.subnets)


def _with_requested_addresses(
    snapshot: Snapshot, network: Network, port: Port, request: GatewayRequest, now: datetime
) -> Port:
    """Return the port with the requested addresses. Without a request it is unchanged, or gets its first addresses.
    Raises Refused."""
    if request.fixed_ips is None and port.fixed_ips:
        return port
    holder = AddressHolder(port_id=port.id, mac=port.mac_address, network=network, current_addresses=port.fixed_ips)
    return with_update_time(port, replace(port, fixed_ips=choose_fixed_ips(snapshot, holder, request.fixed_ips)), now)


def _new_port(
    snapshot: Snapshot, network: Network, router: Router, request: GatewayRequest, port_id: str, now: datetime
) -> Port:
    """Return a new gateway port. It has no project, as in Neutron, so tenants cannot see or change it.
    Raises Refused."""
    check_new(snapshot.ports, port_id)
    mac = choose_mac(snapshot, port_id)
    fixed = choose_fixed_ips(snapshot, AddressHolder(port_id=port_id, mac=mac, network=network), request.fixed_ips)
    if not fixed and (request.fixed_ips is None or has_link_subnet(network)):
        raise Refused(NoExternalAddress(network_id=network.id))
    return Port(
        id=port_id,
        project_id="",
        created_at=now,
        network_id=network.id,
        mac_address=mac,
        fixed_ips=fixed,
        device_id=router.id,
        device_owner=PortUse.ROUTER_GATEWAY.value,
    )


# Subnets


def subnets_of(snapshot: Snapshot, port: Port) -> list[Subnet]:
    network = snapshot.networks[port.network_id]
    found = (find_subnet(network, fixed.subnet_id) for fixed in port.fixed_ips)
    return [subnet for subnet in found if subnet is not None]


def router_ports(snapshot: Snapshot, router: Router) -> list[Port]:
    """Return the router's interfaces, and its gateway port if it exists."""
    ids = [*snapshot.router_interfaces.get(router.id, NO_IDS), *([router.gateway.port_id] if router.gateway else ())]
    return [snapshot.ports[port_id] for port_id in ids if port_id in snapshot.ports]


def router_subnets(snapshot: Snapshot, router: Router) -> Iterator[Subnet]:
    for port in router_ports(snapshot, router):
        yield from subnets_of(snapshot, port)


def check_new_subnets(snapshot: Snapshot, router: Router, subnets: list[Subnet]) -> None:
    """Check that the router may join these subnets too. Raises Refused."""
    if len(snapshot.router_interfaces.get(router.id, NO_IDS)) >= MAX_INTERFACES:
        raise Refused(TooManyInterfaces(router_id=router.id, most=MAX_INTERFACES))
    check_no_overlap(snapshot, router, subnets)


def check_no_overlap(snapshot: Snapshot, router: Router, subnets: list[Subnet]) -> None:
    """Check that the subnets overlap none of the router's. Raises Refused."""
    for old in router_subnets(snapshot, router):
        for new in subnets:
            if old.id == new.id:
                raise Refused(SubnetAlreadyAttached(router_id=router.id, subnet_id=new.id))
            if old.cidr.version == new.cidr.version and old.cidr.overlaps(new.cidr):
                raise Refused(
                    JoinedSubnetsOverlap(cidr=new.cidr, subnet_id=new.id, other_cidr=old.cidr, other_id=old.id)
                )

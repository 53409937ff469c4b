"""Changes of routers, their interfaces and routes.

An interface is a port. Adding or removing one also writes the router, so two servers that change the same router, or
one that is being deleted, cannot both succeed.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from fairlead.changes import access
from fairlead.changes.access import Verb, network_of
from fairlead.changes.addresses import AddressInUse, choose_mac
from fairlead.changes.gateways import (
    GatewayRequest,
    check_free_of_vips,
    check_new_subnets,
    check_request,
    floating_ips_through,
    prevents_change,
    router_ports,
    router_subnets,
    set_gateway,
    subnets_of,
)
from fairlead.changes.identity import Identity
from fairlead.changes.ids import check_new
from fairlead.changes.networks import check_not_announced
from fairlead.changes.ports import PortInUse, local_ip_of
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.resources import put_if_changed, with_update_time
from fairlead.changes.untranslated_prefixes import check_untranslated_subnets
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import (
    FixedIP,
    FloatingIP,
    Port,
    PortUse,
    Route,
    Router,
    Subnet,
    clear_destination,
    sort_routes,
)
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot

MAX_ROUTES = 30
"""Maximum routes of one router (neutron.conf, max_routes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterChange:
    router: Router
    """Router after the change, except its gateway."""
    gateway: GatewayRequest | None = None
    """Gateway; None keeps the present one."""
    gateway_port_id: str = ""
    """Id of the port for a new gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceTarget:
    """Interface to add or remove, given by a port, by a subnet, or by both for a removal."""

    port_id: str | None = None
    subnet_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Changes that add or remove an interface, with its port."""

    changes: Changes
    port: Port
    subnet_ids: tuple[str, ...]


# Refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterInUse(Refusal):
    """The router has interfaces."""

    router_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSuchInterface(Refusal):
    """The port is not an interface of the router, or none of its interfaces is on the subnet."""

    router_id: str
    port_id: str | None = None
    subnet_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceOnOtherSubnet(Refusal):
    port_id: str
    subnet_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceNeededByRoute(Refusal):
    router_id: str
    subnet_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceNeededByFloatingIP(Refusal):
    router_id: str
    subnet_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceWithoutAddress(Refusal):
    port_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceOnManySubnets(Refusal):
    """An interface can have one IPv4 subnet only."""

    port_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetOfOtherProject(Refusal):
    subnet_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetWithoutGateway(Refusal):
    """The subnet has no gateway address for an interface."""

    subnet_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyRoutes(Refusal):
    router_id: str
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRoute(Refusal):
    """One of the requested routes is invalid."""

    route: Route
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOfTwoVersions(BadRoute):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class NexthopNotConnected(BadRoute):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class NexthopIsRouters(BadRoute):
    """The next hop is an address of the router itself."""


# Requests


def create_router(snapshot: Snapshot, asker: Identity, change: RouterChange) -> Changes:
    """Create a router. Raises Refused."""
    router = change.router
    access.check_owner(asker, router.project_id, Router)
    check_request(asker, change.gateway, Verb.CREATE)
    check_new(snapshot.routers, router.id)
    gateway = change.gateway or GatewayRequest()
    return set_gateway(snapshot, asker, router, gateway, change.gateway_port_id, router.created_at)


def update_router(snapshot: Snapshot, asker: Identity, old: Router, change: RouterChange, now: datetime) -> Changes:
    """Update a router. Raises Refused."""
    access.check_own(asker, Verb.UPDATE, old)
    new = with_update_time(old, change.router, now)
    if new.routes != old.routes:
        _check_routes(snapshot, new)
    if change.gateway is None:
        return put_if_changed(snapshot, new)
    check_request(asker, change.gateway, Verb.UPDATE)
    changes = set_gateway(snapshot, asker, new, change.gateway, change.gateway_port_id, now)
    changed = changes.puts[0]
    if changed == old and len(changes.puts) == 1:
        return Changes()
    assert isinstance(changed, Router)  # noqa: S101 - the router is the first put
    if changed.routes:
        _check_routes(apply_changes(snapshot, changes, snapshot.revision + 1), changed)
    return replace(changes, puts=(replace(changed, updated_at=now), *changes.puts[1:]))


def delete_router(snapshot: Snapshot, asker: Identity, router: Router) -> Changes:
    """Delete a router. Raises Refused."""
    access.check_own(asker, Verb.DELETE, router)
    if snapshot.router_interfaces.get(router.id, NO_IDS):
        raise Refused(RouterInUse(router_id=router.id))
    check_free_of_vips(snapshot, router)
    gateway = () if router.gateway is None else (Owner(Kind.PORT, router.gateway.port_id),)
    return Changes(deletes=(Owner(Kind.ROUTER, router.id), *gateway), requires_unchanged_model=bool(gateway))


def add_routes(
    snapshot: Snapshot, asker: Identity, router: Router, routes: tuple[Route, ...], now: datetime
) -> Changes:
    """Add routes; existing ones are not an error (neutron, extraroute-atomic). Raises Refused."""
    added = replace(router, routes=sort_routes({*router.routes, *routes}))
    return update_router(snapshot, asker, router, RouterChange(router=added), now)


def remove_routes(
    snapshot: Snapshot, asker: Identity, router: Router, routes: tuple[Route, ...], now: datetime
) -> Changes:
    """Remove routes; missing ones are not an error. Raises Refused."""
    rest = replace(router, routes=sort_routes({*router.routes} - {*routes}))
    return update_router(snapshot, asker, router, RouterChange(router=rest), now)


def add_interface(
    snapshot: Snapshot, asker: Identity, router: Router, target: InterfaceTarget, port_id: str, now: datetime
) -> Attachment:
    """Add an interface with the given port, or with a new one with this id. A tenant's subnet can join a router without
    SNAT only if the uplink's routes lead to it. Raises Refused."""
    attached = attach_interface(snapshot, asker, router, target, port_id, now)
    network = snapshot.networks[attached.port.network_id]
    check_untranslated_subnets(
        snapshot, asker, router, [(network, subnet.cidr) for subnet in subnets_of(snapshot, attached.port)]
    )
    return attached


def attach_interface(
    snapshot: Snapshot, asker: Identity, router: Router, target: InterfaceTarget, port_id: str, now: datetime
) -> Attachment:
    """Add an interface for a subnet that is known to be allowed outside. Raises Refused."""
    access.check_own(asker, Verb.ADD, router)
    if target.port_id is not None:
        port = _given_port(snapshot, asker, router, target.port_id, now)
    else:
        port = _gateway_port(snapshot, asker, router, target.subnet_id or "", port_id, now)
    subnets = subnets_of(snapshot, port)
    check_new_subnets(snapshot, router, subnets)
    network = Owner(Kind.NETWORK, port.network_id)
    changes = Changes(puts=(replace(router, updated_at=now), port), reads=(network,), requires_unchanged_model=True)
    return Attachment(changes=changes, port=port, subnet_ids=tuple(subnet.id for subnet in subnets))


def remove_interface(
    snapshot: Snapshot, asker: Identity, router: Router, target: InterfaceTarget, now: datetime
) -> Attachment:
    """Remove an interface. A given port is deleted;
    a given subnet only loses its address if the port has others. Raises Refused."""
    access.check_own(asker, Verb.REMOVE, router)
    port = _interface(snapshot, router, target)
    fixed_ips = [fixed for fixed in port.fixed_ips if target.port_id is None and fixed.subnet_id != target.subnet_id]
    gone = [
        subnet for subnet in subnets_of(snapshot, port) if subnet.id not in {fixed.subnet_id for fixed in fixed_ips}
    ]
    _check_unrouted(router, gone)
    freed = _releasable_floating_ips(snapshot, router, gone)
    written = replace(router, updated_at=now)
    if fixed_ips:
        rest = with_update_time(port, replace(port, fixed_ips=tuple(fixed_ips)), now)
        changes = Changes(puts=(written, rest, *freed), requires_unchanged_model=True)
    else:
        changes = Changes(puts=(written, *freed), deletes=(Owner(Kind.PORT, port.id),), requires_unchanged_model=True)
    return Attachment(changes=changes, port=port, subnet_ids=tuple(subnet.id for subnet in gone))


# Implementation


def _given_port(snapshot: Snapshot, asker: Identity, router: Router, port_id: str, now: datetime) -> Port:
    port = access.find_port(snapshot, asker, port_id)
    access.check(asker.may_change(port.project_id), Verb.UPDATE, Port)
    if port.device_id:
        raise Refused(PortInUse(port_id=port.id, network_id=port.network_id, device_id=port.device_id))
    local_ip_id = local_ip_of(snapshot, port)
    if local_ip_id is not None:
        raise Refused(PortInUse(port_id=port.id, network_id=port.network_id, device_id=local_ip_id))
    if not port.fixed_ips:
        raise Refused(InterfaceWithoutAddress(port_id=port.id))
    if sum(fixed.address.version == 4 for fixed in port.fixed_ips) > 1:
        raise Refused(InterfaceOnManySubnets(port_id=port.id))
    check_new_subnets(snapshot, router, subnets_of(snapshot, port))
    return with_update_time(port, replace(port, device_id=router.id, device_owner=PortUse.ROUTER_INTERFACE.value), now)


def _gateway_port(
    snapshot: Snapshot, asker: Identity, router: Router, subnet_id: str, port_id: str, now: datetime
) -> Port:
    """Return a new port with the subnet's gateway address. Its MAC is derived from router and subnet, so neighbour
    caches on the subnet remain valid. Raises Refused."""
    subnet = access.find_subnet(snapshot, asker, subnet_id)
    if not asker.may_change(subnet.project_id):
        raise Refused(SubnetOfOtherProject(subnet_id=subnet_id))
    if subnet.gateway is None:
        raise Refused(SubnetWithoutGateway(subnet_id=subnet_id))
    check_new_subnets(snapshot, router, [subnet])
    check_new(snapshot.ports, port_id)
    network = network_of(snapshot, subnet)
    check_not_announced(network)
    if (network.id, subnet.gateway) in snapshot.addresses:
        raise Refused(AddressInUse(address=subnet.gateway, subnet_id=subnet.id))
    return Port(
        id=port_id,
        project_id=router.project_id,
        created_at=now,
        network_id=network.id,
        mac_address=choose_mac(snapshot, f"{router.id}/{subnet.id}"),
        fixed_ips=(FixedIP(subnet_id=subnet.id, address=subnet.gateway),),
        device_id=router.id,
        device_owner=PortUse.ROUTER_INTERFACE.value,
    )


def _interface(snapshot: Snapshot, router: Router, target: InterfaceTarget) -> Port:
    """Return the interface of the router that is meant. Raises Refused."""
    ports = [snapshot.ports[port_id] for port_id in snapshot.router_interfaces.get(router.id, NO_IDS)]
    if target.port_id is None:
        for port in ports:
            if any(fixed.subnet_id == target.subnet_id for fixed in port.fixed_ips):
                return port
        raise Refused(NoSuchInterface(router_id=router.id, subnet_id=target.subnet_id))
    found = next((port for port in ports if port.id == target.port_id), None)
    if found is None:
        raise Refused(NoSuchInterface(router_id=router.id, port_id=target.port_id))
    if target.subnet_id is not None and all(fixed.subnet_id != target.subnet_id for fixed in found.fixed_ips):
        raise Refused(InterfaceOnOtherSubnet(port_id=found.id, subnet_id=target.subnet_id))
    return found


def _check_unrouted(router: Router, gone: list[Subnet]) -> None:
    for subnet in gone:
        if any(route.nexthop in subnet.cidr for route in router.routes):
            raise Refused(InterfaceNeededByRoute(router_id=router.id, subnet_id=subnet.id))


def _releasable_floating_ips(snapshot: Snapshot, router: Router, gone: list[Subnet]) -> tuple[FloatingIP, ...]:
    """Return the floating IPs to release without these subnets. Raises Refused if one needs the router."""
    freed = []
    for floating_ip in floating_ips_through(snapshot, router):
        for subnet in gone:
            if floating_ip.fixed_address is not None and floating_ip.fixed_address in subnet.cidr:
                if prevents_change(snapshot, router, floating_ip):
                    raise Refused(InterfaceNeededByFloatingIP(router_id=router.id, subnet_id=subnet.id))
                freed.append(clear_destination(floating_ip))
    return tuple(freed)


def _check_routes(snapshot: Snapshot, router: Router) -> None:
    """Check the routes of a router. Raises Refused."""
    if len(router.routes) > MAX_ROUTES:
        raise Refused(TooManyRoutes(router_id=router.id, most=MAX_ROUTES))
    subnets = list(router_subnets(snapshot, router))
    own = {fixed.address for port in router_ports(snapshot, router) for fixed in port.fixed_ips}
    for route in router.routes:
        if route.destination.version != route.nexthop.version:
            raise Refused(RouteOfTwoVersions(route=route, routes=router.routes))
        if not any(route.nexthop in subnet.cidr for subnet in subnets):
            raise Refused(NexthopNotConnected(route=route, routes=router.routes))
        if route.nexthop in own:
            raise Refused(NexthopIsRouters(route=route, routes=router.routes))

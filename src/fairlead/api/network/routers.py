"""Routers, their interfaces and their routes.

An interface is a port with `device_owner` network:router_interface. Adding or taking one away writes the router too:
so two servers that decide about the same router, or about one that is being deleted, cannot both succeed. Not here, and
refused: several external gateways, QoS policies, flavors.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID, uuid5

from fairlead.api.door import JsonObject
from fairlead.api.fields import Parser, Schema, Values, array_schema, object_schema, reads
from fairlead.api.listing import Item
from fairlead.api.network import errors, parsers, policy
from fairlead.api.network.attributes import STANDARD, Attribute, read_only, refused
from fairlead.api.network.collection import (
    BUILD_STATUS,
    Collection,
    Filters,
    RequestContext,
    Viewpoint,
    by_project,
    encode_standard,
    given,
    named,
    network_owner,
    sift_nothing,
    standard_values,
)
from fairlead.api.network.gateways import (
    Way,
    check_new_subnets,
    check_way,
    encode_gateway,
    floating_ips_through,
    keeps,
    read_way,
    router_ports,
    router_subnets,
    set_gateway,
    subnets_of,
)
from fairlead.api.network.limits import EXTRA_ROUTES, FIXED_IPS, ROUTES
from fairlead.api.openapi import IDENTITY, TEXT
from fairlead.changes import access
from fairlead.changes.access import network_of
from fairlead.changes.addresses import AddressTaken, choose_mac
from fairlead.changes.identity import Identity
from fairlead.changes.refusal import Refused
from fairlead.changes.resources import revised
from fairlead.model.indexes import NO_IDS
from fairlead.model.network import FixedIP, FloatingIP, Port, PortUse, Route, Router, Subnet, release
from fairlead.model.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes, apply_changes

ATTRIBUTES = {
    **STANDARD,
    "admin_state_up": Attribute(parse=parsers.boolean),
    "status": read_only(TEXT),
    "routes": Attribute(parse=parsers.routes(EXTRA_ROUTES), post=False, nullable=True, sifts=False),
    "external_gateway_info": Attribute(parse=read_way, nullable=True, sifts=False),
    "distributed": Attribute(parse=parsers.boolean, nullable=True, sifts=False, shows=False),
    "ha": Attribute(parse=parsers.boolean, nullable=True, sifts=False, shows=False),
    "external_gateways": refused([], because="several gateways are not supported; give external_gateway_info"),
    "enable_ndp_proxy": refused(False, because="the NDP proxy is not supported"),
    "enable_default_route_bfd": refused(False, because="BFD is not supported"),
    "enable_default_route_ecmp": refused(False, because="several gateways are not supported"),
    "qos_policy_id": refused(because="QoS policies are not supported"),
    "flavor_id": Attribute(parse=parsers.only(because="flavors are not supported"), put=False, nullable=True),
    "availability_zone_hints": Attribute(
        parse=parsers.only([], because="availability zones are not supported"), put=False, sifts=False
    ),
    "availability_zones": read_only(array_schema(TEXT, 0), sifts=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a caller names to add or take away an interface: a port, a subnet, or (to take away) both."""

    port_id: str | None = None
    subnet_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """What an interface request did, and with which port."""

    changes: Changes
    port: Port
    subnet_ids: tuple[str, ...]


def encode_router(view: Viewpoint, router: Router) -> Item:
    owner = router_owner(router.id)
    return {
        **encode_standard(view, router, owner),
        "admin_state_up": router.admin_state_up,
        "status": BUILD_STATUS[view.status(owner)],
        "routes": [parsers.encode_route(route) for route in router.routes],
        "external_gateway_info": encode_gateway(view.snapshot, router),
        "flavor_id": None,
        "availability_zone_hints": [],
        "availability_zones": [],
    }


def create_router(snapshot: Snapshot, context: RequestContext, values: Values) -> Changes:
    standard = standard_values(context, values)
    access.check_owner(context.caller, standard["project_id"], Router)
    router, way = Router(**standard, admin_state_up=values.get("admin_state_up", True)), _way(values)
    _check_kind(context, values, "create_router")
    check_way(context, way, "create_router")
    return set_gateway(snapshot, context, router, way, str(uuid5(UUID(context.new_id), "gateway")))


def update_router(snapshot: Snapshot, context: RequestContext, router: Router, values: Values) -> Changes:
    _check_kind(context, values, "update_router")
    fields = given(values, ["name", "description", "admin_state_up"])
    if "routes" in values:
        fields["routes"] = values["routes"] or ()
    changed = revised(router, replace(router, **fields), context.now)
    if changed.routes != router.routes:
        _check_routes(snapshot, changed)
    if "external_gateway_info" not in values:
        return put_router(snapshot, changed)
    return _update_gateway(snapshot, context, changed, _way(values))


def _check_kind(context: RequestContext, values: Values, rule: str) -> None:
    """Whether a router is distributed, and highly available, is for an administrator to say, as in Neutron; here it is
    OVN's: each is both, whatever was said, and answers say neither. Raises ApiError 403."""
    asked = {name for name in ("distributed", "ha") if values.get(name) is not None}
    policy.check_attributes(context.caller.is_admin, rule, asked)


def _way(values: Values) -> Way | None:
    way: Way | None = values.get("external_gateway_info")
    return way


def _update_gateway(snapshot: Snapshot, context: RequestContext, router: Router, way: Way | None) -> Changes:
    check_way(context, way, "update_router")
    changes = set_gateway(snapshot, context, router, way, context.new_id)
    changed = changes.puts[0]
    if changed == snapshot.routers.get(router.id) and len(changes.puts) == 1:
        return Changes()
    assert isinstance(changed, Router)  # noqa: S101 - it comes first
    after = apply_changes(snapshot, changes, snapshot.revision + 1)
    if changed.routes:
        _check_routes(after, changed)
    return replace(changes, puts=(replace(changed, updated_at=context.now), *changes.puts[1:]))


def put_router(snapshot: Snapshot, router: Router) -> Changes:
    return Changes() if snapshot.routers.get(router.id) == router else Changes(puts=(router,))


def delete_router(snapshot: Snapshot, router: Router) -> Changes:
    if snapshot.router_interfaces.get(router.id, NO_IDS):
        raise errors.router_in_use(router.id)
    gateway = () if router.gateway is None else (Owner(Kind.PORT, router.gateway.port_id),)
    return Changes(deletes=(router_owner(router.id), *gateway), rests_on_absence=bool(gateway))


def add_routes(snapshot: Snapshot, context: RequestContext, router: Router, routes: tuple[Route, ...]) -> Changes:
    """Those that the router has already are no error (neutron, extraroute-atomic)."""
    return update_router(snapshot, context, router, {"routes": parsers.in_order({*router.routes, *routes})})


def remove_routes(snapshot: Snapshot, context: RequestContext, router: Router, routes: tuple[Route, ...]) -> Changes:
    return update_router(snapshot, context, router, {"routes": parsers.in_order({*router.routes} - {*routes})})


_ROUTES = parsers.routes(EXTRA_ROUTES)


@reads(object_schema({"router": object_schema({"routes": _ROUTES.schema}, ["routes"])}, ["router"]))
def read_routes(body: object) -> tuple[Route, ...]:
    """Of `{"router": {"routes": [...]}}`. Raises ApiError 400."""
    router = body.get("router") if isinstance(body, dict) else None
    if not isinstance(router, dict) or set(router) != {"routes"}:
        raise errors.bad_request("Unable to find 'routes' in request body")
    try:
        return _ROUTES(router["routes"])
    except ValueError as error:
        raise errors.bad_attribute("routes", str(error)) from None


def _target(body: object, *, removing: bool) -> Target:
    """Raises ApiError 400."""
    if not isinstance(body, dict):
        raise errors.bad_request("Body contains invalid data")
    unknown = sorted(str(name) for name in body if name not in ("port_id", "subnet_id"))
    if unknown:
        raise errors.bad_request(f"Unrecognized attribute(s) '{', '.join(unknown)}'")
    if not body:
        raise errors.bad_resource("router", "Either subnet_id or port_id must be specified")
    try:
        target = Target(**{name: parsers.uuid(value) for name, value in body.items()})
    except ValueError as error:
        raise errors.bad_resource("router", str(error)) from None
    if target.port_id and target.subnet_id and not removing:
        raise errors.bad_resource("router", "Cannot specify both subnet-id and port-id")
    return target


_TARGET = object_schema({"port_id": parsers.uuid.schema, "subnet_id": parsers.uuid.schema})
read_target = Parser({**_TARGET, "minProperties": 1, "maxProperties": 1}, partial(_target, removing=False))
read_removed = Parser({**_TARGET, "minProperties": 1}, partial(_target, removing=True))
ATTACHMENT: Mapping[str, Schema] = {
    **dict.fromkeys(("id", "port_id", "network_id", "subnet_id"), IDENTITY),
    **dict.fromkeys(("tenant_id", "project_id"), TEXT),
    "subnet_ids": array_schema(IDENTITY, FIXED_IPS),
}


def encode_attachment(router: Router, attachment: Attachment) -> JsonObject:
    return {
        "id": router.id,
        "tenant_id": attachment.port.project_id,
        "project_id": attachment.port.project_id,
        "port_id": attachment.port.id,
        "network_id": attachment.port.network_id,
        "subnet_id": attachment.subnet_ids[-1],
        "subnet_ids": attachment.subnet_ids,
    }


def add_interface(snapshot: Snapshot, context: RequestContext, router: Router, target: Target) -> Attachment:
    if target.port_id is not None:
        port = _given_port(snapshot, context, router, target.port_id)
    else:
        port = _gateway_port(snapshot, context, router, target.subnet_id or "")
    subnets = subnets_of(snapshot, port)
    check_new_subnets(snapshot, router, subnets)
    changes = Changes(puts=(replace(router, updated_at=context.now), port), reads=(network_owner(port.network_id),))
    return Attachment(changes=changes, port=port, subnet_ids=tuple(subnet.id for subnet in subnets))


def remove_interface(snapshot: Snapshot, context: RequestContext, router: Router, target: Target) -> Attachment:
    """A port that was named goes whole; a subnet that was named takes its address from a port that has others."""
    port = _interface(snapshot, router, target)
    fixed_ips = [fixed for fixed in port.fixed_ips if target.port_id is None and fixed.subnet_id != target.subnet_id]
    gone = [
        subnet for subnet in subnets_of(snapshot, port) if subnet.id not in {fixed.subnet_id for fixed in fixed_ips}
    ]
    _check_unrouted(router, gone)
    freed = _freed(snapshot, router, gone)
    written = replace(router, updated_at=context.now)
    if fixed_ips:
        rest = revised(port, replace(port, fixed_ips=tuple(fixed_ips)), context.now)
        changes = Changes(puts=(written, rest, *freed), rests_on_absence=True)
    else:
        changes = Changes(puts=(written, *freed), deletes=(Owner(Kind.PORT, port.id),), rests_on_absence=True)
    return Attachment(changes=changes, port=port, subnet_ids=tuple(subnet.id for subnet in gone))


def router_owner(router_id: str) -> Owner:
    return Owner(Kind.ROUTER, router_id)


def _given_port(snapshot: Snapshot, context: RequestContext, router: Router, port_id: str) -> Port:
    port = snapshot.ports.get(port_id)
    if port is None or not access.sees_port(snapshot, context.caller, port):
        raise errors.not_found("port", port_id)
    policy.check(context.caller.may_change(port.project_id), "update_port")
    if port.device_id:
        raise errors.port_in_use(port.id, port.network_id, port.device_id)
    if not port.fixed_ips:
        raise errors.bad_resource("router", "Router port must have at least one fixed IP")
    if sum(fixed.address.version == 4 for fixed in port.fixed_ips) > 1:
        raise errors.bad_resource("router", "Cannot have multiple IPv4 subnets on router port")
    check_new_subnets(snapshot, router, subnets_of(snapshot, port))
    return revised(port, replace(port, device_id=router.id, device_owner=PortUse.ROUTER_INTERFACE.value), context.now)


def _gateway_port(snapshot: Snapshot, context: RequestContext, router: Router, subnet_id: str) -> Port:
    """A new port with the subnet's gateway address. It has the MAC that it had the last time: machines on the subnet
    go on using what they have learnt."""
    subnet = access.find_subnet(snapshot, context.caller, subnet_id)
    if not context.caller.may_change(subnet.project_id):
        text = f"Cannot add interface to router because subnet {subnet_id} is not owned by project making the request"
        raise errors.bad_resource("router", text)
    if subnet.gateway is None:
        raise errors.bad_resource("router", "Subnet for router interface must have a gateway IP")
    check_new_subnets(snapshot, router, [subnet])
    network = network_of(snapshot, subnet)
    if (network.id, subnet.gateway) in snapshot.addresses:
        raise Refused(AddressTaken(address=subnet.gateway, subnet_id=subnet.id))
    return Port(
        id=context.new_id,
        project_id=router.project_id,
        created_at=context.now,
        network_id=network.id,
        mac_address=choose_mac(snapshot, f"{router.id}/{subnet.id}"),
        fixed_ips=(FixedIP(subnet_id=subnet.id, address=subnet.gateway),),
        device_id=router.id,
        device_owner=PortUse.ROUTER_INTERFACE.value,
    )


def _interface(snapshot: Snapshot, router: Router, target: Target) -> Port:
    """The port of the router that the caller means. Raises ApiError."""
    ports = [snapshot.ports[port_id] for port_id in snapshot.router_interfaces.get(router.id, NO_IDS)]
    if target.port_id is None:
        for port in ports:
            if any(fixed.subnet_id == target.subnet_id for fixed in port.fixed_ips):
                return port
        raise errors.interface_not_found_for_subnet(router.id, target.subnet_id or "")
    found = next((port for port in ports if port.id == target.port_id), None)
    if found is None:
        raise errors.interface_not_found(router.id, target.port_id)
    if target.subnet_id not in (None, *(fixed.subnet_id for fixed in found.fixed_ips)):
        raise errors.subnet_mismatch(found.id, target.subnet_id or "")
    return found


def _check_unrouted(router: Router, gone: list[Subnet]) -> None:
    for subnet in gone:
        if any(route.nexthop in subnet.cidr for route in router.routes):
            raise errors.interface_in_use_by_route(router.id, subnet.id)


def _freed(snapshot: Snapshot, router: Router, gone: list[Subnet]) -> tuple[FloatingIP, ...]:
    """The floating IPs that lead nowhere without these subnets. Raises ApiError 409 for one that needs the router."""
    freed = []
    for floating_ip in floating_ips_through(snapshot, router):
        for subnet in gone:
            if floating_ip.fixed_address is not None and floating_ip.fixed_address in subnet.cidr:
                if keeps(snapshot, router, floating_ip):
                    raise errors.interface_in_use_by_floating_ip(router.id, subnet.id)
                freed.append(release(floating_ip))
    return tuple(freed)


def _check_routes(snapshot: Snapshot, router: Router) -> None:
    """Raises ApiError 400."""
    if len(router.routes) > ROUTES:
        raise errors.too_many_routes(router.id, ROUTES)
    shown = [parsers.encode_route(route) for route in router.routes]
    subnets = list(router_subnets(snapshot, router))
    own = {fixed.address for port in router_ports(snapshot, router) for fixed in port.fixed_ips}
    for route in router.routes:
        if route.destination.version != route.nexthop.version:
            raise errors.bad_routes(shown, "the nexthop is not of the destination's IP version")
        if not any(route.nexthop in subnet.cidr for subnet in subnets):
            raise errors.bad_routes(shown, "the nexthop is not connected with router")
        if route.nexthop in own:
            raise errors.bad_routes(shown, "the nexthop is used by router")


def _find(snapshot: Snapshot, router_id: str) -> Router | None:
    return snapshot.routers.get(router_id)


def _candidates(snapshot: Snapshot, filters: Filters) -> Iterable[Router]:
    return named(snapshot.routers, filters)


def _owner(snapshot: Snapshot, router: Router) -> Owner:
    return router_owner(router.id)


def _sees(snapshot: Snapshot, caller: Identity, router: Router) -> bool:
    return caller.may_see(router.project_id)


ROUTERS: Collection[Router] = Collection(
    singular="router",
    plural="routers",
    attributes=ATTRIBUTES,
    find=_find,
    candidates=_candidates,
    owner=_owner,
    sees=_sees,
    may_change=by_project,
    encode=encode_router,
    sift=sift_nothing,
    create=create_router,
    update=update_router,
    delete=delete_router,
    put=put_router,
)

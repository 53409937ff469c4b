"""Routers of the Neutron API, with interfaces and routes.

Not implemented and rejected: several external gateways, QoS policies, flavors.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from uuid import UUID, uuid5

from fairlead.api.http.front_end import JsonObject
from fairlead.api.http.listing import Item
from fairlead.api.http.openapi import IDENTITY, TEXT
from fairlead.api.network import errors, parsers
from fairlead.api.network.attributes import STANDARD, Attribute, read_only, unsupported_attribute
from fairlead.api.network.collection import (
    BUILD_STATUS,
    Collection,
    EncodeContext,
    RequestContext,
    encode_standard,
    named,
    present,
    standard_values,
)
from fairlead.api.network.gateways import encode_gateway, read_gateway
from fairlead.api.network.limits import EXTRA_ROUTES, FIXED_IPS
from fairlead.changes import access, routers
from fairlead.changes.access import Verb
from fairlead.changes.gateways import GatewayRequest
from fairlead.changes.routers import Attachment, InterfaceTarget, RouterChange
from fairlead.model.documents.network import Route, Router
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import as_single_step
from fairlead.schema import Parser, Schema, Values, array_schema, object_schema, reads

ATTRIBUTES = {
    **STANDARD,
    "admin_state_up": Attribute(parse=parsers.boolean),
    "status": read_only(TEXT),
    "routes": Attribute(parse=parsers.routes(EXTRA_ROUTES), post=False, nullable=True, filterable=False),
    "external_gateway_info": Attribute(parse=read_gateway, nullable=True, filterable=False),
    "distributed": Attribute(parse=parsers.boolean, nullable=True, filterable=False, in_responses=False),
    "ha": Attribute(parse=parsers.boolean, nullable=True, filterable=False, in_responses=False),
    "external_gateways": unsupported_attribute(
        [], because="several gateways are not supported; give external_gateway_info"
    ),
    "enable_ndp_proxy": unsupported_attribute(False, because="the NDP proxy is not supported"),
    "enable_default_route_bfd": unsupported_attribute(False, because="BFD is not supported"),
    "enable_default_route_ecmp": unsupported_attribute(False, because="several gateways are not supported"),
    "qos_policy_id": unsupported_attribute(because="QoS policies are not supported"),
    "flavor_id": Attribute(parse=parsers.only(because="flavors are not supported"), put=False, nullable=True),
    "availability_zone_hints": Attribute(
        parse=parsers.only([], because="availability zones are not supported"), put=False, filterable=False
    ),
    "availability_zones": read_only(array_schema(TEXT, 0), sifts=False),
}


def encode_router(view: EncodeContext, router: Router) -> Item:
    owner = owner_of(router)
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
    router = Router(**standard_values(context, values), admin_state_up=values.get("admin_state_up", True))
    _check_kind(context, values, Verb.CREATE)
    port_id = str(uuid5(UUID(context.new_id), "gateway"))
    change = RouterChange(router=router, gateway=_gateway(values), gateway_port_id=port_id)
    return routers.create_router(snapshot, context.caller, change)


def update_router(snapshot: Snapshot, context: RequestContext, router: Router, values: Values) -> Changes:
    _check_kind(context, values, Verb.UPDATE)
    fields = present(values, ["name", "description", "admin_state_up"])
    if "routes" in values:
        fields["routes"] = values["routes"] or ()
    changed = replace(router, **fields)
    change = RouterChange(router=changed, gateway=_gateway(values), gateway_port_id=context.new_id)
    return routers.update_router(snapshot, context.caller, router, change, context.now)


def _check_kind(context: RequestContext, values: Values, verb: Verb) -> None:
    """Check that only administrators set `distributed` and `ha`, as in Neutron. The values are ignored and not shown,
    because OVN routers are both. Raises Refused."""
    asked = {name for name in ("distributed", "ha") if values.get(name) is not None}
    access.check_fields(context.caller.is_admin, verb, Router, asked)


def _gateway(values: Values) -> GatewayRequest | None:
    """Return the requested gateway; None if the body has none. A null removes the gateway."""
    return (values["external_gateway_info"] or GatewayRequest()) if "external_gateway_info" in values else None


_ROUTES = parsers.routes(EXTRA_ROUTES)


@reads(object_schema({"router": object_schema({"routes": _ROUTES.schema}, ["routes"])}, ["router"]))
def read_routes(body: object) -> tuple[Route, ...]:
    """Parse `{"router": {"routes": [...]}}`. Raises ApiError 400."""
    router = body.get("router") if isinstance(body, dict) else None
    if not isinstance(router, dict) or set(router) != {"routes"}:
        raise errors.bad_request("Unable to find 'routes' in request body")
    try:
        return _ROUTES(router["routes"])
    except ValueError as error:
        raise errors.bad_attribute("routes", str(error)) from None


def _target(body: object, *, removing: bool) -> InterfaceTarget:
    """Parse the subnet or port of a router interface. Raises ApiError 400."""
    if not isinstance(body, dict):
        raise errors.bad_request("Body contains invalid data")
    unknown = sorted(str(name) for name in body if name not in ("port_id", "subnet_id"))
    if unknown:
        raise errors.bad_request(f"Unrecognized attribute(s) '{', '.join(unknown)}'")
    if not body:
        raise errors.bad_resource("router", "Either subnet_id or port_id must be specified")
    try:
        target = InterfaceTarget(**{name: parsers.uuid(value) for name, value in body.items()})
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


ROUTERS: Collection[Router] = Collection(
    singular="router",
    plural="routers",
    attributes=ATTRIBUTES,
    find=lambda snapshot, key: snapshot.routers.get(key),
    candidates=lambda snapshot, filters: named(snapshot.routers, filters),
    encode=encode_router,
    create=as_single_step(create_router),
    update=update_router,
    delete=routers.delete_router,
)

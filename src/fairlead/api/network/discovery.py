"""Discovery: versions, extensions, and empty lists of resources that are not implemented.

An extension is listed if it is implemented; clients then show its options and send its attributes.
"""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import ApiError, JsonObject, json_response
from fairlead.api.http.openapi import TEXT, Operation
from fairlead.schema import Schema, array_schema, object_schema

EXTENSIONS: Mapping[str, str] = {
    "binding": "Port Binding",
    "empty-string-filtering": "Empty String Filtering Extension",
    "ext-gw-mode": "Neutron L3 Configurable external gateway mode",
    "external-net": "Neutron external network",
    "extraroute": "Neutron Extra Route",
    "extraroute-atomic": "Atomically add/remove extra routes",
    "filter-validation": "Filter parameters validation",
    "fip-port-details": "Floating IP Port Details Extension",
    "ip-substring-filtering": "IP address substring filtering",
    "local-ip-fairlead": "Local IP fallback, health of replicas, IPv6, mode that may change, forced deletion, quotas",
    "local_ip": "Local IP",
    "net-mtu": "Network MTU",
    "net-mtu-writable": "Network MTU (writable)",
    "pagination": "Pagination support",
    "port-security": "Port Security",
    "project-id": "project_id field enabled",
    "provider": "Provider Network",
    "quota-check-limit": "Quota engine limit check",
    "quota_details": "Quota details management support",
    "quotas": "Quota management support",
    "revision-if-match": "If-Match constraints based on revision_number",
    "router": "Neutron L3 Router",
    "sorting": "Sorting support",
    "standard-attr-description": "standard-attr-description",
    "standard-attr-revisions": "Resource revision numbers",
    "standard-attr-tag": "Tag support for resources with standard attribute: floatingip, network, port, router, subnet",
    "standard-attr-timestamp": "Resource timestamps",
    "tag-ports-during-bulk-creation": "Tag Ports During Bulk Creation",
}
_UPDATED: Mapping[str, str] = {"local_ip": "2021-07-26T10:00:00-00:00"}
"""Dates of extensions that clients check (neutron-lib, api/definitions)."""
_GROUPS = "security groups; restrict clients with allowed_cidrs of a listener"
NOT_IMPLEMENTED: Mapping[str, tuple[str, str]] = {
    "address-groups": ("address_groups", "address groups"),
    "address-scopes": ("address_scopes", "address scopes"),
    "agents": ("agents", "agents"),
    "availability_zones": ("availability_zones", "availability zones"),
    "default-security-group-rules": ("default_security_group_rules", "security groups"),
    "flavors": ("flavors", "flavors"),
    "log/logs": ("logs", "logs of packets"),
    "metering/metering-label-rules": ("metering_label_rules", "metering"),
    "metering/metering-labels": ("metering_labels", "metering"),
    "ndp_proxies": ("ndp_proxies", "the NDP proxy"),
    "qos/policies": ("policies", "QoS policies"),
    "qos/rule-types": ("rule_types", "QoS policies"),
    "rbac-policies": ("rbac_policies", "RBAC policies; `shared` shares a network with every project"),
    "security-group-rules": (
        "security_group_rules",
        _GROUPS,
    ),
    "security-groups": ("security_groups", _GROUPS),
    "segments": ("segments", "segments; set the provider attributes of an external network"),
    "service-providers": ("service_providers", "service providers"),
    "subnetpools": ("subnetpools", "subnet pools; set the cidr of a subnet"),
    "trunks": ("trunks", "trunks"),
}
"""Path -> (list key, name in the 501 text) of resources that are not implemented. Lists are empty, items return 404,
and creation returns 501."""
_RESOURCES = ("network", "subnet", "port", "router", "floatingip", "local_ip")
_EXTENSION: Schema = object_schema(
    {**dict.fromkeys(("alias", "name", "description", "updated"), TEXT), "links": array_schema({}, 0)}
)
_EXTENSIONS = array_schema(_EXTENSION, len(EXTENSIONS))


def versions_document(root: str) -> JsonObject:
    return {"versions": [_version(root)]}


def version_document(root: str) -> JsonObject:
    """Return the version document. The resource list is Neutron's; the version is for clients with an endpoint that
    ends in /v2.0."""
    resources = [
        {"name": name, "collection": f"{name}s", "links": [{"rel": "self", "href": f"{root}/v2.0/{name}s"}]}
        for name in _RESOURCES
    ]
    return {"version": _version(root), "resources": resources}


def discovery_routes() -> list[Operation]:
    """Return the routes below /v2.0."""
    routes = [
        Operation("GET", "/extensions", _extensions, gives={200: object_schema({"extensions": _EXTENSIONS})}),
        Operation("GET", "/extensions/{alias}", _extension, gives={200: object_schema({"extension": _EXTENSION})}),
    ]
    for path, (key, what) in NOT_IMPLEMENTED.items():
        routes += [
            Operation("GET", f"/{path}", _none_of(key), gives={200: object_schema({key: array_schema({}, 0)})}),
            Operation("POST", f"/{path}", _not_here(what), gives={}),
            *(Operation(verb, f"/{path}/{{id}}", _no_item, gives={}) for verb in ("GET", "PUT", "DELETE")),
        ]
    return routes


def _version(root: str) -> JsonObject:
    return {"id": "v2.0", "status": "CURRENT", "links": [{"rel": "self", "href": f"{root}/v2.0/"}]}


def _encode_extension(alias: str) -> JsonObject:
    return {
        "alias": alias,
        "name": EXTENSIONS[alias],
        "description": EXTENSIONS[alias],
        "updated": _UPDATED.get(alias, "2026-01-01T00:00:00-00:00"),
        "links": [],
    }


async def _extensions(request: Request) -> Response:
    return json_response({"extensions": [_encode_extension(alias) for alias in EXTENSIONS]})


async def _extension(request: Request) -> Response:
    alias = request.path_params["alias"]
    if alias not in EXTENSIONS:
        raise ApiError(404, f"Extension with alias {alias} does not exist", "HTTPNotFound")
    return json_response({"extension": _encode_extension(alias)})


def _none_of(key: str) -> Callable[[Request], Awaitable[Response]]:
    async def empty(request: Request) -> Response:
        return json_response({key: []})

    return empty


def _not_here(what: str) -> Callable[[Request], Awaitable[Response]]:
    async def refuse(request: Request) -> Response:
        raise ApiError(501, f"This is not supported: {what}", "HTTPNotImplemented")

    return refuse


async def _no_item(request: Request) -> Response:
    raise ApiError(404, f"{request.path_params['id']} could not be found.", "HTTPNotFound")

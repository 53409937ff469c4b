"""Every resource of the Octavia API: its routes, and with them what each takes and what it gives."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.door import House, json_response
from fairlead.api.fields import Parser, Schema, Values, array_schema, list_of, object_schema
from fairlead.api.listing import LARGEST_PAGE
from fairlead.api.octavia import encode, limits, specs
from fairlead.api.octavia.catalog import catalog_routes
from fairlead.api.octavia.errors import not_found
from fairlead.api.octavia.lists import list_query
from fairlead.api.octavia.policy import guard
from fairlead.api.octavia.providers import amphora_routes, provider_routes
from fairlead.api.octavia.quotas import quota_routes
from fairlead.api.octavia.views import Views
from fairlead.api.openapi import FLAG, LINKS, Operation, View
from fairlead.compilers.providers import DEFAULT_PROVIDER
from fairlead.compilers.unsupported import Unsupported

_ABSENT = {
    "healthmonitors": ("HealthMonitor", "health monitors"),
    "l7policies": ("L7Policy", "L7 policies"),
}
"""Resources that clients ask about and of which there are none: lists are empty, creating one is refused."""
_NOT_YET = {
    "/loadbalancers/{id}/stats": "statistics",
    "/listeners/{id}/stats": "statistics",
}


def resource_routes(house: House) -> list[Operation]:
    """Every resource, below whatever prefix they are mounted at."""
    views = Views(house)
    routes = [
        *_load_balancer_routes(views),
        *_listener_routes(views),
        *_pool_routes(views),
        *_member_routes(views),
        *provider_routes(),
        *amphora_routes(),
        *quota_routes(house),
        *catalog_routes(house),
    ]
    for path in _ABSENT:
        routes += _absent_routes(path)
    for path, words in _NOT_YET.items():
        routes += [_refusal("GET", path, words)]
    return [guard(route) for route in routes]


def _load_balancer_routes(views: Views) -> list[Operation]:
    path, root, shown = "/loadbalancers", "loadbalancer", encode.LOAD_BALANCER
    create = specs.body(root, specs.LOAD_BALANCER_POST, argument="load_balancer")
    update = specs.body(root, specs.LOAD_BALANCER_PUT, argument="load_balancer")
    whole = {201: _one(root, encode.LOAD_BALANCER_TREE)}
    statuses = {200: object_schema({"statuses": object_schema({root: {"type": "object"}}, [root])}, ["statuses"])}
    return [
        _list(path, "loadbalancers", views.list_load_balancers, shown),
        Operation("POST", path, views.create_load_balancer, takes=create, gives=whole),
        Operation("GET", path + "/{id}", views.show_load_balancer, gives={200: _one(root, shown)}),
        Operation("PUT", path + "/{id}", views.update_load_balancer, takes=update, gives={200: _one(root, shown)}),
        Operation("DELETE", path + "/{id}", views.delete_load_balancer, gives={204: None}, query={"cascade": FLAG}),
        Operation("GET", path + "/{id}/status", views.show_statuses, gives=statuses),
        Operation("GET", path + "/{id}/statuses", views.show_statuses, gives=statuses),
        Operation("PUT", path + "/{id}/failover", views.fail_over, gives={202: None}),
    ]


def _listener_routes(views: Views) -> list[Operation]:
    path, root, shown = "/listeners", "listener", encode.LISTENER
    create = specs.body(root, specs.LISTENER_POST, argument="listener")
    update = specs.body(root, specs.LISTENER_PUT, argument="listener_")
    return [
        _list(path, "listeners", views.list_listeners, shown),
        Operation("POST", path, views.create_listener, takes=create, gives={201: _one(root, shown)}),
        Operation("GET", path + "/{id}", views.show_listener, gives={200: _one(root, shown)}),
        Operation("PUT", path + "/{id}", views.update_listener, takes=update, gives={200: _one(root, shown)}),
        Operation("DELETE", path + "/{id}", views.delete_listener, gives={204: None}),
    ]


def _pool_routes(views: Views) -> list[Operation]:
    path, root, shown = "/pools", "pool", encode.POOL
    create = specs.body(root, specs.POOL_POST, argument="pool")
    update = specs.body(root, specs.POOL_PUT, argument="pool_")
    return [
        _list(path, "pools", views.list_pools, shown),
        Operation("POST", path, views.create_pool, takes=create, gives={201: _one(root, shown)}),
        Operation("GET", path + "/{id}", views.show_pool, gives={200: _one(root, shown)}),
        Operation("PUT", path + "/{id}", views.update_pool, takes=update, gives={200: _one(root, shown)}),
        Operation("DELETE", path + "/{id}", views.delete_pool, gives={204: None}),
    ]


def _member_routes(views: Views) -> list[Operation]:
    path, root, shown = "/pools/{pool_id}/members", "member", encode.MEMBER
    create = specs.body(root, specs.MEMBER_POST, argument="member_")
    update = specs.body(root, specs.MEMBER_PUT, argument="member_")
    each = specs.nested(specs.MEMBER_POST, "member")
    batch: Parser[tuple[Values, ...]] = specs.under("members", list_of(each, limits.MEMBERS), "a list")
    additive = {"additive_only": FLAG}
    return [
        _list(path, "members", views.list_members, shown),
        Operation("POST", path, views.create_member, takes=create, gives={201: _one(root, shown)}),
        Operation("PUT", path, views.replace_members, takes=batch, gives={202: None}, query=additive),
        Operation("GET", path + "/{id}", views.show_member, gives={200: _one(root, shown)}),
        Operation("PUT", path + "/{id}", views.update_member, takes=update, gives={200: _one(root, shown)}),
        Operation("DELETE", path + "/{id}", views.delete_member, gives={204: None}),
    ]


def _one(root: str, shown: encode.Shown) -> Schema:
    return object_schema({root: object_schema(shown, shown)}, [root])


def _list(path: str, plural: str, view: View, shown: encode.Shown) -> Operation:
    """A list shows the attributes that `fields` asks for, so none of them has to be there."""
    gives = {plural: array_schema(object_schema(shown), LARGEST_PAGE), f"{plural}_links": LINKS}
    return Operation("GET", path, view, gives={200: object_schema(gives, gives)}, query=list_query(shown))


def _refusal(method: str, path: str, words: str) -> Operation:
    return Operation(method, path, _refuse(words), gives={}, fails=(501,))


def _refuse(words: str) -> View:
    async def refuse(request: Request) -> Response:
        raise Unsupported(words, DEFAULT_PROVIDER)

    return refuse


def _absent_routes(path: str) -> list[Operation]:
    resource, words = _ABSENT[path]
    nothing: Mapping[str, list[str]] = {path: [], f"{path}_links": []}

    async def empty(request: Request) -> Response:
        return json_response(nothing)

    async def missing(request: Request) -> Response:
        raise not_found(resource, request.path_params["id"])

    return [
        Operation(
            "GET", f"/{path}", empty, gives={200: object_schema({name: {"maxItems": 0} for name in nothing}, nothing)}
        ),
        _refusal("POST", f"/{path}", words),
        *(Operation(method, f"/{path}/{{id}}", missing, gives={}) for method in ("GET", "PUT", "DELETE")),
    ]

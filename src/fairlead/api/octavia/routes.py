"""Routes of the Octavia API with the schemas of their requests and responses."""

from fairlead.api.http.front_end import Services
from fairlead.api.http.listing import MAX_PAGE_SIZE
from fairlead.api.http.openapi import FLAG, LINKS, Handler, Operation
from fairlead.api.octavia import encode, specs
from fairlead.api.octavia.catalog import catalog_routes
from fairlead.api.octavia.handlers import LoadBalancerHandlers
from fairlead.api.octavia.lists import list_query, show_one
from fairlead.api.octavia.parts import MEMBER, PARTS, Part
from fairlead.api.octavia.policy import guard
from fairlead.api.octavia.providers import amphora_routes, provider_routes
from fairlead.api.octavia.quotas import quota_routes
from fairlead.model.documents import sizes
from fairlead.schema import Parser, Schema, Values, array_schema, list_of, object_schema

_STATS = {200: object_schema({"stats": object_schema(encode.STATISTICS, encode.STATISTICS)}, ["stats"])}


def resource_routes(services: Services) -> list[Operation]:
    """Return the routes of all resources, relative to a prefix."""
    views = LoadBalancerHandlers(services)
    routes = [
        *_load_balancer_routes(views),
        *(operation for part in PARTS for operation in _part_routes(views, part)),
        _member_batch(views),
        Operation("GET", "/listeners/{id}/stats", views.show_listener_stats, gives=_STATS, fails=[501]),
        *provider_routes(services),
        *quota_routes(services),
        *catalog_routes(services),
    ]
    return [guard(route) for route in routes]


def machine_routes() -> list[Operation]:
    """Return the routes of the amphora API."""
    return [guard(route) for route in amphora_routes()]


def _load_balancer_routes(views: LoadBalancerHandlers) -> list[Operation]:
    path, root, shown = "/loadbalancers", "loadbalancer", encode.LOAD_BALANCER
    create = specs.body(root, specs.LOAD_BALANCER_POST, argument="load_balancer")
    update = specs.body(root, specs.LOAD_BALANCER_PUT, argument="load_balancer")
    whole = {201: _one(root, encode.LOAD_BALANCER_TREE)}
    statuses = {200: object_schema({"statuses": object_schema({root: {"type": "object"}}, [root])}, ["statuses"])}
    return [
        _list(path, "loadbalancers", views.list_load_balancers, shown),
        Operation("POST", path, views.create_load_balancer, takes=create, gives=whole),
        show_one(path + "/{id}", views.show_load_balancer, root, shown),
        Operation("PUT", path + "/{id}", views.update_load_balancer, takes=update, gives={200: _one(root, shown)}),
        Operation("DELETE", path + "/{id}", views.delete_load_balancer, gives={204: None}, query={"cascade": FLAG}),
        Operation("GET", path + "/{id}/status", views.show_statuses, gives=statuses),
        Operation("GET", path + "/{id}/statuses", views.show_statuses, gives=statuses),
        Operation("GET", path + "/{id}/stats", views.show_load_balancer_stats, gives=_STATS, fails=[501]),
        Operation("PUT", path + "/{id}/failover", views.fail_over, gives={202: None}),
    ]


def _part_routes(views: LoadBalancerHandlers, part: Part) -> list[Operation]:
    path, root, shown = part.path, part.root, _one(part.root, part.shown)
    create = specs.body(root, part.post, argument=part.argument)
    update = specs.body(root, part.put, argument=part.argument)
    return [
        _list(path, part.plural, views.list_parts(part), part.shown),
        Operation("POST", path, views.create_part(part), takes=create, gives={201: shown}),
        show_one(path + "/{id}", views.show_part(part), root, part.shown),
        Operation("PUT", path + "/{id}", views.update_part(part), takes=update, gives={200: shown}),
        Operation("DELETE", path + "/{id}", views.delete_part(part), gives={204: None}),
    ]


def _member_batch(views: LoadBalancerHandlers) -> Operation:
    each = specs.nested(specs.MEMBER_POST)
    batch: Parser[tuple[Values, ...]] = specs.under(
        "members", list_of(each, sizes.MAX_MEMBERS), "a list", argument="members_"
    )
    additive = {"additive_only": FLAG}
    return Operation("PUT", MEMBER.path, views.replace_members, takes=batch, gives={202: None}, query=additive)


def _one(root: str, shown: encode.Shown) -> Schema:
    return object_schema({root: encode.full_schema(shown)}, [root])


def _list(path: str, plural: str, view: Handler, shown: encode.Shown) -> Operation:
    """Return the operation of a list. Its attributes are optional, because `fields` selects them."""
    gives = {plural: array_schema(object_schema(shown), MAX_PAGE_SIZE), f"{plural}_links": LINKS}
    return Operation("GET", path, view, gives={200: object_schema(gives, gives)}, query=list_query(shown))

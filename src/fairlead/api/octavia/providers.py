"""Providers and their capabilities, and the amphora API, which is always empty."""

from collections.abc import Iterable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import ApiError, Services, json_response
from fairlead.api.http.listing import MAX_PAGE_SIZE
from fairlead.api.http.openapi import FLAG, IDENTITY, TEXT, TEXTS, Handler, Operation
from fairlead.api.octavia.catalog import FLAVORS, ZONES, CatalogNames
from fairlead.api.octavia.errors import not_found
from fairlead.api.octavia.lists import SimpleList, unpaged
from fairlead.api.octavia.options import feature_name
from fairlead.changes.catalog_selection import find_provider
from fairlead.compilers.providers import ProviderNames
from fairlead.model.documents.abilities import Abilities, Feature
from fairlead.model.documents.loadbalancer import ListenerProtocol, PoolProtocol
from fairlead.schema import Schema, array_schema, object_schema, or_null

_DESCRIBED: Mapping[str, Schema] = {"name": TEXT, "description": TEXT}
_QUERY: Mapping[str, Schema] = {"fields": TEXTS, **dict.fromkeys(_DESCRIBED, TEXTS)}
_TEXTS = ("cached_zone", "cert_expiration", "compute_flavor", "created_at", "ha_ip", "lb_network_ip", "role", "status")
_MORE_TEXTS = ("updated_at", "vrrp_interface", "vrrp_ip")
_IDS = ("compute_id", "ha_port_id", "image_id", "loadbalancer_id", "vrrp_port_id")
_NUMBERS = ("vrrp_id", "vrrp_priority")
_AMPHORAE = SimpleList(
    plural="amphorae",
    links="amphorae_links",
    attributes={
        "id": IDENTITY,
        "cert_busy": FLAG,
        **dict.fromkeys((*_TEXTS, *_MORE_TEXTS), or_null(TEXT)),
        **dict.fromkeys(_IDS, or_null(IDENTITY)),
        **dict.fromkeys(_NUMBERS, or_null({"type": "integer"})),
    },
)


def provider_routes(services: Services) -> list[Operation]:
    names = services.providers
    return [
        Operation("GET", "/providers", _list(services), gives={200: _described("providers")}, query=_QUERY),
        _capabilities(names, "flavor_capabilities", FLAVORS),
        _capabilities(names, "availability_zone_capabilities", ZONES),
    ]


def amphora_routes() -> list[Operation]:
    path = "/amphorae/{id}"
    return [
        Operation("GET", "/amphorae", _list_amphorae, gives={200: _AMPHORAE.response}, query=_AMPHORAE.query),
        Operation("GET", path, _no_amphora, gives={}),
        Operation("DELETE", path, _no_amphora, gives={}),
        Operation("GET", f"{path}/stats", _no_statistics, gives={}),
        Operation("PUT", f"{path}/failover", _no_amphora, gives={}),
        Operation("PUT", f"{path}/config", _no_amphora, gives={}),
    ]


def _list(services: Services) -> Handler:
    names = services.providers

    async def show_all(request: Request) -> Response:
        providers = ({"name": name, "description": names[name].description} for name in names)
        return json_response({"providers": unpaged(request, providers)})

    snapshot = services.model.snapshot
    show_all.__doc__ = "\n\n".join(_can(name, names[name].abilities_in(snapshot)) for name in names)
    return show_all


def _can(name: str, abilities: Abilities) -> str:
    """Format a provider's abilities for the OpenAPI document, one line for each attribute."""
    values: Mapping[str, Iterable[str]] = {
        "protocol of listeners": abilities.listener_protocols - {ListenerProtocol.ANY},
        "protocol of pools": abilities.pool_protocols - {PoolProtocol.ANY},
        "lb_algorithm": abilities.algorithms,
        "session_persistence": abilities.persistence,
        "type of health monitors": abilities.monitors,
        "locality": abilities.localities,
        "down_member": abilities.down_members,
        "options": {feature_name(Feature(each)) for each in abilities.options},
    }
    lines = (f"* {what}: {', '.join(sorted(map(str, its))) or 'none'}" for what, its in values.items())
    return "\n".join((f"The provider `{name}` can, in this deployment:", "", *lines))


def _capabilities(names: ProviderNames, root: str, family: CatalogNames) -> Operation:
    async def show(request: Request) -> Response:
        """List the keys that a profile of this provider may have."""
        known = family.capabilities(find_provider(names, request.path_params["name"]))
        items = ({"name": name, "description": words} for name, words in known.items())
        return json_response({root: unpaged(request, items)})

    view: Handler = show
    return Operation("GET", f"/providers/{{name}}/{root}", view, gives={200: _described(root)}, query=_QUERY)


def _described(root: str) -> Schema:
    """Return the schema of a list of names; `fields` may omit attributes."""
    return object_schema({root: array_schema(object_schema(_DESCRIBED), MAX_PAGE_SIZE)}, [root])


async def _list_amphorae(request: Request) -> Response:
    return _AMPHORAE.respond(request, ())


async def _no_amphora(request: Request) -> Response:
    raise not_found("Amphora", request.path_params["id"])


async def _no_statistics(request: Request) -> Response:
    raise ApiError(404, f"Amphora stats for {request.path_params['id']} not found.")

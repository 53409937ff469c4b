"""Routes of networks below /1.0: LXD's `ovn` networks, and `physical` and `bridge` ones, which are uplinks."""

from collections.abc import Callable, Mapping
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import ApiError, JsonObject, Services
from fairlead.api.http.openapi import TEXT, Operation, read_body
from fairlead.api.lxd import bodies
from fairlead.api.lxd.allocations import allocation_routes
from fairlead.api.lxd.caller import ALL_PROJECTS, caller_of, in_project, projects_asked
from fairlead.api.lxd.config_texts import wrong
from fairlead.api.lxd.envelope import EMPTY, LIST, check_match, created, sync, sync_schema
from fairlead.api.lxd.events import lifecycle
from fairlead.api.lxd.filters import LIST_QUERY, PROJECT_QUERY, is_recursive, listed, read_filter
from fairlead.api.lxd.go_texts import quote
from fairlead.api.lxd.lookup import find_network, is_called, name_fault, name_of, networks_of, project_of
from fairlead.api.lxd.network_config import CHOSEN, VOLATILE, NetworkRequest, decode_network
from fairlead.api.lxd.network_encode import (
    OVN,
    SHOWN,
    TYPES,
    config_of,
    encode_network,
    path_of,
    tag_of,
    url_of,
)
from fairlead.api.lxd.network_state import STATE, encode_state
from fairlead.api.lxd.uplink_config import BRIDGE, UPLINKS, UplinkRequest, decode_uplink, uplink_type
from fairlead.changes.caller import ChangeContext
from fairlead.changes.declarative_networks import (
    create_network_from_spec,
    delete_declarative_network,
    update_network_from_spec,
)
from fairlead.changes.declarative_uplinks import create_uplink, delete_uplink, update_uplink
from fairlead.changes.identity import DEFAULT_PROJECT
from fairlead.changes.restrictions import allows_network
from fairlead.model.documents.network import Network
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import Steps, sort_cooperatively
from fairlead.schema import Field, Values, text

MAX_NAME_LENGTH = 255
"""Maximum characters that are checked; valid names are shorter."""
_PUT: Mapping[str, Field] = {"description": Field(text(bodies.MAX_VALUE_LENGTH)), "config": Field(bodies.config)}
PUT = bodies.struct(_PUT)
POST = bodies.struct({**_PUT, "name": Field(text(MAX_NAME_LENGTH)), "type": Field(text(MAX_NAME_LENGTH))})
RENAME = bodies.struct({"name": Field(text(MAX_NAME_LENGTH))})
Config = Mapping[str, str]
Revise = Callable[[Values, Config, str], tuple[Config, str]]
"""Returns the new config and description for a body and the present values."""


def routes(services: Services) -> list[Operation]:
    views, query = NetworkHandlers(services), PROJECT_QUERY
    many, one = "/networks", "/networks/{network}"
    return [
        Operation(
            "GET", many, views.show_all, gives={200: sync_schema(LIST)}, query={**LIST_QUERY, ALL_PROJECTS: TEXT}
        ),
        Operation("POST", many, views.create, takes=POST, gives={201: EMPTY}, query=query),
        Operation("GET", one, views.show_one, gives={200: sync_schema(SHOWN)}, query=query),
        Operation("PUT", one, views.replace, takes=PUT, gives={200: EMPTY}, query=query, fails=[412]),
        Operation("PATCH", one, views.patch, takes=PUT, gives={200: EMPTY}, query=query, fails=[412]),
        Operation("POST", one, views.rename, takes=RENAME, gives={201: EMPTY}, query=query),
        Operation("DELETE", one, views.delete, gives={200: EMPTY}, query=query),
        Operation("GET", f"{one}/state", views.show_state, gives={200: sync_schema(STATE)}, query=query),
        *allocation_routes(services),
    ]


class NetworkHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services

    # Requests

    async def show_all(self, request: Request) -> Response:
        """List networks: URLs, or objects with `recursion`. With `all-projects`, those of all projects of the
        caller."""
        snapshot = self._services.model.snapshot
        whole = is_recursive(request) or bool((await run_in_steps(read_filter(request))).clauses)
        return await listed(request, await run_in_steps(self._listed(request, snapshot, whole)))

    def _listed(
        self, request: Request, snapshot: Snapshot, whole: bool
    ) -> Steps[list[tuple[str, Callable[[], JsonObject]]]]:
        caller = caller_of(request)
        networks = list[Network]()
        for project in projects_asked(request, snapshot, caller):
            networks.extend(networks_of(snapshot, project))
            yield
        found = yield from sort_cooperatively(networks, key=lambda each: (project_of(each), name_of(snapshot, each)))
        items = list[tuple[str, Callable[[], JsonObject]]]()
        for network in found:
            shown: JsonObject = {}
            if whole:
                shown = yield from encode_network(self._services, snapshot, caller, network)
            items.append((url_of(snapshot, network), partial(dict, shown)))
            yield
        return items

    async def create(self, request: Request) -> Response:
        """Create a network of type `ovn`, or an uplink of type `physical` or `bridge`."""
        values, services = await read_body(request), self._services
        caller, made = caller_of(request), services.new_id()
        name: str = values.get("name", "")
        _check_name(name)
        _check_volatile(name, values.get("config", {}))
        kind = _read_type(values.get("type", ""), caller.project_id)
        config, description = _without_empty(values.get("config", {})), values.get("description", "")

        async def change(old: Snapshot) -> Changes:
            if is_called(old, caller.project_id, name):
                raise ApiError(409, f"Network {quote(name)} already exists")
            _check_allowed(old, caller.project_id, name)
            asker = self._caller(request)
            if kind != OVN:
                wire = UplinkRequest(name=name, description=description, config=config, kind=UPLINKS[kind])
                uplink = decode_uplink(wire, services.external_mtu, None)
                return await run_in_steps(create_uplink(old, asker, made, services.new_id, uplink))
            said = NetworkRequest(name=name, description=description, config=config, project_id=caller.project_id)
            asked = decode_network(old, said, services.mtu, None)
            return await run_in_steps(create_network_from_spec(old, asker, made, services.new_id, asked))

        written = await services.record(change)
        path = path_of(written.snapshot, written.snapshot.networks[made])
        lifecycle(request, "network-created", path)
        await services.wait_applied(written)
        return created(in_project(path, caller.project_id))

    async def show_one(self, request: Request) -> Response:
        """Show a network. Its ETag is accepted in If-Match."""
        services, snapshot, caller = self._services, self._services.model.snapshot, caller_of(request)
        network = find_network(snapshot, caller.project_id, request.path_params["network"])
        shown = await run_in_steps(encode_network(services, snapshot, caller, network))
        return sync(shown, tag=tag_of(services, snapshot, network))

    async def show_state(self, request: Request) -> Response:
        """Show the state of a network: addresses, MTU and OVN attributes. Traffic counters are 0."""
        snapshot = self._services.model.snapshot
        network = find_network(snapshot, caller_of(request).project_id, request.path_params["network"])
        return sync(encode_state(snapshot, network))

    async def replace(self, request: Request) -> Response:
        """Replace config and description. Keys that the body omits return to their defaults."""
        return await self._update(request, lambda values, *_: (values.get("config", {}), values.get("description", "")))

    async def patch(self, request: Request) -> Response:
        """Update config and description. Keys that the body omits are unchanged."""
        return await self._update(
            request,
            lambda values, config, description: (
                bodies.merged(config, values.get("config", {})),
                values.get("description", description),
            ),
        )

    async def rename(self, request: Request) -> Response:
        """Rename a network. Networks with this uplink keep it."""
        values, project = await read_body(request), caller_of(request).project_id
        name: str = values.get("name", "")
        if not name:
            raise ApiError(400, "New network name not provided")
        _check_name(name)
        network = self._find(self._services.model.snapshot, request)

        async def change(old: Snapshot) -> Changes:
            found = self._find(old, request)
            if is_called(old, project, name):
                raise ApiError(409, f"Network {quote(name)} already exists")
            _check_allowed(old, project, name)
            return await self._changed(old, request, found, name, config_of(self._services, old, found))

        written = await self._services.record(change)
        path = path_of(written.snapshot, written.snapshot.networks[network.id])
        lifecycle(request, "network-renamed", path)
        await self._services.wait_applied(written)
        return created(in_project(path, project))

    async def delete(self, request: Request) -> Response:
        """Delete a network with its router, load balancers and forwards. Rejected while anything else uses it."""
        path = path_of(self._services.model.snapshot, self._find(self._services.model.snapshot, request))

        async def change(old: Snapshot) -> Changes:
            network, asker = self._find(old, request), self._caller(request)
            if network.external:
                return delete_uplink(old, asker, network.id)
            return await run_in_steps(delete_declarative_network(old, asker, network.id))

        written = await self._services.record(change)
        lifecycle(request, "network-deleted", path)
        await self._services.wait_applied(written)
        return sync()

    async def _update(self, request: Request, revise: Revise) -> Response:
        """Apply a change of config and description. Without a difference nothing is written and no event is sent."""
        values, services, changed = await read_body(request), self._services, list[bool]()

        async def change(old: Snapshot) -> Changes:
            network = self._find(old, request)
            check_match(request, tag_of(services, old, network))
            _check_volatile(name_of(old, network), values.get("config", {}))
            config, description = revise(values, config_of(services, old, network), network.description)
            changes = await self._changed(old, request, network, None, config, description)
            changed[:] = [bool(changes.puts or changes.deletes)]
            return changes

        path = path_of(services.model.snapshot, self._find(services.model.snapshot, request))
        written = await services.record(change)
        if changed == [True]:
            lifecycle(request, "network-updated", path)
        await services.wait_applied(written)
        return sync()

    # Shared

    async def _changed(
        self,
        old: Snapshot,
        request: Request,
        network: Network,
        name: str | None,
        config: Config,
        description: str | None = None,
    ) -> Changes:
        """Return the changes for a network; None leaves the name or the description unchanged."""
        services, asker, config = self._services, self._caller(request), _without_empty(config)
        called = network.name if name is None else name
        described = network.description if description is None else description
        if network.external:
            kind = uplink_type(network)
            wire = UplinkRequest(name=called, description=described, config=config, kind=kind)
            uplink = decode_uplink(wire, services.external_mtu, network)
            return await run_in_steps(update_uplink(old, asker, network.id, services.new_id, uplink))
        said = NetworkRequest(name=called, description=described, config=config, project_id=network.project_id)
        asked = decode_network(old, said, services.mtu, network)
        return await run_in_steps(update_network_from_spec(old, asker, network.id, services.new_id, asked))

    def _caller(self, request: Request) -> ChangeContext:
        services = self._services
        return ChangeContext(
            identity=caller_of(request), now=services.now(), applied=services.applied, providers=services.providers
        )

    def _find(self, snapshot: Snapshot, request: Request) -> Network:
        """Find the network of the request. Raises ApiError 404."""
        try:
            return find_network(snapshot, caller_of(request).project_id, request.path_params["network"])
        except ApiError as error:
            raise ApiError(error.status, f"Failed loading network: {error.message}") from None


def _check_name(name: str) -> None:
    """Check the name of a network. Raises ApiError 400."""
    if not name:
        raise ApiError(400, "No name provided")
    fault = name_fault(name)
    if fault is not None:
        raise ApiError(400, f"Invalid network name: {fault}")


def _read_type(kind: str, project: str) -> str:
    """Return the type of a new network. Outside the default project LXD only has `ovn`; in it the default is
    `bridge`. Raises ApiError 400."""
    kind = kind or (BRIDGE if project == DEFAULT_PROJECT else OVN)
    if kind not in TYPES:
        raise ApiError(400, f"Network type {quote(kind)} is not supported, type must be one of: {', '.join(TYPES)}")
    if kind in UPLINKS and project != DEFAULT_PROJECT:
        raise ApiError(400, "Network type does not support non-default projects")
    return kind


def _check_allowed(snapshot: Snapshot, project: str, name: str) -> None:
    """Check that the project may access a network with this name. Raises ApiError 403, because the caller could not
    read the network otherwise."""
    if not allows_network(snapshot, project, name):
        text = (
            f"Network {quote(name)} is not one of the networks that the project may access (restricted.networks.access)"
        )
        raise ApiError(403, text)


def _check_volatile(name: str, config: Config) -> None:
    """Reject an empty value for a key that the server sets. Raises ApiError 400."""
    for key, value in sorted(config.items()):
        if key.startswith(VOLATILE) and not value:
            raise wrong(name, key, CHOSEN)


def _without_empty(config: Config) -> Config:
    """Drop empty values: an empty value unsets its key."""
    return {key: value for key, value in config.items() if value}

"""Projects of LXD's API. A project has its own networks; no other feature is supported."""

from collections.abc import Mapping
from functools import partial
from ipaddress import ip_network
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import ApiError, JsonObject, Services, identity
from fairlead.api.http.openapi import TEXT, TEXTS, Operation, read_body
from fairlead.api.lxd.bodies import config, merged, struct
from fairlead.api.lxd.caller import in_path, in_project
from fairlead.api.lxd.envelope import EMPTY, LIST, PREFIX, check_match, created, etag, sync, sync_schema
from fairlead.api.lxd.events import lifecycle_of_project
from fairlead.api.lxd.filters import LIST_QUERY, listed
from fairlead.api.lxd.lookup import name_of, networks_of
from fairlead.api.lxd.project_config import OWN_NETWORKS, SUBNETS, read_restrictions
from fairlead.changes.projects import all_projects, change_project, create_project, delete_project, find_project
from fairlead.changes.quotas import limit_in
from fairlead.model.documents.quota import QuotaResource
from fairlead.model.documents.trust import MAX_GRANTED_PREFIXES, GrantedPrefix, Project
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.schema import Field, Schema, Values, object_schema, text

MAX_DESCRIPTION_LENGTH = 1000
_PUT = {"description": Field(text(MAX_DESCRIPTION_LENGTH)), "config": Field(config)}
PUT = struct(_PUT)
POST = struct({**_PUT, "name": Field(text(), required=True)})
SHOWN: Schema = object_schema(
    {"name": TEXT, "description": TEXT, "config": {"type": "object"}, "used_by": TEXTS},
    ["name", "description", "config", "used_by"],
)

USAGE = object_schema({"resources": {"type": "object"}}, ["resources"])


def routes(services: Services) -> list[Operation]:
    views = _ProjectHandlers(services)
    each = "/projects/{name}"
    done = {200: EMPTY}
    return [
        Operation("GET", "/projects", views.list, gives={200: sync_schema(LIST)}, query=LIST_QUERY),
        Operation("POST", "/projects", views.create, takes=POST, gives={201: EMPTY}),
        Operation("GET", each, views.show, gives={200: sync_schema(SHOWN)}),
        Operation("PUT", each, views.replace, takes=PUT, gives=done, fails=[412]),
        Operation("PATCH", each, views.merge, takes=PUT, gives=done, fails=[412]),
        Operation("DELETE", each, views.delete, gives=done),
        Operation("POST", each, views.rename, gives={}),
        Operation("GET", f"{each}/state", views.usage, gives={200: sync_schema(USAGE)}),
    ]


class _ProjectHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def list(self, request: Request) -> Response:
        """List the projects that the caller may see."""
        snapshot, caller = self._services.model.snapshot, identity(request)
        names = (each for each in all_projects(snapshot) if caller.may_see(each) or each in caller.projects)
        return await listed(request, ((_url(name), partial(_show, snapshot, name)) for name in names))

    async def create(self, request: Request) -> Response:
        values, caller = await read_body(request), identity(request)
        project = _made(Project(name=values["name"]), values)
        await self._services.write(lambda snapshot: create_project(snapshot, caller, project))
        lifecycle_of_project(request, "project-created", _url(project.name), project.name)
        return created(_url(project.name))

    async def show(self, request: Request) -> Response:
        snapshot = self._services.model.snapshot
        project = find_project(snapshot, identity(request), request.path_params["name"])
        return sync(_show(snapshot, project.name), tag=_tag(project))

    async def replace(self, request: Request) -> Response:
        """Replace the attributes of a project; omitted ones are reset."""
        return await self._change(request, lambda old, values: _made(Project(name=old.name), values))

    async def merge(self, request: Request) -> Response:
        """Update the attributes of a project; omitted ones are unchanged."""

        def change(old: Project, values: Values) -> Project:
            return _made(old, {**values, "config": merged(dict(old.config), values.get("config", {}))})

        return await self._change(request, change)

    async def delete(self, request: Request) -> Response:
        """Delete an empty project."""
        name, caller = request.path_params["name"], identity(request)
        await self._services.write(lambda snapshot: delete_project(snapshot, caller, name))
        lifecycle_of_project(request, "project-deleted", _url(name), name)
        return sync()

    async def rename(self, request: Request) -> Response:
        """Rename a project: not supported (501), because its name is the owner of all its objects."""
        find_project(self._services.model.snapshot, identity(request), request.path_params["name"])
        raise ApiError(501, "Projects cannot be renamed")

    async def usage(self, request: Request) -> Response:
        """Show the number of networks of a project, and its limit."""
        snapshot, name = self._services.model.snapshot, request.path_params["name"]
        find_project(snapshot, identity(request), name)
        limit = limit_in(self._services.limits, snapshot, name, QuotaResource.NETWORK)
        used = snapshot.usage.get((name, QuotaResource.NETWORK), 0)
        return sync({"resources": {"networks": {"Limit": limit, "Usage": used}}})

    async def _change(self, request: Request, change: Any) -> Response:
        caller, name = identity(request), request.path_params["name"]
        find_project(self._services.model.snapshot, caller, name)
        values = await read_body(request)

        def decide(snapshot: Snapshot) -> Changes:
            old = find_project(snapshot, caller, name)
            check_match(request, _tag(old))
            return change_project(snapshot, caller, change(old, values))

        await self._services.write(decide)
        lifecycle_of_project(request, "project-updated", _url(name), name)
        return sync()


def _made(project: Project, values: Values) -> Project:
    """Return the project with the values of a body. Raises ApiError for an unknown config key."""
    said: Mapping[str, str] = values.get("config", {})
    if said.get(OWN_NETWORKS, "") not in ("", "true"):
        raise ApiError(400, "Every project has networks of its own: features.networks can only be true")
    config = {key: value for key, value in sorted(said.items()) if value and key != OWN_NETWORKS}
    return Project(
        name=project.name,
        description=values.get("description", project.description),
        config=tuple(config.items()),
        prefixes=_read_prefixes(config.get(SUBNETS, "")),
        restrictions=read_restrictions(config),
    )


def _read_prefixes(text: str) -> tuple[GrantedPrefix, ...]:
    """Parse a comma-separated list of `UPLINK:PREFIX`. Raises ApiError 400."""
    found = [_read_prefix(word.strip()) for word in text.split(",") if word.strip() and text.strip() != "block"]
    if len(found) > MAX_GRANTED_PREFIXES:
        raise ApiError(400, f"A project has at most {MAX_GRANTED_PREFIXES} of {SUBNETS}")
    return tuple(found)


def _read_prefix(word: str) -> GrantedPrefix:
    uplink, _, cidr = word.partition(":")
    try:
        return GrantedPrefix(uplink=uplink, cidr=ip_network(cidr))
    except ValueError:
        text = f'Invalid project configuration key "{SUBNETS}": "{word}" is not UPLINK:PREFIX'
        raise ApiError(400, text) from None


def _url(name: str) -> str:
    return f"{PREFIX}/projects/{in_path(name)}"


def _tag(project: Project) -> str:
    return etag([project.description, _config(project)])


def _config(project: Project) -> dict[str, str]:
    return {OWN_NETWORKS: "true", **dict(project.config)}


def _show(snapshot: Snapshot, name: str) -> JsonObject:
    project = snapshot.projects.get(name) or Project(name=name)
    networks = sorted(name_of(snapshot, network) for network in networks_of(snapshot, name))
    return {
        "name": name,
        "description": project.description,
        "config": _config(project),
        "used_by": [in_project(f"{PREFIX}/networks/{in_path(each)}", name) for each in networks],
    }

"""Quotas of networks, subnets, ports, routers and floating IPs (neutron, extensions/quotasv2.py).

Resources that are not implemented (security groups, RBAC policies, subnet pools) have no quota. One document has all
limits of a project, including those of load balancers; each front end shows, sets and deletes its own.
"""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import JsonObject, Services, identity, json_response
from fairlead.api.http.openapi import NUMBER, TEXT, Operation, read_body
from fairlead.api.network import parsers, policy
from fairlead.api.network.attributes import PUT, Attribute, one
from fairlead.changes.quotas import check_project, check_used, has_quota, reset_limits, set_limits
from fairlead.model.documents.quota import MAX_QUOTA, NETWORKING, UNLIMITED, limit_of, limits_of
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.schema import Schema, array_schema, object_schema

_LIMIT = parsers.integer(UNLIMITED, MAX_QUOTA)
_FORCE = ("force", "check_limit")
"""Attributes that allow or forbid a limit below the current usage; clients send one or the other."""
ATTRIBUTES: Mapping[str, Attribute] = {
    **{what.value: Attribute(parse=_LIMIT) for what in NETWORKING},
    **{name: Attribute(parse=parsers.boolean) for name in _FORCE},
}
_LIMITS: Mapping[str, Schema] = {what.value: _LIMIT.schema for what in NETWORKING}
_PROJECT: Mapping[str, Schema] = {"project_id": TEXT, "tenant_id": TEXT}
_FIGURES = object_schema({"limit": _LIMIT.schema, "used": NUMBER, "reserved": NUMBER}, ("limit", "used", "reserved"))


def _quota(properties: Mapping[str, Schema]) -> Schema:
    return object_schema({"quota": object_schema(properties, properties)}, ["quota"])


def quota_routes(services: Services) -> list[Operation]:
    """Return the routes below /v2.0."""
    views, quota = _NetworkQuotaHandlers(services), _quota(_LIMITS)
    listed = {**_LIMITS, **_PROJECT}
    every = object_schema({"quotas": array_schema(object_schema(listed, listed), 10**6)}, ["quotas"])
    details = _quota(dict.fromkeys(_LIMITS, _FIGURES))
    return [
        Operation("GET", "/quotas", views.list, gives={200: every}),
        *(
            Operation("GET", f"/quotas/{word}", _project_handler(word), gives={200: _own(word)})
            for word in ("project", "tenant")
        ),
        Operation("GET", "/quotas/{id}", views.show, gives={200: quota}),
        Operation("GET", "/quotas/{id}/default", views.show_default, gives={200: quota}),
        Operation("GET", "/quotas/{id}/details", views.show_details, gives={200: details}),
        Operation("PUT", "/quotas/{id}", views.update, takes=one("quota", ATTRIBUTES, PUT), gives={200: quota}),
        Operation("DELETE", "/quotas/{id}", views.delete, gives={204: None}),
    ]


def _own(word: str) -> Schema:
    return object_schema({word: object_schema({f"{word}_id": TEXT}, [f"{word}_id"])}, [word])


def _project_handler(word: str) -> Callable[[Request], Awaitable[Response]]:
    async def show(request: Request) -> Response:
        """Show the caller's project."""
        return json_response({word: {f"{word}_id": identity(request).project_id}})

    return show


class _NetworkQuotaHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services

    @property
    def _snapshot(self) -> Snapshot:
        return self._services.model.snapshot

    async def list(self, request: Request) -> Response:
        """List the projects with limits of their own."""
        policy.check(identity(request).is_admin, "get_quota")
        found = sorted(quota.project_id for quota in self._snapshot.quotas.values() if has_quota(quota, NETWORKING))
        listed = [{**self._limits(project), "project_id": project, "tenant_id": project} for project in found]
        return json_response({"quotas": listed})

    async def show(self, request: Request) -> Response:
        """Show the limits of a project: its own, or the defaults."""
        return json_response({"quota": self._limits(_project(request))})

    async def show_default(self, request: Request) -> Response:
        """Show the default limits of a project."""
        _project(request)
        return json_response({"quota": {what.value: limit_of(self._services.limits, what) for what in NETWORKING}})

    async def show_details(self, request: Request) -> Response:
        """Show limits and usage of a project. `reserved` is always 0, because resources count when they are created."""
        project = _project(request)
        limits, usage = self._limits(project), self._snapshot.usage
        figures = {
            what.value: {"limit": limits[what.value], "used": usage.get((project, what), 0), "reserved": 0}
            for what in NETWORKING
        }
        return json_response({"quota": figures})

    async def update(self, request: Request) -> Response:
        project, values = _project(request, "update_quota"), await read_body(request)
        caller = identity(request)
        checked = values.get("check_limit", False) and not values.get("force", False)
        limits = {what: values[what.value] for what in NETWORKING if what.value in values}

        def change(old: Snapshot) -> Changes:
            if checked:
                check_used(old, project, limits)
            return set_limits(old, caller, project, limits)

        await self._services.write(change)
        return json_response({"quota": self._limits(project)})

    async def delete(self, request: Request) -> Response:
        project, caller = _project(request, "delete_quota"), identity(request)
        await self._services.write(lambda old: reset_limits(old, caller, project, NETWORKING))
        return Response(status_code=204)

    def _limits(self, project: str) -> JsonObject:
        allowed = limits_of(self._snapshot.quotas.get(project), self._services.limits)
        return {what.value: limit_of(allowed, what) for what in NETWORKING}


def _project(request: Request, rule: str = "get_quota") -> str:
    """Return the project in the path. Raises ApiError 403 if the rule requires an administrator, and Refused for an
    invalid id."""
    project: str = request.path_params["id"]
    caller = identity(request)
    policy.check(caller.is_admin or (rule == "get_quota" and caller.may_see(project)), rule)
    check_project(project)
    return project

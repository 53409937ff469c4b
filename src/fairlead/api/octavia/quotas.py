"""Quotas of a project: maximum number of load balancers and of each kind of part (`changes/quotas.py`)."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import JsonObject, Services, identity, json_response
from fairlead.api.http.openapi import TEXT, Operation, read_body
from fairlead.api.octavia import specs
from fairlead.api.octavia.errors import forbidden
from fairlead.api.octavia.lists import SimpleList, show_one
from fairlead.changes.quotas import check_project, has_quota, reset_limits, set_limits
from fairlead.model.documents.quota import (
    BALANCING,
    MAX_QUOTA,
    UNLIMITED,
    Quota,
    QuotaResource,
    limit_of,
    limits_of,
)
from fairlead.model.snapshot import Snapshot
from fairlead.schema import Field, Spec, Values, integer, object_schema

_ALSO = {"loadbalancer": QuotaResource.LOAD_BALANCER, "healthmonitor": QuotaResource.HEALTH_MONITOR}
"""Older names, accepted and returned in addition."""
ATTRIBUTES: Mapping[str, QuotaResource] = {**{what.value: what for what in BALANCING}, **_ALSO}
QUOTA_PUT: Spec = dict.fromkeys(sorted(ATTRIBUTES), Field(integer(UNLIMITED, MAX_QUOTA)))
_SHOWN = {"project_id": TEXT, "tenant_id": TEXT, **{name: field.parse.schema for name, field in QUOTA_PUT.items()}}
_LIST = SimpleList(plural="quotas", links="quotas_links", key="project_id", attributes=_SHOWN)
_ONE = object_schema({"quota": object_schema(_SHOWN, _SHOWN)}, ["quota"])


def quota_routes(services: Services) -> list[Operation]:
    views = _QuotaHandlers(services)
    update = specs.body("quota", QUOTA_PUT, argument="quotas")
    one = {200: _ONE}
    return [
        Operation("GET", "/quotas", views.list, gives={200: _LIST.response}, query=_LIST.query),
        Operation("GET", "/quotas/defaults", views.show_defaults, gives=one),
        show_one("/quotas/{project_id}", views.show, "quota", _LIST.attributes),
        Operation("GET", "/quotas/{project_id}/default", views.show_default, gives=one),
        Operation("PUT", "/quotas/{project_id}", views.update, takes=update, gives={202: _ONE}),
        Operation("DELETE", "/quotas/{project_id}", views.delete, gives={202: None}),
    ]


class _QuotaHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services

    @property
    def _snapshot(self) -> Snapshot:
        return self._services.model.snapshot

    async def list(self, request: Request) -> Response:
        """List the projects with a quota of their own."""
        who = identity(request)
        found = (
            quota
            for quota in self._snapshot.quotas.values()
            if who.may_see(quota.project_id) and has_quota(quota, BALANCING)
        )
        return _LIST.respond(request, (self._encode(quota.project_id, quota) for quota in found))

    async def show(self, request: Request) -> Response:
        """Show the quota of a project: its own, or the defaults."""
        project = _project(request)
        return self._answer(project, self._snapshot.quotas.get(project))

    async def show_default(self, request: Request) -> Response:
        """Show the default quota of a project."""
        return self._answer(_project(request), None)

    async def show_defaults(self, request: Request) -> Response:
        """Show the default quotas, under the project name `defaults`, as in Octavia."""
        return self._answer("defaults", None)

    async def update(self, request: Request) -> Response:
        """Update the quota of a project. Null resets a limit to the default."""
        project = _project(request)
        values = _named(await read_body(request))
        caller = identity(request)

        snapshot = await self._services.write(lambda old: set_limits(old, caller, project, values))
        return self._answer(project, snapshot.quotas.get(project), 202)

    async def delete(self, request: Request) -> Response:
        project, caller = _project(request), identity(request)

        await self._services.write(lambda old: reset_limits(old, caller, project, BALANCING))
        return Response(status_code=202)

    def _answer(self, project: str, quota: Quota | None, status: int = 200) -> Response:
        return json_response({"quota": self._encode(project, quota)}, status)

    def _encode(self, project: str, quota: Quota | None) -> JsonObject:
        allowed = limits_of(quota, self._services.limits)
        return {
            "project_id": project,
            "tenant_id": project,
            **{name: limit_of(allowed, what) for name, what in ATTRIBUTES.items()},
        }


def _project(request: Request) -> str:
    """Return the project in the path. Raises ApiError 403 if the caller may not see its quota, and Refused for an
    invalid id."""
    project: str = request.path_params["project_id"]
    if not identity(request).may_see(project):
        raise forbidden()
    check_project(project)
    return project


def _named(values: Values) -> Mapping[QuotaResource, int | None]:
    """Return limits by resource; if both names are given, the longer one applies."""
    return {ATTRIBUTES[name]: value for name, value in sorted(values.items(), key=lambda item: item[0] not in _ALSO)}

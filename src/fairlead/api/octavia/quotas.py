"""Quotas: how many load balancers, and how many of each of their parts, a project may have (`model/allowance.py`)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.door import ApiError, JsonObject, Services, identity, json_response
from fairlead.api.fields import Field, Spec, Values, integer, object_schema
from fairlead.api.octavia import limits, specs
from fairlead.api.octavia.errors import bad_request, forbidden, not_found
from fairlead.api.octavia.lists import Plain, show_one
from fairlead.api.openapi import TEXT, Operation, read_body
from fairlead.model.allowance import set_limits, take_limits_away
from fairlead.model.kinds import PROBED
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.probes import find_probed_port, probes_of_port
from fairlead.model.quota import (
    BALANCING,
    LARGEST_QUOTA,
    MILLION,
    NETWORKING,
    UNLIMITED,
    Counted,
    ProbeLimits,
    Quota,
    has_own,
    limits_of,
    probe_rates,
)
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes

NAMES: Mapping[Counted, str] = {
    Counted.LOAD_BALANCER: "Load Balancer",
    Counted.LISTENER: "Listener",
    Counted.POOL: "Pool",
    Counted.MEMBER: "Member",
    Counted.HEALTH_MONITOR: "Health Monitor",
    Counted.L7POLICY: "L7 Policy",
    Counted.L7RULE: "L7 Rule",
    Counted.PORT: "Port",
}
"""Octavia's (common/data_models.py, `_name`); and of what Neutron counts, the port of a VIP."""
_ALSO = {"loadbalancer": Counted.LOAD_BALANCER, "healthmonitor": Counted.HEALTH_MONITOR}
"""Older names that are given and taken beside the others."""
ATTRIBUTES: Mapping[str, Counted] = {**{what.value: what for what in BALANCING}, **_ALSO}
QUOTA_PUT: Spec = dict.fromkeys(sorted(ATTRIBUTES), Field(integer(UNLIMITED, LARGEST_QUOTA)))
_SHOWN = {"project_id": TEXT, "tenant_id": TEXT, **{name: field.parse.schema for name, field in QUOTA_PUT.items()}}
_LIST = Plain(plural="quotas", links="quotas_links", key="project_id", attributes=_SHOWN)
_ONE = object_schema({"quota": object_schema(_SHOWN, _SHOWN)}, ["quota"])


def check_probes(allowed: ProbeLimits, snapshot: Snapshot, changes: Changes) -> Changes:
    """Raises ApiError: 400 for a monitor that probes too often, 403 when a project or a port would get too many probes.

    What a load balancer asks already may stay as it is, whatever the limits are by now.
    """
    limited = False
    for balancer in changes.puts:
        if isinstance(balancer, LoadBalancer):
            old = snapshot.load_balancers.get(balancer.id)
            _check_delays(allowed.least_delay, old, balancer)
            limited = _check_rates(allowed, snapshot, old, balancer) or limited
    return replace(changes, rests_on_absence=True) if limited else changes


def _check_delays(least: int, old: LoadBalancer | None, new: LoadBalancer) -> None:
    delays = {pool.id: pool.health_monitor.delay for pool in old.pools if pool.health_monitor} if old else {}
    for pool in new.pools:
        monitor = pool.health_monitor
        if monitor is not None and max(1, monitor.delay) < least and monitor.delay != delays.get(pool.id):
            raise bad_request(
                f"The request delay value {monitor.delay} should be larger than {least} for {monitor.type.value} health"
                " monitor type."
            )


def _check_rates(allowed: ProbeLimits, snapshot: Snapshot, old: LoadBalancer | None, new: LoadBalancer) -> bool:
    """Whether more is asked than before, and a limit was looked at."""
    before, after = probe_rates(old), probe_rates(new)
    more = sum(after.values()) - sum(before.values())
    grown = [place for place, rate in after.items() if rate > before.get(place, 0)]
    if not grown:
        return False
    total = snapshot.probing.get(new.project_id, 0) + more
    if more > 0 and allowed.per_second != UNLIMITED and total > allowed.per_second * MILLION:
        raise _met(f"Probes per second ({allowed.per_second})")
    if allowed.per_second_of_port != UNLIMITED:
        probed = PROBED.change(snapshot.probed, new.id, before, after)
        for port in {port.id: port for place in grown if (port := find_probed_port(snapshot, place))}.values():
            if probes_of_port(snapshot, probed, port) > allowed.per_second_of_port * MILLION:
                raise _met(f"Probes per second of port {port.id} ({allowed.per_second_of_port})")
    return True


def _met(resource: str) -> ApiError:
    return ApiError(403, f"Quota has been met for resources: {resource}")


def quota_routes(services: Services) -> list[Operation]:
    views = _Views(services)
    update = specs.body("quota", QUOTA_PUT, argument="quotas")
    one = {200: _ONE}
    return [
        Operation("GET", "/quotas", views.list, gives={200: _LIST.answer}, query=_LIST.query),
        Operation("GET", "/quotas/defaults", views.show_defaults, gives=one),
        show_one("/quotas/{project_id}", views.show, "quota", _LIST.attributes),
        Operation("GET", "/quotas/{project_id}/default", views.show_default, gives=one),
        Operation("PUT", "/quotas/{project_id}", views.update, takes=update, gives={202: _ONE}),
        Operation("DELETE", "/quotas/{project_id}", views.delete, gives={202: None}),
    ]


class _Views:
    def __init__(self, services: Services) -> None:
        self._services = services

    @property
    def _snapshot(self) -> Snapshot:
        return self._services.model.snapshot

    async def list(self, request: Request) -> Response:
        """The projects that have a quota of their own."""
        who = identity(request)
        found = (quota for quota in self._snapshot.quotas.values() if who.may_see(quota.project_id) and _is_ours(quota))
        return _LIST.respond(request, (self._encode(quota.project_id, quota) for quota in found))

    async def show(self, request: Request) -> Response:
        """What holds for a project, by its own quota or by that of everybody."""
        project = _project(request)
        return self._answer(project, self._snapshot.quotas.get(project))

    async def show_default(self, request: Request) -> Response:
        """What would hold for a project without a quota of its own."""
        return self._answer(_project(request), None)

    async def show_defaults(self, request: Request) -> Response:
        """What holds for everybody; it stands under the project `defaults`, as in Octavia."""
        return self._answer("defaults", None)

    async def update(self, request: Request) -> Response:
        """A null is the limit of everybody again."""
        project = _project(request)
        values = _named(await read_body(request))

        snapshot = await self._services.write(lambda old: set_limits(old, project, values))
        return self._answer(project, snapshot.quotas.get(project), 202)

    async def delete(self, request: Request) -> Response:
        project = _project(request)

        def change(old: Snapshot) -> Changes:
            quota = old.quotas.get(project)
            if quota is None or not _is_ours(quota):
                raise not_found("Quotas", project)
            return take_limits_away(quota, BALANCING)

        await self._services.write(change)
        return Response(status_code=202)

    def _answer(self, project: str, quota: Quota | None, status: int = 200) -> Response:
        return json_response({"quota": self._encode(project, quota)}, status)

    def _encode(self, project: str, quota: Quota | None) -> JsonObject:
        allowed = limits_of(quota, self._services.limits)
        return {
            "project_id": project,
            "tenant_id": project,
            **{name: getattr(allowed, what) for name, what in ATTRIBUTES.items()},
        }


def _is_ours(quota: Quota) -> bool:
    """Whether it was made at this door: one that has limits of networks and such alone was not."""
    return has_own(quota, BALANCING) or not has_own(quota, NETWORKING)


def _project(request: Request) -> str:
    """Raises ApiError: 403 for a project whose quota is not the caller's to see, 400 for what can be none."""
    project: str = request.path_params["project_id"]
    if not identity(request).may_see(project):
        raise forbidden()
    if not project.isprintable() or len(project) > limits.LONGEST_PROJECT:
        raise bad_request(f"A project's id has at most {limits.LONGEST_PROJECT} characters.")
    return project


def _named(values: Values) -> dict[str, Any]:
    """By the names of the model; of two names for the same the longer one counts."""
    return {ATTRIBUTES[name]: value for name, value in sorted(values.items(), key=lambda item: item[0] not in _ALSO)}

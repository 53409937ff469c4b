"""Authorization by Octavia's default rules (octavia.policies), as a table of role, rule and operation.

`guard` checks the operation's rule before each view. Inside the view the caller is a Permit; its project checks
apply that rule, so no other code needs the table. Octavia's older role names
(etc/policy/octavia-advanced-rbac-policy.yaml) are accepted with the same meaning as Keystone's; they add a global
observer and a quota administrator.

One rule of Octavia is left out: there the role `service` of other cloud services may list the members of every pool.
Here `service` is the role of the agents on compute nodes, which need no members.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import identity
from fairlead.api.http.openapi import Operation
from fairlead.api.octavia.errors import forbidden
from fairlead.changes.identity import Identity

OBSERVER = frozenset({"reader", "load-balancer_observer"})
MEMBER = frozenset({"member", "load-balancer_member"})
GLOBAL_OBSERVER = frozenset({"load-balancer_global_observer"})
QUOTA_ADMIN = frozenset({"load-balancer_quota_admin"})
ADMIN = frozenset({"admin", "load-balancer_admin"})


class Rule(StrEnum):
    """Octavia's rule names."""

    READ = "load-balancer:read"
    WRITE = "load-balancer:write"
    ADMIN = "load-balancer:admin"
    READ_QUOTA = "load-balancer:read-quota"
    WRITE_QUOTA = "load-balancer:write-quota"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGrant:
    """Roles that satisfy a rule: for objects of the caller's project, and for all projects."""

    own: frozenset[str] = frozenset()
    everywhere: frozenset[str]


GRANTS: Mapping[Rule, PolicyGrant] = {
    Rule.READ: PolicyGrant(own=OBSERVER | MEMBER, everywhere=GLOBAL_OBSERVER | ADMIN),
    Rule.WRITE: PolicyGrant(own=MEMBER, everywhere=ADMIN),
    Rule.ADMIN: PolicyGrant(everywhere=ADMIN),
    Rule.READ_QUOTA: PolicyGrant(own=OBSERVER | MEMBER, everywhere=GLOBAL_OBSERVER | QUOTA_ADMIN | ADMIN),
    Rule.WRITE_QUOTA: PolicyGrant(everywhere=QUOTA_ADMIN | ADMIN),
}


def _each(path: str, methods: str) -> list[str]:
    return [f"{method} {path}" for method in methods.split()]


_OPERATIONS: Mapping[Rule, list[str]] = {
    Rule.READ: [
        *(
            f"GET /{plural}{one}"
            for plural in ("loadbalancers", "listeners", "pools", "healthmonitors", "l7policies", "l7policies/{}/rules")
            for one in ("", "/{}")
        ),
        "GET /pools/{}/members",
        "GET /pools/{}/members/{}",
        "GET /loadbalancers/{}/stats",
        "GET /loadbalancers/{}/status",
        "GET /loadbalancers/{}/statuses",
        "GET /listeners/{}/stats",
        "GET /providers",
        *(f"GET /{plural}{one}" for plural in ("flavors", "availabilityzones") for one in ("", "/{}")),
    ],
    Rule.WRITE: [
        *(
            operation
            for plural in ("loadbalancers", "listeners", "pools", "healthmonitors", "l7policies", "l7policies/{}/rules")
            for operation in (f"POST /{plural}", *_each(f"/{plural}/{{}}", "PUT DELETE"))
        ),
        *_each("/pools/{}/members", "POST PUT"),
        *_each("/pools/{}/members/{}", "PUT DELETE"),
    ],
    Rule.ADMIN: [
        "PUT /loadbalancers/{}/failover",
        "GET /providers/{}/flavor_capabilities",
        "GET /providers/{}/availability_zone_capabilities",
        *(
            operation
            for plural in ("flavors", "availabilityzones")
            for operation in (f"POST /{plural}", *_each(f"/{plural}/{{}}", "PUT DELETE"))
        ),
        *(
            operation
            for plural in ("flavorprofiles", "availabilityzoneprofiles")
            for operation in (*_each(f"/{plural}", "GET POST"), *_each(f"/{plural}/{{}}", "GET PUT DELETE"))
        ),
        "GET /amphorae",
        *_each("/amphorae/{}", "GET DELETE"),
        "GET /amphorae/{}/stats",
        "PUT /amphorae/{}/failover",
        "PUT /amphorae/{}/config",
    ],
    Rule.READ_QUOTA: ["GET /quotas", "GET /quotas/defaults", "GET /quotas/{}", "GET /quotas/{}/default"],
    Rule.WRITE_QUOTA: _each("/quotas/{}", "PUT DELETE"),
}
RULES: Mapping[str, Rule] = {operation: rule for rule, operations in _OPERATIONS.items() for operation in operations}
""""METHOD path" -> rule; path parameters are written `{}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit(Identity):
    """Caller with the grant of the current operation."""

    grant: PolicyGrant

    @property
    def is_admin(self) -> bool:
        return bool(self.roles & ADMIN)

    @property
    def may_change_quotas(self) -> bool:
        return bool(self.roles & GRANTS[Rule.WRITE_QUOTA].everywhere)

    @property
    def is_for_all(self) -> bool:
        """True if the grant covers all projects."""
        return bool(self.roles & self.grant.everywhere)

    @property
    def is_for_own(self) -> bool:
        return self.is_for_all or (not self.system and bool(self.roles & self.grant.own))

    def may_see(self, project_id: str) -> bool:
        return self.is_for_own if project_id == self.project_id else self.is_for_all

    def may_change(self, project_id: str) -> bool:
        return self.may_see(project_id)


def guard(operation: Operation) -> Operation:
    """Return the operation restricted to callers that its rule allows. An operation outside the table is for
    administrators."""
    grant = GRANTS[RULES.get(operation_name(operation), Rule.ADMIN)]
    view = operation.endpoint
    lists_projects = operation.method == "GET" and not operation.param_convertors

    @wraps(view)
    async def guarded(request: Request) -> Response:
        who = identity(request)
        permit = Permit(user=who.user, project_id=who.project_id, roles=_roles_of(who), system=who.system, grant=grant)
        asked = [*request.query_params.getlist("project_id"), *request.query_params.getlist("tenant_id")]
        if not permit.is_for_own or (lists_projects and not all(map(permit.may_see, asked))):
            raise forbidden()
        request.scope["identity"] = permit
        response: Response = await view(request)
        return response

    return Operation(
        operation.method,
        operation.path,
        guarded,
        gives=operation.responses,
        takes=operation.body,
        query=operation.query,
        fails=operation.errors,
    )


def _roles_of(who: Identity) -> frozenset[str]:
    """Return the caller's roles; a reader with system scope is also a global observer."""
    return who.roles | GLOBAL_OBSERVER if who.system and "reader" in who.roles else who.roles


def operation_name(operation: Operation) -> str:
    """Return the operation's key in the table."""
    return f"{operation.method} {re.sub('{[^}]*}', '{}', operation.path)}"

"""Access policy: every operation of the OpenAPI document, for every role, compared with Octavia's rules.

The rules are repeated here as Octavia has them (octavia.policies, the defaults and the advanced RBAC file), so the
API's table is compared with an independent source.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.http.authentication import ROLES
from fairlead.api.http.openapi import Operation
from fairlead.api.octavia import PREFIX
from fairlead.api.octavia.policy import RULES, operation_name
from harness.api import ADMIN, InProcessServer
from harness.octavia import ROOT, SUBNET, UNKNOWN_ID, caller, create, error_of, play_octavia

READ, WRITE, ONLY_ADMIN, READ_QUOTA, WRITE_QUOTA = "read", "write", "admin", "read-quota", "write-quota"
ACTIONS = {
    READ: """
        flavor:get_all flavor:get_one availability-zone:get_all availability-zone:get_one healthmonitor:get_all
        healthmonitor:get_one l7policy:get_all l7policy:get_one l7rule:get_all l7rule:get_one listener:get_all
        listener:get_one listener:get_stats loadbalancer:get_all loadbalancer:get_one loadbalancer:get_stats
        loadbalancer:get_status member:get_all member:get_one pool:get_all pool:get_one provider:get_all""",
    ONLY_ADMIN: """
        flavor:post flavor:put flavor:delete flavor-profile:get_all flavor-profile:post flavor-profile:put
        flavor-profile:get_one flavor-profile:delete availability-zone:post availability-zone:put
        availability-zone:delete availability-zone-profile:get_all availability-zone-profile:post
        availability-zone-profile:put availability-zone-profile:get_one availability-zone-profile:delete
        loadbalancer:put_failover amphora:get_all amphora:get_one amphora:delete amphora:put_config
        amphora:put_failover amphora:get_stats provider-flavor:get_all provider-availability-zone:get_all""",
    WRITE: """
        healthmonitor:post healthmonitor:put healthmonitor:delete l7policy:post l7policy:put l7policy:delete l7rule:post
        l7rule:put l7rule:delete listener:post listener:put listener:delete loadbalancer:post loadbalancer:put
        loadbalancer:delete member:post member:put member:delete pool:post pool:put pool:delete""",
    READ_QUOTA: "quota:get_all quota:get_one quota:get_defaults",
    WRITE_QUOTA: "quota:put quota:delete",
}
RULE_OF = {action: rule for rule, actions in ACTIONS.items() for action in actions.split()}
RESOURCES = {
    "loadbalancers": "loadbalancer", "listeners": "listener", "pools": "pool", "members": "member",
    "healthmonitors": "healthmonitor", "l7policies": "l7policy", "rules": "l7rule", "quotas": "quota",
    "providers": "provider", "flavors": "flavor", "flavorprofiles": "flavor-profile",
    "availabilityzones": "availability-zone", "availabilityzoneprofiles": "availability-zone-profile",
    "amphorae": "amphora",
}  # fmt: skip
SPECIAL = {
    "GET /loadbalancers/{}/status": "loadbalancer:get_status",
    "GET /loadbalancers/{}/statuses": "loadbalancer:get_status",
    "GET /loadbalancers/{}/stats": "loadbalancer:get_stats",
    "GET /listeners/{}/stats": "listener:get_stats",
    "PUT /loadbalancers/{}/failover": "loadbalancer:put_failover",
    "PUT /pools/{}/members": "member:put",
    "GET /quotas/defaults": "quota:get_defaults",
    "GET /quotas/{}/default": "quota:get_defaults",
    "GET /providers/{}/flavor_capabilities": "provider-flavor:get_all",
    "GET /providers/{}/availability_zone_capabilities": "provider-availability-zone:get_all",
    "GET /amphorae/{}/stats": "amphora:get_stats",
    "PUT /amphorae/{}/failover": "amphora:put_failover",
    "PUT /amphorae/{}/config": "amphora:put_config",
}
NO_PROJECT = ("flavor", "availability-zone", "provider", "amphora")
"""Resources without a project: Octavia checks the policy against the caller's own project."""
ROLE_SETS = [*(frozenset({role}) for role in sorted(ROLES)), frozenset[str](), frozenset({"reader", "member"})]


def action_of(name: str) -> str:
    """Return Octavia's name of an operation, such as loadbalancer:get_one."""
    if name in SPECIAL:
        return SPECIAL[name]
    method, path = name.split()
    parts = [part for part in path.split("/") if part]
    one = parts[-1] == "{}"
    verb = {"GET": "get_one" if one else "get_all"}.get(method, method.lower())
    return f"{RESOURCES[parts[-2] if one else parts[-1]]}:{verb}"


def allowed(rule: str, roles: frozenset[str], *, own: bool) -> bool:
    """Evaluate a base rule of Octavia's policy."""
    admin = bool(roles & {"admin", "load-balancer_admin"})
    global_observer = "load-balancer_global_observer" in roles or admin
    quota_admin = "load-balancer_quota_admin" in roles or admin
    member = own and bool(roles & {"member", "load-balancer_member"})
    observer = own and bool(roles & {"reader", "load-balancer_observer"})
    read = observer or global_observer or member or admin
    return {
        READ: read,
        WRITE: member or admin,
        ONLY_ADMIN: admin,
        READ_QUOTA: read or quota_admin,
        WRITE_QUOTA: quota_admin,
    }[rule]


def documented(document: Any) -> Iterator[tuple[str, str]]:
    """Yield (method, path) of each operation; deletions come last, parts before their parents."""
    found = [
        (method.upper(), path.removeprefix(PREFIX))
        for path, item in document["paths"].items()
        if path.startswith(PREFIX)
        for method in item
    ]
    order = ["members", "rules", "healthmonitors", "l7policies", "listeners", "pools", "loadbalancers", "quotas"]
    order += ["flavors", "flavorprofiles", "availabilityzones", "availabilityzoneprofiles", "amphorae"]

    def late(operation: tuple[str, str]) -> int:
        method, path = operation
        parts = path.split("/")
        return 1 + order.index(parts[-2]) if method == "DELETE" else 0

    return iter(sorted(found, key=late))


async def furnish(place: InProcessServer, project: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Create one object of each kind; return ids by path, and bodies."""
    ids = {"{name}": "ovn", "{project_id}": project}
    for root, profile_root in (("flavor", "flavorprofile"), ("availability_zone", "availability_zone_profile")):
        path, profile_path = (f"{name.replace('_', '')}s" for name in (root, profile_root))
        body = {"name": "p", "provider_name": "ovn", f"{root}_data": "{}"}
        ids[profile_path] = (await create(place, profile_path, profile_root, **body))["id"]
        made = await create(place, path, root, name="gold", **{f"{root}_profile_id": ids[profile_path]})
        ids[path] = made.get("id", "gold")
    await place.call_ok("PUT", f"{ROOT}/quotas/{project}", {"quota": {}})
    balancer = await create(place, "loadbalancers", "loadbalancer", vip_subnet_id=SUBNET, project_id=project)
    own = {"loadbalancer_id": balancer["id"]}
    pool = {"protocol": "TCP", "lb_algorithm": "SOURCE_IP", **own}
    listener = {"protocol": "TCP", "protocol_port": 80, **own}
    ids["loadbalancers"] = balancer["id"]
    ids["listeners"] = (await create(place, "listeners", "listener", **listener))["id"]
    ids["pools"] = (await create(place, "pools", "pool", **pool))["id"]
    members = f"pools/{ids['pools']}/members"
    ids["members"] = (await create(place, members, "member", address="10.0.0.11", protocol_port=80))["id"]
    bodies = {
        "POST /loadbalancers": {"loadbalancer": {"vip_subnet_id": SUBNET, "project_id": project}},
        "PUT /loadbalancers/{}": {"loadbalancer": {}},
        "POST /listeners": {"listener": {**listener, "protocol_port": 81}},
        "PUT /listeners/{}": {"listener": {}},
        "POST /pools": {"pool": pool},
        "PUT /pools/{}": {"pool": {}},
        "POST /pools/{}/members": {"member": {"address": "10.0.0.12", "protocol_port": 80}},
        "PUT /pools/{}/members": {"members": [{"address": "10.0.0.11", "protocol_port": 80}]},
        "PUT /pools/{}/members/{}": {"member": {}},
        "PUT /quotas/{}": {"quota": {}},
    }
    return ids, bodies


def filled(path: str, ids: dict[str, str]) -> str:
    """Return the path with the ids of created objects; `{name}` of a zone differs from that of a provider."""
    parts = path.split("/")
    for place, part in enumerate(parts):
        if part.startswith("{"):
            parts[place] = ids.get(parts[place - 1]) or ids.get(part) or UNKNOWN_ID
    return "/".join(parts)


@pytest.mark.parametrize("own", [True, False], ids=["own", "other"])
@pytest.mark.parametrize("roles", ROLE_SETS, ids=lambda roles: "+".join(sorted(roles)) or "nobody")
def test_every_operation_is_allowed_by_role_as_in_octavia(tmp_path: Path, roles: frozenset[str], own: bool):
    async def story(place: InProcessServer) -> None:
        document = (await place.client.get("/openapi.json")).json()
        ids, bodies = await furnish(place, "p1")
        place.caller = caller("p1" if own else "p2", *roles)
        tried = 0
        for method, path in documented(document):
            name = operation_name(Operation(method, path, _nothing, gives={}))
            action = action_of(name)
            if any(part in path for part in ("healthmonitors", "l7policies")) and not own:
                continue  # furnish creates none, so there is no foreign one
            mine = own or action.startswith(NO_PROJECT) or (method == "GET" and "{}" not in name)
            expected = allowed(RULE_OF[action], roles, own=mine)
            where = ROOT + filled(path, ids) + ("?cascade=true" if name == "DELETE /loadbalancers/{}" else "")
            answer = await place.call(method, where, bodies.get(name, {}))
            if answer.status_code == 501 and not own:
                continue  # the operation has no effect yet, so there is no foreign object
            assert (answer.status_code != 403) == expected, (name, action, answer.text)
            if not expected:
                words = "Policy does not allow this request to be performed."
                assert answer.json() == {"faultcode": "Client", "faultstring": words, "debuginfo": None}
            elif name in bodies:
                assert answer.status_code < 300, answer.text
            await place.reconcile()
            tried += 1
        assert tried > 40

    play_octavia(tmp_path, story)


async def _nothing(*_: object) -> Any:
    raise NotImplementedError


def test_every_operation_has_octavias_policy_rule(tmp_path: Path):
    """Every operation has a rule, and it is Octavia's; an operation missing from the table would be for administrators
    only."""

    async def story(place: InProcessServer) -> None:
        document = (await place.client.get("/openapi.json")).json()
        names = {operation_name(Operation(method, path, _nothing, gives={})) for method, path in documented(document)}
        assert names <= RULES.keys()
        for name in RULES:
            rule = RULE_OF[action_of(name)]
            assert RULES[name].value.removeprefix("load-balancer:") == rule, name

    play_octavia(tmp_path, story)


def test_lists_show_only_projects_visible_to_the_caller(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        for project in ("p1", "p2"):
            body = {"vip_subnet_id": SUBNET, "project_id": project, "pools": [], "listeners": []}
            await create(place, "loadbalancers", "loadbalancer", **body)

        async def seen(query: str = "") -> list[str]:
            found = await place.call_ok("GET", f"{ROOT}/loadbalancers?{query}")
            return [balancer["project_id"] for balancer in found["loadbalancers"]]

        for role in ("reader", "member", "load-balancer_observer", "load-balancer_member"):
            place.caller = caller("p2", role)
            assert (await seen(), await seen("project_id=p2")) == (["p2"], ["p2"])
            for query in ("project_id=p1", "tenant_id=p1", "project_id=p2&project_id=p1"):
                assert (await error_of(place, "GET", f"loadbalancers?{query}"))[0] == 403
        for role in ("admin", "load-balancer_admin", "load-balancer_global_observer"):
            place.caller = caller("p2", role)
            assert (await seen(), await seen("project_id=p1")) == (["p1", "p2"], ["p1"])
        place.caller = ADMIN
        assert await seen() == ["p1", "p2"]

    play_octavia(tmp_path, story)


def test_member_role_cannot_create_for_another_project(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        place.caller = caller("p1", "member")
        body = {"loadbalancer": {"vip_subnet_id": SUBNET, "project_id": "p2"}}
        assert (await error_of(place, "POST", "loadbalancers", body))[0] == 403
        place.caller = caller("p1", "load-balancer_member")
        balancer = await create(place, "loadbalancers", "loadbalancer", vip_subnet_id=SUBNET)
        assert balancer["project_id"] == "p1"

    play_octavia(tmp_path, story)


SYSTEM_ROLES = {"reader": ["reader"], "member": ["member", "reader"], "admin": ["admin", "manager", "member", "reader"]}


@pytest.mark.parametrize("name", SYSTEM_ROLES)
def test_system_scope_reads_every_project_and_admin_names_the_project(tmp_path: Path, name: str):
    async def story(place: InProcessServer) -> None:
        made = await create(place, "loadbalancers", "loadbalancer", vip_subnet_id=SUBNET, project_id="p1")
        place.caller = replace(caller("", *SYSTEM_ROLES[name]), system=True)
        for query in ("", "?project_id=p1", "?tenant_id=p1"):
            found = await place.call_ok("GET", f"{ROOT}/loadbalancers{query}")
            assert [balancer["id"] for balancer in found["loadbalancers"]] == [made["id"]]
        await place.call_ok("GET", f"{ROOT}/quotas/p1")
        body: dict[str, Any] = {"loadbalancer": {"vip_subnet_id": SUBNET}}
        status, words = await error_of(place, "POST", "loadbalancers", body)
        if name != "admin":
            assert status == 403
            assert (await error_of(place, "DELETE", f"loadbalancers/{made['id']}"))[0] == 403
            assert (await error_of(place, "PUT", "quotas/p1", {"quota": {}}))[0] == 403
            body["loadbalancer"]["project_id"] = "p1"
            assert (await error_of(place, "POST", "loadbalancers", body))[0] == 403
        else:
            assert (status, words.partition(".")[0]) == (
                400,
                "Validation failure: Missing project ID in request where one is required",
            )
            body["loadbalancer"]["project_id"] = "p2"
            assert (await place.call_ok("POST", f"{ROOT}/loadbalancers", body))["loadbalancer"]["project_id"] == "p2"
            pool = {"protocol": "TCP", "lb_algorithm": "SOURCE_IP", "loadbalancer_id": made["id"]}
            part = await create(place, "pools", "pool", **pool)
            assert part["project_id"] == "p1"
            await place.call_ok("PUT", f"{ROOT}/pools/{part['id']}", {"pool": {"name": "x"}})
            await place.call_ok("DELETE", f"{ROOT}/loadbalancers/{made['id']}?cascade=true")

    play_octavia(tmp_path, story)

"""Quotas: Octavia's bodies, and no request that exceeds a limit."""

from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fairlead.api import octavia
from fairlead.model.documents.quota import Limits, Quota, QuotaResource
from fairlead.model.registry.changeset import Changes
from harness.api import InProcessServer, in_process_server
from harness.octavia import ROOT, SUBNET, caller, create, error_of, network, play_octavia


def shown(project: str, **own: int) -> dict[str, Any]:
    names = ("loadbalancer", "load_balancer", "listener", "member", "pool", "healthmonitor", "health_monitor")
    return {"project_id": project, **dict.fromkeys((*names, "l7policy", "l7rule"), -1), "tenant_id": project, **own}


def test_quota_responses_match_octavias(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        assert await place.call_ok("GET", f"{ROOT}/quotas") == {"quotas": [], "quotas_links": []}
        assert await place.call_ok("GET", f"{ROOT}/quotas/p1") == {"quota": shown("p1")}
        answer = await place.call("PUT", f"{ROOT}/quotas/p1", {"quota": {"loadbalancer": 5, "member": 10}})
        own = shown("p1", loadbalancer=5, load_balancer=5, member=10)
        assert (answer.status_code, answer.json()) == (202, {"quota": own})
        assert await place.call_ok("GET", f"{ROOT}/quotas/p1") == {"quota": own}
        assert await place.call_ok("GET", f"{ROOT}/quotas/p1/default") == {"quota": shown("p1")}
        assert await place.call_ok("GET", f"{ROOT}/quotas/defaults") == {"quota": shown("defaults")}
        await place.call_ok("PUT", f"{ROOT}/quotas/p2", {"quota": {"health_monitor": "3", "l7rule": 0}})
        assert (await place.call_ok("GET", "/v2.0/quotas?project_id=p1"))["quotas"] == [own]
        page = await place.call_ok("GET", f"{ROOT}/quotas?limit=1&fields=project_id")
        assert page["quotas"] == [{"project_id": "p1"}]
        assert page["quotas_links"][0]["href"].endswith("&marker=p1")
        page = await place.call_ok("GET", f"{ROOT}/quotas?marker=p1&fields=healthmonitor")
        assert page["quotas"] == [{"healthmonitor": 3}]
        await place.call_ok("PUT", f"{ROOT}/quotas/p1", {"quota": {"load_balancer": None}})
        assert (await place.call_ok("GET", f"{ROOT}/quotas/p1"))["quota"] == shown("p1", member=10)
        answer = await place.call("DELETE", f"{ROOT}/quotas/p1")
        assert (answer.status_code, answer.content) == (202, b"")
        assert await error_of(place, "DELETE", "quotas/p1") == (404, "Quotas p1 not found.")

    play_octavia(tmp_path, story)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"quota": {"pool": -2}}, "field/attribute pool. Value: '-2'. Value should be greater or equal to -1"),
        ({"quota": {"pool": 2_000_000_001}}, "Value should be lower or equal to 2000000000"),
        ({"quota": {"router": 1}}, "Unknown attribute for argument quotas.quota: router"),
        ({}, 'the one attribute "quota"'),
    ],
)
def test_invalid_quotas_are_refused_with_the_reason(tmp_path: Path, body: object, words: str):
    async def story(place: InProcessServer) -> None:
        status, text = await error_of(place, "PUT", "quotas/p", body)
        assert (status, words in text) == (400, True), text
        assert (await error_of(place, "PUT", f"quotas/{'p' * 37}", {"quota": {}}))[0] == 400

    play_octavia(tmp_path, story)


TREE = {
    "name": "tree",
    "vip_subnet_id": SUBNET,
    "listeners": [{"protocol": "TCP", "protocol_port": port} for port in (80, 81)],
    "pools": [
        {
            "name": name,
            "protocol": "TCP",
            "lb_algorithm": "SOURCE_IP",
            "members": [{"address": f"10.0.0.{last}", "protocol_port": 80} for last in (11, 12)],
        }
        for name in ("a", "b")
    ],
}


def test_no_request_exceeds_a_quota(tmp_path: Path):
    """Each limit equals the current usage, so every further create is refused, by any request, and nothing is
    written."""

    async def story(place: InProcessServer) -> None:
        balancer = await create(place, "loadbalancers", "loadbalancer", **TREE)
        pool, members = balancer["pools"][0]["id"], f"pools/{balancer['pools'][0]['id']}/members"
        listener = {"protocol": "TCP", "protocol_port": 90, "loadbalancer_id": balancer["id"]}
        new_pool = {"name": "c", "protocol": "TCP", "lb_algorithm": "SOURCE_IP"}
        member = {"address": "10.0.0.13", "protocol_port": 80}
        old = [{"address": f"10.0.0.{last}", "protocol_port": 80} for last in (11, 12)]
        ways: list[tuple[str, str, str, str, object]] = [
            ("load_balancer", "Load Balancer", "POST", "loadbalancers", {"loadbalancer": {"vip_subnet_id": SUBNET}}),
            ("listener", "Listener", "POST", "listeners", {"listener": listener}),
            ("listener", "Listener", "POST", "loadbalancers", {"loadbalancer": TREE}),
            ("pool", "Pool", "POST", "pools", {"pool": {**new_pool, "loadbalancer_id": balancer["id"]}}),
            ("pool", "Pool", "POST", "listeners", {"listener": {**listener, "default_pool": new_pool}}),
            ("pool", "Pool", "POST", "loadbalancers", {"loadbalancer": TREE}),
            ("member", "Member", "POST", members, {"member": member}),
            ("member", "Member", "PUT", members, {"members": [*old, member]}),
            ("member", "Member", "PUT", f"{members}?additive_only=true", {"members": [member]}),
            ("member", "Member", "POST", "pools",
             {"pool": {**new_pool, "loadbalancer_id": balancer["id"], "members": [member]}}),
            ("member", "Member", "POST", "loadbalancers", {"loadbalancer": TREE}),
        ]  # fmt: skip
        number = {"load_balancer": 1, "listener": 2, "pool": 2, "member": 4}
        for resource, name, method, path, body in ways:
            await place.call_ok("PUT", f"{ROOT}/quotas/demo", {"quota": {resource: number[resource]}})
            before = await place.store.range("")
            refusal = await error_of(place, method, path, body)
            assert refusal == (403, f"Quota has been met for resources: {name}"), (method, path)
            assert await place.store.range("") == before
            await place.call_ok("DELETE", f"{ROOT}/quotas/demo")
        await place.call_ok("PUT", f"{ROOT}/quotas/demo", {"quota": {"member": 4, "listener": 0}})
        await place.call_ok("PUT", f"{ROOT}/{members}", {"members": [old[0], member]})
        await place.call_ok("PUT", f"{ROOT}/pools/{pool}", {"pool": {"name": "d"}})
        await place.call_ok("DELETE", f"{ROOT}/loadbalancers/{balancer['id']}?cascade=true")
        assert {what for _, what in place.model.snapshot.usage} == {QuotaResource.NETWORK, QuotaResource.SUBNET}

    play_octavia(tmp_path, story)


def test_project_quota_overrides_the_configured_default(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        assert (await place.call_ok("GET", f"{ROOT}/quotas/p/default"))["quota"] == shown("p", pool=1)
        limited = {**TREE, "name": "x"}
        refusal = (403, "Quota has been met for resources: Pool")
        assert await error_of(place, "POST", "loadbalancers", {"loadbalancer": limited}) == refusal
        await place.call_ok("PUT", f"{ROOT}/quotas/demo", {"quota": {"pool": -1}})
        await create(place, "loadbalancers", "loadbalancer", **limited)

    play_octavia(tmp_path, story, Limits(pool=1))


def test_vip_port_counts_for_the_port_quota(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        await create(place, "loadbalancers", "loadbalancer", **TREE)
        words = "Quota has been met for resources: Port"
        assert await error_of(place, "POST", "loadbalancers", {"loadbalancer": TREE}) == (403, words)

    play_octavia(tmp_path, story, Limits(port=1))


def test_network_limits_are_not_part_of_the_load_balancer_api(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        await place.model.write(lambda _: Changes(puts=(Quota(project_id="p", network=1),)))
        assert (await place.call_ok("GET", f"{ROOT}/quotas"))["quotas"] == []
        assert (await error_of(place, "DELETE", "quotas/p"))[0] == 404
        await place.call_ok("PUT", f"{ROOT}/quotas/p", {"quota": {"pool": 1}})
        assert [each["pool"] for each in (await place.call_ok("GET", f"{ROOT}/quotas"))["quotas"]] == [1]
        await place.call_ok("DELETE", f"{ROOT}/quotas/p")
        assert place.model.snapshot.quotas["p"] == Quota(project_id="p", network=1)

    play_octavia(tmp_path, story)


async def test_two_servers_never_exceed_a_quota_together(tmp_path: Path):
    """Two servers never exceed a limit together, although the second has not yet read the first server's write."""

    async with AsyncExitStack() as stack:
        one, two = [
            await stack.enter_async_context(in_process_server(octavia.make_front_end, tmp_path, "")) for _ in range(2)
        ]
        two.ids = count(10**6)
        await one.model.write(lambda _: Changes(puts=(network(),)))
        await one.call("PUT", f"{ROOT}/quotas/demo", {"quota": {"load_balancer": 5}})
        await two.model.catch_up()
        answers = [
            await place.call("POST", f"{ROOT}/loadbalancers", {"loadbalancer": {"vip_subnet_id": SUBNET}})
            for _ in range(4)
            for place in (one, two)
        ]
        assert [answer.status_code for answer in answers] == [201] * 5 + [403] * 3
        await one.model.catch_up()
        assert len(one.model.snapshot.load_balancers) == 5


def test_a_list_shows_the_quotas_that_the_caller_may_see(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        for project in ("p1", "p2"):
            await place.call_ok("PUT", f"{ROOT}/quotas/{project}", {"quota": {}})
        for roles, seen in ((("reader",), ["p1"]), (("load-balancer_quota_admin",), ["p1", "p2"])):
            place.caller = caller("p1", *roles)
            assert [each["project_id"] for each in (await place.call_ok("GET", f"{ROOT}/quotas"))["quotas"]] == seen
        place.caller = caller("p1", "member")
        for query in ("project_id=p2", "tenant_id=p2"):
            assert (await error_of(place, "GET", f"quotas?{query}"))[0] == 403

    play_octavia(tmp_path, story)

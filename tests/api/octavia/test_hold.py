"""Trees and batches do not block the event loop: the longest step of each, at the limits of a load balancer."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from fairlead.api.http.front_end import MAX_BODY_VALUES
from fairlead.api.octavia.limits import MAX_PER_REQUEST
from fairlead.model.documents.apportionment import MAX_SLOTS
from fairlead.model.documents.quota import NO_LIMITS
from fairlead.model.documents.sizes import (
    MAX_ALLOWED_CIDRS,
    MAX_L7POLICIES,
    MAX_L7RULES,
    MAX_LISTENERS,
    MAX_MEMBERS,
    MAX_POOLS,
)
from harness.api import InProcessServer, compile_anything
from harness.octavia import ROOT, SUBNET, create, play_octavia


def member(number: int, **more: Any) -> dict[str, Any]:
    return {
        "address": f"10.{1 + number // 62500}.{number // 250 % 250}.{number % 250 + 1}",
        "protocol_port": 80,
        **more,
    }


def pool(number: int, members: list[dict[str, Any]]) -> dict[str, Any]:
    return {"name": f"p{number}", "protocol": "TCP", "lb_algorithm": "SOURCE_IP_PORT", "members": members}


def tree(pools: list[dict[str, Any]], listeners: int = 0, **more: Any) -> dict[str, Any]:
    """Build a tree whose listeners use the pools in rotation."""
    some = [
        {
            "protocol": "TCP",
            "protocol_port": 1000 + number,
            "default_pool": {"name": pools[number % len(pools)]["name"]},
        }
        for number in range(listeners)
    ]
    return {"vip_subnet_id": SUBNET, "pools": pools, "listeners": [{**each, **more} for each in some]}


async def read_pieces(place: InProcessServer, path: str) -> int:
    """Read a response in chunks, as it is sent, and return its length in bytes."""
    assert place.app is not None
    sizes, asked = [0], asyncio.Queue[Message]()
    asked.put_nowait({"type": "http.request", "body": b"", "more_body": False})

    async def take(message: Message) -> None:
        sizes.append(len(message.get("body", b"")))

    path = f"{ROOT}/{path}"
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "root_path": ""}
    scope |= {"query_string": b"", "headers": [(b"host", b"door")], "scheme": "http", "server": ("door", 80)}
    await place.app(scope, asked.get, take)
    return sum(sizes)


async def send(place: InProcessServer, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """Return the status and text of a response. `harness.step_limits` counts its steps and the reconciler's."""
    answer = await place.call(method, f"{ROOT}/{path}", body)
    await asyncio.sleep(0)
    await place.reconcile()
    return answer.status_code, answer.text


SERVING = [member(number, weight=int(number < MAX_SLOTS)) for number in range(MAX_MEMBERS)]
TREES = {
    "sixty pools of a thousand": (tree([pool(n, SERVING) for n in range(60)]), f"more than {MAX_BODY_VALUES} values"),
    "twenty pools of a thousand": (
        tree([pool(n, SERVING) for n in range(20)]),
        f"at most {MAX_MEMBERS} members in all",
    ),
    "a thousand twice the same": (tree([pool(0, [member(1)] * MAX_MEMBERS)]), "Another member on this pool"),
    "cidrs": (
        tree([pool(0, [])], MAX_LISTENERS, allowed_cidrs=[f"10.{n}.0.0/16" for n in range(MAX_ALLOWED_CIDRS)]),
        f"at most {MAX_PER_REQUEST['allowed_cidrs']} allowed_cidrs in all",
    ),
    "as many cidrs as there may be": (
        tree(
            [pool(0, [])],
            MAX_PER_REQUEST["allowed_cidrs"] // MAX_ALLOWED_CIDRS,
            allowed_cidrs=[f"10.{n}.0.0/16" for n in range(MAX_ALLOWED_CIDRS)],
        ),
        "",
    ),
    "one pool of a thousand": (tree([pool(0, SERVING)], MAX_LISTENERS), ""),
    "pools of all weights": (
        tree([pool(n, [member(each, weight=1 + each) for each in range(MAX_SLOTS)]) for n in range(3)], MAX_LISTENERS),
        "",
    ),
    "as many pools as there may be": (
        tree(
            [pool(n, [member(5 * n + each) for each in range(MAX_MEMBERS // MAX_POOLS)]) for n in range(MAX_POOLS)],
            MAX_LISTENERS,
        ),
        "",
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_largest_trees_do_not_block_the_loop(tmp_path: Path, name: str):
    body, refusal = TREES[name]

    async def story(place: InProcessServer) -> None:
        status, text = await send(place, "POST", "loadbalancers", {"loadbalancer": body})
        assert (status < 300, refusal in text) == (not refusal, True), text[:500]
        if not refusal:
            made = json.loads(text)["loadbalancer"]["id"]
            shown = await read_pieces(place, f"loadbalancers/{made}/status")
            pools = json.loads(text)["loadbalancer"]["pools"]
            assert shown > 150 * max(len(each["members"]) for each in pools) * len(body["listeners"]) / len(pools)
            assert (await send(place, "DELETE", f"loadbalancers/{made}?cascade=true"))[0] == 204

    play_octavia(tmp_path, story)


def test_largest_member_batches_do_not_block_the_loop(tmp_path: Path):
    """Batches in which all members are new, unchanged, reweighted or replaced; and one in which half are duplicates."""
    new = [{**each, "address": each["address"].replace("10.1.", "10.2.")} for each in SERVING]
    turned = [{**each, "weight": int(number >= MAX_MEMBERS - MAX_SLOTS)} for number, each in enumerate(SERVING)]

    async def story(place: InProcessServer) -> None:
        made = await create(place, "loadbalancers", "loadbalancer", **tree([pool(0, [])], MAX_LISTENERS))
        path = f"pools/{made['pools'][0]['id']}/members"
        for batch in (SERVING, SERVING, turned, new):
            status, text = await send(place, "PUT", path, {"members": batch})
            assert status == 202, text
        all_serve = [{**each, "weight": 1} for each in new]
        status, text = await send(place, "PUT", path, {"members": all_serve})
        assert (status, f"more than {MAX_SLOTS} members that accept connections" in text) == (501, True), text
        status, text = await send(place, "PUT", path, {"members": SERVING[:500] * 2})
        assert (status, "Another member on this pool" in text) == (409, True), text

    play_octavia(tmp_path, story)


def test_reweighting_the_largest_slot_table_does_not_block_the_loop(tmp_path: Path):
    """The most expensive change of a slot table: at each rank, every member takes slots from members with more."""
    equal = [member(number, weight=1) for number in range(MAX_SLOTS)]
    varied = [{**each, "weight": number} for number, each in enumerate(equal, 1)]

    async def story(place: InProcessServer) -> None:
        made = await create(place, "loadbalancers", "loadbalancer", **tree([pool(0, [])], 1))
        path = f"pools/{made['pools'][0]['id']}/members"
        for batch in (equal, varied, [{**each, "weight": 257 - each["weight"]} for each in varied]):
            status, text = await send(place, "PUT", path, {"members": batch})
            assert status == 202, text

    play_octavia(tmp_path, story)


SOME_RULES = [{"type": "PATH", "compare_type": "REGEX", "value": f"/{n}/[a-z]+(x|y)*"} for n in range(20)]


def policies(members: int, rules: int) -> list[dict[str, Any]]:
    """Build the maximum number of policies per listener, each with its own pool."""
    return [
        {
            "action": "REDIRECT_TO_POOL",
            "rules": SOME_RULES[:rules],
            "redirect_pool": {
                "name": f"p{n}",
                "protocol": "HTTP",
                "lb_algorithm": "ROUND_ROBIN",
                "members": [member(members * n + each) for each in range(members)],
            },
        }
        for n in range(MAX_L7POLICIES)
    ]


async def good(place: InProcessServer, method: str, path: str, **body: Any) -> Any:
    """Send a request that must succeed and return the object in the response."""
    status, text = await send(place, method, path, body or None)
    assert status < 300, text
    return next(iter(json.loads(text).values())) if text else None


def test_listener_with_a_pool_per_policy_does_not_block_the_loop(tmp_path: Path):
    """The tree is created; one more of each part is created, each is changed, and the load balancer is deleted."""
    nested = policies(members=MAX_MEMBERS // MAX_L7POLICIES, rules=MAX_PER_REQUEST["rules"] // MAX_L7POLICIES)
    rule = {"type": "PATH", "compare_type": "EQUAL_TO", "value": "/x"}

    async def story(place: InProcessServer) -> None:
        one = (await create(place, "loadbalancers", "loadbalancer", vip_subnet_id=SUBNET))["id"]
        body = {"loadbalancer_id": one, "protocol": "HTTP", "protocol_port": 80, "l7policies": nested}
        made = await good(place, "POST", "listeners", listener=body)
        await good(place, "PUT", f"listeners/{made['id']}", listener={"name": "x"})
        policy = f"l7policies/{made['l7policies'][0]['id']}"
        await good(place, "PUT", policy, l7policy={"position": MAX_L7POLICIES})
        await good(place, "POST", f"{policy}/rules", rule=rule)
        more = {"listener_id": made["id"], "action": "REJECT", "rules": [rule] * MAX_L7RULES}
        assert (await send(place, "POST", "l7policies", {"l7policy": more}))[0] == 400
        await good(place, "DELETE", policy)
        await good(place, "POST", "l7policies", l7policy=more)
        await good(place, "GET", f"loadbalancers/{one}/status")
        await good(place, "DELETE", f"loadbalancers/{one}?cascade=true")

    play_octavia(tmp_path, story, compile_owner=compile_anything)


def test_changes_of_the_largest_load_balancer_do_not_block_the_loop(tmp_path: Path):
    """The load balancer uses up its project's quotas. One part of each kind is created, changed or deleted."""
    pools = [pool(n, [member(5 * n + each) for each in range(MAX_MEMBERS // MAX_POOLS)]) for n in range(MAX_POOLS - 1)]
    five = [member(MAX_MEMBERS + each) for each in range(5)]
    nested = {"name": "n", "protocol": "UDP", "lb_algorithm": "SOURCE_IP_PORT", "members": five}
    cidrs = [f"10.{n}.0.0/16" for n in range(MAX_ALLOWED_CIDRS)]

    async def story(place: InProcessServer) -> None:
        made = await create(place, "loadbalancers", "loadbalancer", **tree(pools, MAX_LISTENERS - 1))
        one = f"loadbalancers/{made['id']}"
        body = {"loadbalancer_id": made["id"], "protocol": "UDP", "protocol_port": 80, "default_pool": nested}
        found = await good(place, "POST", "listeners", listener={**body, "allowed_cidrs": cidrs})
        listener, last = f"listeners/{found['id']}", f"pools/{found['default_pool_id']}"
        await good(place, "PUT", listener, listener={"allowed_cidrs": cidrs[::-1]})
        await good(place, "PUT", last, pool={"lb_algorithm": "SOURCE_IP"})
        await good(place, "PUT", f"{last}/members", members=five[:4])
        member_id = (await good(place, "POST", f"{last}/members", member=five[4]))["id"]
        await good(place, "DELETE", f"{last}/members/{member_id}")
        await good(place, "PUT", one, loadbalancer={"admin_state_up": False})
        await good(place, "DELETE", f"{one}?cascade=true")

    used_up = replace(NO_LIMITS, load_balancer=1, listener=MAX_LISTENERS, pool=MAX_POOLS, member=MAX_MEMBERS)
    play_octavia(tmp_path, story, used_up)

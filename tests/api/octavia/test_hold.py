"""No tree and no batch keeps everybody else waiting: the longest step of each, at the limits of a load balancer."""

import asyncio
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.door import MOST_VALUES
from fairlead.api.octavia.limits import CIDRS, IN_ALL, LISTENERS, MEMBERS, POOLS
from fairlead.model.slots import LARGEST
from harness.api import Inside
from harness.hold import held
from harness.octavia import ROOT, SUBNET, make, play_octavia

MOST = 0.15
"""Seconds of processor: 0.05 where nobody else wants it, and three times as long on a crowded machine."""


@pytest.fixture(autouse=True)
def _frozen() -> Iterator[None]:
    """As the server does when it has loaded its model."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def member(number: int, **more: Any) -> dict[str, Any]:
    return {
        "address": f"10.{1 + number // 62500}.{number // 250 % 250}.{number % 250 + 1}",
        "protocol_port": 80,
        **more,
    }


def pool(number: int, members: list[dict[str, Any]]) -> dict[str, Any]:
    return {"name": f"p{number}", "protocol": "TCP", "lb_algorithm": "SOURCE_IP_PORT", "members": members}


def tree(pools: list[dict[str, Any]], listeners: int = 0, **more: Any) -> dict[str, Any]:
    """The listeners lead to the pools by turns."""
    some = [
        {
            "protocol": "TCP",
            "protocol_port": 1000 + number,
            "default_pool": {"name": pools[number % len(pools)]["name"]},
        }
        for number in range(listeners)
    ]
    return {"vip_subnet_id": SUBNET, "pools": pools, "listeners": [{**each, **more} for each in some]}


async def send(place: Inside, method: str, path: str, body: Any) -> tuple[int, str]:
    """Of a call whose every step was short, and so was every step of what became of it."""
    place.client.event_hooks = {}  # to hold an answer against its schema takes longer than to give it
    content = json.dumps(body)
    with held() as hold:
        answer = await asyncio.create_task(place.client.request(method, f"{ROOT}/{path}", content=content))
        await asyncio.create_task(place.rest())
    assert hold.longest < MOST, (method, path, hold.longest)
    return answer.status_code, answer.text


SERVING = [member(number, weight=int(number < LARGEST)) for number in range(MEMBERS)]
TREES = {
    "sixty pools of a thousand": (tree([pool(n, SERVING) for n in range(60)]), f"more than {MOST_VALUES} values"),
    "twenty pools of a thousand": (tree([pool(n, SERVING) for n in range(20)]), f"at most {MEMBERS} members in all"),
    "a thousand twice the same": (tree([pool(0, [member(1)] * MEMBERS)]), "Another member on this pool"),
    "cidrs": (
        tree([pool(0, [])], LISTENERS, allowed_cidrs=[f"10.{n}.0.0/16" for n in range(CIDRS)]),
        f"at most {IN_ALL['allowed_cidrs']} allowed_cidrs in all",
    ),
    "as many cidrs as there may be": (
        tree([pool(0, [])], IN_ALL["allowed_cidrs"] // CIDRS, allowed_cidrs=[f"10.{n}.0.0/16" for n in range(CIDRS)]),
        "",
    ),
    "one pool of a thousand": (tree([pool(0, SERVING)], LISTENERS), ""),
    "pools of all weights": (
        tree([pool(n, [member(each, weight=1 + each) for each in range(LARGEST)]) for n in range(3)], LISTENERS),
        "",
    ),
    "as many pools as there may be": (
        tree([pool(n, [member(5 * n + each) for each in range(MEMBERS // POOLS)]) for n in range(POOLS)], LISTENERS),
        "",
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_a_tree(tmp_path: Path, name: str):
    body, refusal = TREES[name]

    async def story(place: Inside) -> None:
        status, text = await send(place, "POST", "loadbalancers", {"loadbalancer": body})
        assert (status < 300, refusal in text) == (not refusal, True), text[:500]

    play_octavia(tmp_path, story)


def test_a_batch(tmp_path: Path):
    """All members are new, all stay, all get other weights, all are others; and half of them are there twice."""
    new = [{**each, "address": each["address"].replace("10.1.", "10.2.")} for each in SERVING]
    turned = [{**each, "weight": int(number >= MEMBERS - LARGEST)} for number, each in enumerate(SERVING)]

    async def story(place: Inside) -> None:
        made = await make(place, "loadbalancers", "loadbalancer", **tree([pool(0, [])], LISTENERS))
        path = f"pools/{made['pools'][0]['id']}/members"
        for batch in (SERVING, SERVING, turned, new):
            status, text = await send(place, "PUT", path, {"members": batch})
            assert status == 202, text
        status, text = await send(place, "PUT", path, {"members": SERVING[:500] * 2})
        assert (status, "Another member on this pool" in text) == (409, True), text

    play_octavia(tmp_path, story)

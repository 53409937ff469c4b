"""The limit on servers per HAProxy, over all load balancers of a project on a network."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from fairlead.api import octavia
from fairlead.api.http.front_end import Services
from fairlead.model.registry.changeset import Changes
from harness.api import InProcessServer, compile_anything, play
from harness.front_ends.octavia_probing import LBS, SUBNET, WORLD

Scenario = Callable[[InProcessServer], Awaitable[None]]
MAX_SERVERS = 12
POOLS = "/v2.0/lbaas/pools"


@pytest.fixture
def door(tmp_path: Path) -> Callable[[Scenario], None]:
    def limited(services: Services) -> Starlette:
        return octavia.make_front_end(replace(services, proxy_servers=MAX_SERVERS))

    def run(story: Scenario) -> None:
        async def with_world(place: InProcessServer) -> None:
            place.model.snapshot = replace(place.model.snapshot, proxied_providers=frozenset({"fairlead"}))
            await place.model.write(lambda _: Changes(puts=WORLD))
            await place.reconcile()
            await story(place)

        play(limited, tmp_path, with_world, "/load-balancer", compile_anything)

    return run


def members(number: int) -> list[dict[str, Any]]:
    return [{"address": f"10.0.0.{50 + each}", "protocol_port": 80, "subnet_id": SUBNET} for each in range(number)]


def web(listeners: int, servers: int, *, apart: bool = False, protocol: str = "HTTP") -> dict[str, Any]:
    """Return a load balancer with this many listeners on one pool; `apart` gives each listener a timeout of its own."""
    ports = [
        {
            "protocol": protocol,
            "protocol_port": 80 + each,
            "default_pool": {"name": "web"},
            **({"timeout_member_data": 1000 + each} if apart else {}),
        }
        for each in range(listeners)
    ]
    pool = {"name": "web", "protocol": protocol, "lb_algorithm": "ROUND_ROBIN", "members": members(servers)}
    return {"loadbalancer": {"vip_subnet_id": SUBNET, "listeners": ports, "pools": [pool]}}


async def refused(
    place: InProcessServer, method: str, path: str, body: Any, asked: int, most: int = MAX_SERVERS
) -> None:
    before = place.model.snapshot
    answer = await place.call(method, path, body)
    words = f"({asked} of {most}). Listeners with the same protocol and timeouts share the members of a pool."
    assert answer.status_code == 403
    assert answer.json()["faultstring"].endswith(words)
    assert answer.json()["faultstring"].startswith("Quota has been met for resources: Members behind proxied listeners")
    assert place.model.snapshot is before


def test_listeners_that_share_a_pool_count_its_members_once(door: Callable[[Scenario], None]) -> None:
    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", LBS, web(20, MAX_SERVERS))
        assert sum(place.model.snapshot.proxy_servers.values()) == MAX_SERVERS
        await refused(place, "POST", LBS, web(1, 1), MAX_SERVERS + 1)
        await place.call_ok("POST", LBS, web(20, MAX_SERVERS, protocol="TCP"))

    door(story)


def test_listeners_with_different_timeouts_count_pool_members_separately(door: Callable[[Scenario], None]) -> None:
    async def story(place: InProcessServer) -> None:
        await refused(place, "POST", LBS, web(3, 5, apart=True), 15)
        await place.call_ok("POST", LBS, web(2, 5, apart=True))

    door(story)


def test_proxied_members_are_limited_per_network_and_deletion_frees_room(door: Callable[[Scenario], None]) -> None:
    async def story(place: InProcessServer) -> None:
        first = (await place.call_ok("POST", LBS, web(1, 10)))["loadbalancer"]
        second = (await place.call_ok("POST", LBS, web(1, 2)))["loadbalancer"]
        pool = second["pools"][0]["id"]
        await refused(place, "POST", f"{POOLS}/{pool}/members", {"member": members(3)[2]}, MAX_SERVERS + 1)
        await place.call_ok("DELETE", f"{LBS}/{first['id']}?cascade=true")
        await place.call_ok("POST", f"{POOLS}/{pool}/members", {"member": members(3)[2]})

    door(story)


def test_load_balancer_above_the_limit_can_change_and_shrink(tmp_path: Path) -> None:
    """A load balancer above the limit is served and can change and shrink, as after an operator lowered the limit."""

    async def above(place: InProcessServer) -> None:
        place.model.snapshot = replace(place.model.snapshot, proxied_providers=frozenset({"fairlead"}))
        await place.model.write(lambda _: Changes(puts=WORLD))
        made = (await place.call_ok("POST", LBS, web(3, 4, apart=True)))["loadbalancer"]
        listener, pool = f"/v2.0/lbaas/listeners/{made['listeners'][0]['id']}", made["pools"][0]["id"]
        most.append(5)  # the operator's new limit
        await place.call_ok("PUT", listener, {"listener": {"timeout_member_data": 7}})
        await place.call_ok("DELETE", listener)
        assert sum(place.model.snapshot.proxy_servers.values()) == 8
        await refused(place, "POST", f"{POOLS}/{pool}/members", {"member": members(5)[4]}, 10, most[-1])
        await place.call_ok("DELETE", f"{LBS}/{made['id']}?cascade=true")
        assert not place.model.snapshot.proxy_servers

    most = [MAX_SERVERS]

    def lowered(services: Services) -> Starlette:
        front_ends = {each: octavia.make_front_end(replace(services, proxy_servers=each)) for each in (MAX_SERVERS, 5)}

        class Current(Starlette):
            async def __call__(self, *call: Any) -> None:
                await front_ends[most[-1]](*call)

        return Current(routes=front_ends[MAX_SERVERS].routes)

    play(lowered, tmp_path, above, "/load-balancer", compile_anything)

"""The agents' door, and what clients are told of what agents have told."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from fairlead.api import agents, octavia
from fairlead.api.door import House, Identity
from fairlead.api.ledger import Ledger
from fairlead.drivers.interface import Unreachable
from fairlead.model.snapshot import Changes
from fairlead.model.statistics import Figures
from harness.api import ADMIN, Inside, inside
from harness.documented import Documented
from harness.octavia import NET, NOBODY, ROOT, SUBNET, network

LISTENERS = [{"name": name, "protocol": "TCP", "protocol_port": port} for name, port in (("front", 80), ("back", 81))]
ZEROS = {
    "active_connections": 0, "bytes_in": 0, "bytes_out": 0, "request_errors": 0, "total_connections": 0
}  # fmt: skip


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Scene:
    """A load balancer with two listeners, its API at `api`, and the agents' door."""

    api: Inside
    agents: httpx.AsyncClient
    clock: Clock
    balancer: str
    listeners: list[str]
    caller: Identity = ADMIN

    async def tell(self, chassis: str, interval: int = 10, **figures: dict[str, int]) -> list[str]:
        """Figures by the number of the listener: `at0`, `at1`."""
        sums = {self.listeners[int(name[2:])]: each for name, each in figures.items()}
        answer = await self.agents.put(f"/chassis/{chassis}", json={"interval": interval, "listeners": sums})
        assert answer.status_code == 200, answer.text
        unknown: list[str] = answer.json()["unknown"]
        return unknown

    async def stats(self, path: str) -> Any:
        answer = await self.api.call("GET", f"{ROOT}/{path}/stats")
        return answer.json()["stats"] if answer.status_code == 200 else (answer.status_code, answer.text)

    async def whose(self, *sightings: tuple[str, str, str, int]) -> httpx.Response:
        words = ("place", "transport", "address", "port")
        body = {"sightings": [dict(zip(words, each, strict=True)) for each in sightings]}
        return await self.agents.post("/sightings", json=body)


Story: TypeAlias = Callable[[Scene], Awaitable[None]]


def locate(place: str) -> str | None:
    if place == "datapath:99":
        raise Unreachable("the Southbound database is not connected")
    return {"datapath:1": NET, "zone:vm1": NET}.get(place)


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Story], None]:
    async def run(story: Story) -> None:
        clock, made = Clock(), list[Starlette]()

        def make(house: House) -> Starlette:
            whole = replace(house, ledger=Ledger(clock), locate=locate)
            made.append(agents.make_door(whole))
            return octavia.make_door(whole)

        async with inside(make, tmp_path, "/load-balancer") as api:
            await api.model.write(lambda _: Changes(puts=(network(),)))
            body = {"vip_subnet_id": SUBNET, "vip_address": "10.0.0.10", "listeners": LISTENERS}
            balancer = (await api.good("POST", f"{ROOT}/loadbalancers", {"loadbalancer": body}))["loadbalancer"]
            ids = {each["name"]: each["id"] for each in balancer["listeners"]}

            async def door(scope: Scope, receive: Receive, send: Send) -> None:
                await made[0]({**scope, "identity": scene.caller}, receive, send)

            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=door), base_url="http://door") as client:
                scene = Scene(api, client, clock, balancer["id"], [ids["front"], ids["back"]])
                documented = Documented(made[0], (await client.get("/openapi.json")).json()["components"])
                client.event_hooks = {"response": [documented.hold]}
                await story(scene)

    return lambda story: asyncio.run(run(story))


def test_while_no_node_tells_there_are_no_figures(play):
    async def story(scene: Scene) -> None:
        for path in (f"loadbalancers/{scene.balancer}", f"listeners/{scene.listeners[0]}"):
            status, text = await scene.stats(path)
            assert status == 501
            assert "Provider 'ovn' does not support a requested option: statistics (no compute node tells any" in text
        await scene.tell("node1")
        assert await scene.stats(f"loadbalancers/{scene.balancer}") == ZEROS

    play(story)


def test_figures_are_summed_over_nodes_and_listeners(play):
    async def story(scene: Scene) -> None:
        await scene.tell("node1", at0={"connections": 5, "bytes_in": 100, "active": 1}, at1={"errors": 2})
        await scene.tell("node2", at0={"connections": 7, "errors": 1})
        front = await scene.stats(f"listeners/{scene.listeners[0]}")
        assert front == {
            **ZEROS,
            "active_connections": 1,
            "bytes_in": 100,
            "request_errors": 1,
            "total_connections": 12,
        }
        whole = await scene.stats(f"loadbalancers/{scene.balancer}")
        assert whole == {**front, "request_errors": 3}

    play(story)


def test_a_report_takes_the_place_of_the_last(play):
    async def story(scene: Scene) -> None:
        await scene.tell("node1", at0={"connections": 5}, at1={"connections": 1})
        for _ in range(2):
            await scene.tell("node1", at0={"connections": 6})
            assert (await scene.stats(f"loadbalancers/{scene.balancer}"))["total_connections"] == 6

    play(story)


def test_a_silent_node_has_no_open_connections(play):
    async def story(scene: Scene) -> None:
        await scene.tell("node1", at0={"connections": 5, "active": 5})
        await scene.tell("node2", at0={"connections": 2, "active": 2}, interval=60)
        scene.clock.now += 30
        found = await scene.stats(f"loadbalancers/{scene.balancer}")
        assert (found["total_connections"], found["active_connections"]) == (7, 2)

    play(story)


def test_what_is_told_of_a_listener_that_is_gone_is_not_kept(play):
    async def story(scene: Scene) -> None:
        scene.listeners.append(NOBODY)
        assert await scene.tell("node1", at0={"connections": 5}, at2={"connections": 9}) == [NOBODY]
        await scene.api.good("DELETE", f"{ROOT}/listeners/{scene.listeners[0]}")
        assert (await scene.stats(f"loadbalancers/{scene.balancer}")) == ZEROS
        assert await scene.tell("node1", at0={"connections": 5}) == [scene.listeners[0]]

    play(story)


def test_a_node_asks_whose_it_is(play):
    async def story(scene: Scene) -> None:
        found = await scene.whose(
            ("datapath:1", "tcp", "10.0.0.10", 80),
            ("zone:vm1", "tcp", "10.0.0.10", 81),
            ("datapath:1", "udp", "10.0.0.10", 80),
            ("datapath:2", "tcp", "10.0.0.10", 80),
        )
        assert found.json() == {"listeners": [*scene.listeners, None, None]}

    play(story)


def test_while_ovn_cannot_be_asked_nothing_is_said_to_be_nobodys(play):
    async def story(scene: Scene) -> None:
        found = await scene.whose(("datapath:1", "tcp", "10.0.0.10", 80), ("datapath:99", "tcp", "10.0.0.10", 80))
        assert found.status_code == 503
        assert found.json() == {"error": "OVN cannot be asked: the Southbound database is not connected"}

    play(story)


@pytest.mark.parametrize(("roles", "status"), [(["service"], 200), (["admin"], 200), (["member", "reader"], 403)])
def test_only_agents_and_administrators_come_in(play, roles: list[str], status: int):
    async def story(scene: Scene) -> None:
        scene.caller = Identity(user="u", project_id="p", roles=frozenset(roles))
        assert (await scene.whose()).status_code == status
        assert (await scene.agents.put("/chassis/n", json={"interval": 1, "listeners": {}})).status_code == status

    play(story)


ONE = {"place": "datapath:1", "transport": "tcp", "address": "10.0.0.10", "port": 80}


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("POST", "/sightings", [], "Value should be an object."),
        ("POST", "/sightings", {}, "sightings is missing."),
        ("POST", "/sightings", {"sightings": [{**ONE, "more": 1}]}, "Unknown attribute: more"),
        ("POST", "/sightings", {"sightings": [{**ONE, "place": "here"}]}, "place: Value should be datapath:KEY or"),
        ("POST", "/sightings", {"sightings": [{**ONE, "place": "datapath:x"}]}, "place: Value should be datapath:KEY"),
        ("POST", "/sightings", {"sightings": [{**ONE, "transport": "icmp"}]}, "transport: Value should be one of"),
        ("POST", "/sightings", {"sightings": [{**ONE, "address": "x"}]}, "address: "),
        ("POST", "/sightings", {"sightings": [{**ONE, "port": 0}]}, "port: Value should be greater or equal to 1"),
        ("POST", "/sightings", {"sightings": [ONE] * 1_001}, "at most 1000 items"),
        ("PUT", "/chassis/n", {"listeners": {}}, "interval is missing."),
        ("PUT", "/chassis/n", {"interval": 0, "listeners": {}}, "interval: Value should be greater or equal to 1"),
        ("PUT", "/chassis/n", {"interval": 1, "listeners": {"x": {"connections": -1}}}, "connections: Value should be"),
        ("PUT", "/chassis/n", {"interval": 1, "listeners": {"x": {"bytes": 1}}}, "Unknown attribute: bytes"),
        ("PUT", "/chassis/n", {"interval": 1, "listeners": {"x": {"active": None}}}, "active: A value is required."),
        ("PUT", "/chassis/n", {"interval": 1, "listeners": []}, "listeners: Value should be an object."),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_kept(play, method: str, path: str, body: Any, words: str):
    async def story(scene: Scene) -> None:
        answer = await scene.agents.request(method, path, json=body)
        assert answer.status_code == 400
        assert words in answer.json()["error"]
        assert (await scene.stats(f"loadbalancers/{scene.balancer}"))[0] == 501

    play(story)


def test_a_ledger_forgets_what_nobody_tells_any_more():
    clock = Clock()
    ledger = Ledger(clock)
    ledger.report("node1", {"web": Figures(connections=1)}, 10)
    ledger.report("node1", {}, 10)
    assert ledger.total(["web"]) == Figures()
    assert ledger.nodes == 1
    clock.now += 30
    assert ledger.nodes == 0

"""The agents' API, and the figures that clients read from agents' reports."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from fairlead.agent_protocol.messages import LARGEST_SUM, MOST_LISTENERS
from fairlead.api import octavia
from fairlead.api.agents import routes
from fairlead.api.agents.traffic_counters import MEMORY, MOST, NodeCounts
from fairlead.api.http.front_end import Services
from fairlead.changes.identity import Identity
from fairlead.drivers.interface import Unreachable
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.hosts import Host
from fairlead.model.documents.network import Network, Port
from fairlead.model.documents.traffic_counters import Figures
from fairlead.model.queries.statistics import CountingPlace, Datapath, Zone
from fairlead.model.registry.changeset import Changes
from harness.api import ADMIN, NOON, Inside, inside
from harness.documented import documented
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
    """A load balancer with two listeners, its API at `api`, and the agents' API."""

    api: Inside
    agents: httpx.AsyncClient
    clock: Clock
    balancer: str
    listeners: list[str]
    caller: Identity = ADMIN

    async def tell(self, chassis: str, interval: int = 10, **figures: dict[str, int]) -> list[str]:
        """Report counters by listener number: `at0`, `at1`. Returns the ids that the server does not know."""
        sums = {self.listeners[int(name[2:])]: each for name, each in figures.items()}
        answer = await self.agents.put(f"/chassis/{chassis}", json={"interval": interval, "listeners": sums})
        assert answer.status_code == 200, answer.text
        unknown: list[str] = answer.json()["unknown"]
        return unknown

    async def stats(self, path: str) -> Any:
        answer = await self.api.call("GET", f"{ROOT}/{path}/stats")
        return answer.json()["stats"] if answer.status_code == 200 else (answer.status_code, answer.text)

    async def whose(self, *sightings: tuple[str, str, str, int], chassis: str = "") -> httpx.Response:
        words = ("place", "transport", "address", "port")
        body: dict[str, Any] = {"sightings": [dict(zip(words, each, strict=True)) for each in sightings]}
        if chassis:
            body["chassis"] = chassis
        return await self.agents.post("/sightings", json=body)


def locate(place: CountingPlace) -> str | None:
    if place == Datapath(99):
        raise Unreachable("the Southbound database is not connected")
    places: dict[CountingPlace, str] = {Datapath(1): NET, Zone("vm1"): "vm1", Datapath(2): "other"}
    return places.get(place)


def ports_on(chassis: str) -> frozenset[str] | None:
    if chassis == "away":
        raise Unreachable("the Southbound database is not connected")
    ports = {"node1": {"vm1", "somebody-elses"}, "node2": {"vm2"}, "node3": set[str]()}
    return frozenset(ports[chassis]) if chassis in ports else None


def vm(name: str, network_id: str, mac: str) -> Port:
    return Port(id=name, project_id="p", created_at=NOON, network_id=network_id, mac_address=mac)


def agent(*chassis: str) -> Identity:
    return Identity(user="n", project_id="ops", roles=frozenset({"service"}), chassis=frozenset(chassis))


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    clock, made = Clock(), list[Starlette]()

    def make(services: Services) -> Starlette:
        whole = replace(services, node_counts=NodeCounts(clock), locate=locate, ports_on=ports_on)
        made.append(routes.make_door(whole))
        return octavia.make_door(whole)

    async with inside(make, tmp_path, "/load-balancer") as api:
        other = Network(id="other", mtu=1442, project_id="p", created_at=NOON)
        machines = vm("vm1", NET, "02:00:00:00:00:01"), vm("vm2", "other", "02:00:00:00:00:02")
        await api.model.write(lambda _: Changes(puts=(network(), other, *machines)))
        body = {"vip_subnet_id": SUBNET, "vip_address": "10.0.0.10", "listeners": LISTENERS}
        balancer = (await api.good("POST", f"{ROOT}/loadbalancers", {"loadbalancer": body}))["loadbalancer"]
        ids = {each["name"]: each["id"] for each in balancer["listeners"]}

        async def door(scope: Scope, receive: Receive, send: Send) -> None:
            await made[0]({**scope, "identity": scene.caller}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=door), base_url="http://door") as client:
            scene = Scene(api, client, clock, balancer["id"], [ids["front"], ids["back"]])
            client.event_hooks = {"response": [(await documented(made[0], client)).hold]}
            yield scene


async def test_while_no_node_tells_there_are_no_figures(scene: Scene):
    for path in (f"loadbalancers/{scene.balancer}", f"listeners/{scene.listeners[0]}"):
        status, text = await scene.stats(path)
        assert status == 501
        words = "Provider 'fairlead' does not support a requested option: statistics (no compute node tells any"
        assert words in text
    await scene.tell("node1")
    assert await scene.stats(f"loadbalancers/{scene.balancer}") == ZEROS


async def test_figures_are_summed_over_nodes_and_listeners(scene: Scene):
    await scene.tell("node1", at0={"connections": 5, "bytes_in": 100, "active": 1}, at1={"errors": 2})
    await scene.tell("node2", at0={"connections": 7, "errors": 1, "bytes_out": 50})
    front = await scene.stats(f"listeners/{scene.listeners[0]}")
    assert front == {
        **ZEROS,
        "active_connections": 1,
        "bytes_in": 100,
        "bytes_out": 50,
        "request_errors": 1,
        "total_connections": 12,
    }
    whole = await scene.stats(f"loadbalancers/{scene.balancer}")
    assert whole == {**front, "request_errors": 3}


async def test_a_report_takes_the_place_of_the_last(scene: Scene):
    await scene.tell("node1", at0={"connections": 5}, at1={"connections": 1})
    for _ in range(2):
        await scene.tell("node1", at0={"connections": 6})
        assert (await scene.stats(f"loadbalancers/{scene.balancer}"))["total_connections"] == 6


async def test_a_silent_node_has_no_open_connections(scene: Scene):
    await scene.tell("node1", at0={"connections": 5, "active": 5})
    await scene.tell("node2", at0={"connections": 2, "active": 2}, interval=60)
    scene.clock.now += 30
    found = await scene.stats(f"loadbalancers/{scene.balancer}")
    assert (found["total_connections"], found["active_connections"]) == (7, 2)


async def test_what_is_told_of_a_listener_that_is_gone_is_not_kept(scene: Scene):
    scene.listeners.append(NOBODY)
    assert await scene.tell("node1", at0={"connections": 5}, at2={"connections": 9}) == [NOBODY]
    await scene.api.good("DELETE", f"{ROOT}/listeners/{scene.listeners[0]}")
    assert (await scene.stats(f"loadbalancers/{scene.balancer}")) == ZEROS
    assert await scene.tell("node1", at0={"connections": 5}) == [scene.listeners[0]]


async def test_a_node_asks_whose_it_is(scene: Scene):
    found = await scene.whose(
        ("datapath:1", "tcp", "10.0.0.10", 80),
        ("zone:vm1", "tcp", "10.0.0.10", 81),
        ("datapath:1", "udp", "10.0.0.10", 80),
        ("datapath:2", "tcp", "10.0.0.10", 80),
    )
    assert found.json() == {
        "listeners": [*scene.listeners, None, None],
        "proxied": [],
        "places": [NET, "vm1", NET, "other"],
    }


async def test_while_ovn_cannot_be_asked_nothing_is_said_to_be_nobodys(scene: Scene):
    found = await scene.whose(("datapath:1", "tcp", "10.0.0.10", 80), ("datapath:99", "tcp", "10.0.0.10", 80))
    assert found.status_code == 503
    assert found.json() == {"error": "OVN cannot be asked: the Southbound database is not connected"}


@pytest.mark.parametrize(("roles", "status"), [(["service"], 403), (["admin"], 200), (["member", "reader"], 403)])
async def test_only_agents_and_administrators_come_in(scene: Scene, roles: list[str], status: int):
    """Only agents and administrators have access, and an agent's user without a chassis may report for no node."""

    scene.caller = Identity(user="u", project_id="p", roles=frozenset(roles))
    assert (await scene.whose()).status_code == status
    answer = await scene.agents.put("/chassis/node1", json={"interval": 1, "listeners": {}})
    assert answer.status_code == status
    if roles == ["service"]:
        assert "user u speaks for no chassis: let its line in the password file end in" in answer.json()["error"]


@pytest.mark.parametrize(
    ("who", "chassis", "status", "words"),
    [
        (agent("node1"), "node1", 200, ""),
        (agent("node1", "node2"), "node2", 200, ""),
        (agent("node1"), "node2", 403, "user n speaks for chassis node1, and not for node2"),
        (agent("node9"), "node9", 404, "OVN has no chassis node9"),
        (agent("away"), "away", 503, "OVN cannot be asked: the Southbound database is not connected"),
        (ADMIN, "node2", 200, ""),
        (ADMIN, "node9", 404, "OVN has no chassis node9"),
    ],
)
async def test_an_agent_speaks_for_its_own_chassis(scene: Scene, who: Identity, chassis: str, status: int, words: str):
    scene.caller = who
    one = {scene.listeners[0]: {"connections": 5}}
    for answer in (
        await scene.agents.put(f"/chassis/{chassis}", json={"interval": 1, "listeners": one}),
        await scene.whose(chassis=chassis),
    ):
        assert (answer.status_code, answer.json().get("error", "")) == (status, words)
    found = await scene.stats(f"loadbalancers/{scene.balancer}")
    assert (found == {**ZEROS, "total_connections": 5}) if status == 200 else found[0] == 501


@pytest.mark.parametrize(
    ("who", "status"),
    [(agent("node1"), 403), (agent("host1"), 200), (agent("host2"), 404), (ADMIN, 200)],
)
async def test_a_plain_host_that_is_declared_tells_though_ovn_has_no_chassis_of_its_name(
    scene: Scene, who: Identity, status: int
):
    declared = Host(name="host1", number=1, addresses=(parse_address("192.0.2.1"),), prefixes=())
    await scene.api.model.write(lambda _: Changes(puts=(declared,)))
    scene.caller = who
    chassis = "host2" if "host2" in who.chassis else "host1"
    one = {scene.listeners[0]: {"connections": 5}}
    answer = await scene.agents.put(f"/chassis/{chassis}", json={"interval": 1, "listeners": one})
    assert answer.status_code == status
    found = await scene.stats(f"loadbalancers/{scene.balancer}")
    assert (found == {**ZEROS, "total_connections": 5}) if status == 200 else found[0] == 501


async def test_an_agent_learns_whose_the_addresses_are_that_its_node_has(scene: Scene):
    """An agent resolves counted addresses to listeners of its own node's networks only: node1 has a machine on the
    VIP's network, node2 on another, node3 none."""

    sightings = ("datapath:1", "tcp", "10.0.0.10", 80), ("zone:vm1", "tcp", "10.0.0.10", 81)
    nobodys, named = {"listeners": [None, None], "proxied": [], "places": [None, None]}, [NET, "vm1"]
    owned = {"listeners": scene.listeners, "proxied": [], "places": named}
    for chassis, found in (("node1", owned), ("node2", nobodys), ("node3", nobodys)):
        scene.caller = agent(chassis)
        for answer in (await scene.whose(*sightings), await scene.whose(*sightings, chassis=chassis)):
            assert answer.json() == found
    scene.caller = agent("node1", "node2")
    answer = await scene.whose(*sightings)
    assert answer.status_code == 400
    assert answer.json() == {"error": "chassis is missing: which of node1, node2 asks?"}
    scene.caller = ADMIN
    assert (await scene.whose(*sightings)).json() == owned
    assert (await scene.whose(*sightings, chassis="node2")).json() == nobodys


async def test_sums_that_no_node_can_have_are_not_believed(scene: Scene):
    async def tell(**figures: int) -> Any:
        body = {"interval": 1, "listeners": {scene.listeners[0]: figures}}
        return (await scene.agents.put("/chassis/node1", json=body)).json()

    found = {"unknown": [], "doubtful": [scene.listeners[0]]}
    assert await tell(connections=2**62) == found
    assert await scene.stats(f"loadbalancers/{scene.balancer}") == ZEROS
    assert await tell(connections=10) == {"unknown": [], "doubtful": []}
    assert await tell(connections=2**62, active=3) == found
    assert (await scene.stats(f"loadbalancers/{scene.balancer}"))["total_connections"] == 10


ONE = {"place": "datapath:1", "transport": "tcp", "address": "10.0.0.10", "port": 80}


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("POST", "/sightings", [], "Value should be an object."),
        ("POST", "/sightings", {}, "sightings is missing."),
        ("POST", "/sightings", {"sightings": [{**ONE, "place": "here"}]}, "place: Value should be datapath:KEY or"),
        ("POST", "/sightings", {"sightings": [{**ONE, "place": "datapath:x"}]}, "place: Value should be datapath:KEY"),
        ("POST", "/sightings", {"sightings": [{**ONE, "transport": "icmp"}]}, "transport: Value should be one of"),
        ("POST", "/sightings", {"sightings": [{**ONE, "address": "x"}]}, "address: "),
        ("POST", "/sightings", {"sightings": [{**ONE, "port": 0}]}, "port: Value should be greater or equal to 1"),
        ("POST", "/sightings", {"sightings": [ONE] * 1_001}, "at most 1000 items"),
        ("PUT", "/chassis/node1", {"listeners": {}}, "interval is missing."),
        ("PUT", "/chassis/node1", {"interval": 0, "listeners": {}}, "interval: Value should be greater or equal to 1"),
        (
            "PUT",
            "/chassis/node1",
            {"interval": 1, "listeners": {"x": {"connections": -1}}},
            "connections: Value should be",
        ),
        (
            "PUT",
            "/chassis/node1",
            {"interval": 1, "listeners": {"x": {"active": None}}},
            "active: A value is required.",
        ),
        ("PUT", "/chassis/node1", {"interval": 1, "listeners": []}, "listeners: Value should be an object."),
    ],
)
async def test_what_is_wrong_is_named_and_nothing_is_kept(scene: Scene, method: str, path: str, body: Any, words: str):
    answer = await scene.agents.request(method, path, json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert (await scene.stats(f"loadbalancers/{scene.balancer}"))[0] == 501


def age(_: str) -> float:
    return 3600.0


def test_a_ledger_forgets_what_nobody_tells_any_more():
    clock = Clock()
    node_counts = NodeCounts(clock)
    node_counts.report("node1", {"web": Figures(connections=1)}, 10, age)
    node_counts.report("node1", {}, 10, age)
    assert node_counts.total(["web"]) == Figures()
    assert node_counts.nodes == 1
    clock.now += 30
    assert node_counts.nodes == 0


def test_a_ledger_forgets_a_node_that_has_been_silent_for_a_day():
    clock = Clock()
    node_counts = NodeCounts(clock)
    for node in range(100):
        node_counts.report(f"invented{node}", {"web": Figures(connections=1)}, 10, age)
    clock.now += 30 + MEMORY
    node_counts.report("node1", {"web": Figures(connections=7)}, 10, age)
    assert node_counts.total(["web"]) == Figures(connections=107)
    clock.now += 1
    node_counts.report("node1", {"web": Figures(connections=8)}, 10, age)
    assert node_counts.total(["web"]) == Figures(connections=8)
    assert len(node_counts) == 1


def test_a_node_that_begins_anew_goes_on_from_what_it_had():
    """Totals continue after a node has lost its file, and traffic that its switch counted before is not counted
    twice."""
    clock = Clock()
    node_counts = NodeCounts(clock)
    for told, total in ((100, 100), (90, 100), (95, 105), (0, 105), (1, 106), (1, 106)):
        node_counts.report("node1", {"web": Figures(connections=told, bytes_in=5 * told)}, 10, age)
        assert node_counts.total(["web"]) == Figures(connections=total, bytes_in=5 * total)
        clock.now += 10


@pytest.mark.parametrize("what", [field.name for field in fields(Figures) if field.name != "active"])
def test_a_sum_grows_by_what_a_node_can_do_since_it_told_last(what: str):
    clock = Clock()
    node_counts = NodeCounts(clock)
    most = getattr(MOST, what)
    old = most * (3600 + 10)
    assert node_counts.report("node1", {"web": Figures(**{what: old + 1})}, 10, age) == ["web"]
    assert node_counts.total(["web"]) == Figures()
    assert node_counts.report("node1", {"web": Figures(**{what: old})}, 10, age) == []
    clock.now += 20
    assert node_counts.report("node1", {"web": Figures(**{what: old + 30 * most + 1})}, 10, age) == ["web"]
    assert node_counts.total(["web"]) == Figures(**{what: old})
    clock.now += 1  # one second later the value is plausible
    assert node_counts.report("node1", {"web": Figures(**{what: old + 30 * most + 1})}, 10, age) == []
    assert node_counts.total(["web"]) == Figures(**{what: old + 30 * most + 1})


def test_so_many_connections_are_open_at_once_and_no_more():
    node_counts = NodeCounts(Clock())
    assert node_counts.report("node1", {"web": Figures(active=MOST.active + 1)}, 10, age) == ["web"]
    assert node_counts.report("node1", {"web": Figures(active=MOST.active)}, 10, age) == []
    assert node_counts.total(["web"]) == Figures(active=MOST.active)


async def test_a_report_has_so_many_listeners_and_holds_up_nobody(scene: Scene):
    """The body with the maximum number of listeners and values is accepted; one more listener is refused."""
    sums = {each.name: LARGEST_SUM for each in fields(Figures)}

    for more, status in ((0, 200), (1, 400)):
        names = [f"{number:08d}-0000-4000-8000-000000000000" for number in range(MOST_LISTENERS - 1 + more)]
        content = msgspec.json.encode({"interval": 10, "listeners": dict.fromkeys([*names, scene.listeners[0]], sums)})
        answer = await scene.agents.put("/chassis/node1", content=content)
        assert answer.status_code == status, answer.text[:200]
        assert f"at most {MOST_LISTENERS}" in answer.text or len(answer.json()["unknown"]) == len(names)

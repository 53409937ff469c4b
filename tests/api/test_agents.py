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

from fairlead.agent_protocol.messages import MAX_COUNTER, MAX_LISTENERS
from fairlead.api import octavia
from fairlead.api.agents import routes
from fairlead.api.agents.traffic_counters import MAX_GROWTH_PER_SECOND, RETENTION_SECONDS, NodeCounts
from fairlead.api.http.front_end import Services
from fairlead.changes.identity import Identity
from fairlead.drivers.interface import Unreachable
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.hosts import Host
from fairlead.model.documents.network import Network, Port
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.queries.statistics import ConntrackZone, CountingPlace, Datapath
from fairlead.model.registry.changeset import Changes
from harness.api import ADMIN, NOON, InProcessServer, in_process_server
from harness.octavia import NET, ROOT, SUBNET, UNKNOWN_ID, network
from harness.openapi_validation import make_validator

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

    api: InProcessServer
    agents: httpx.AsyncClient
    clock: Clock
    balancer: str
    listeners: list[str]
    caller: Identity = ADMIN

    async def report_counters(self, chassis: str, interval: int = 10, **figures: dict[str, int]) -> list[str]:
        """Report counters by listener number: `at0`, `at1`. Returns the ids that the server does not know."""
        sums = {self.listeners[int(name[2:])]: each for name, each in figures.items()}
        answer = await self.agents.put(f"/chassis/{chassis}", json={"interval": interval, "listeners": sums})
        assert answer.status_code == 200, answer.text
        unknown: list[str] = answer.json()["unknown"]
        return unknown

    async def stats(self, path: str) -> Any:
        answer = await self.api.call("GET", f"{ROOT}/{path}/stats")
        return answer.json()["stats"] if answer.status_code == 200 else (answer.status_code, answer.text)

    async def owner_of_port(self, *sightings: tuple[str, str, str, int], chassis: str = "") -> httpx.Response:
        words = ("place", "transport", "address", "port")
        body: dict[str, Any] = {"sightings": [dict(zip(words, each, strict=True)) for each in sightings]}
        if chassis:
            body["chassis"] = chassis
        return await self.agents.post("/sightings", json=body)


def locate(place: CountingPlace) -> str | None:
    if place == Datapath(99):
        raise Unreachable("not connected to the OVN Southbound database")
    places: dict[CountingPlace, str] = {Datapath(1): NET, ConntrackZone("vm1"): "vm1", Datapath(2): "other"}
    return places.get(place)


def ports_on(chassis: str) -> frozenset[str] | None:
    if chassis == "away":
        raise Unreachable("not connected to the OVN Southbound database")
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
        whole = replace(
            services, node_counts=NodeCounts(clock), resolve_counting_place=locate, ports_of_chassis=ports_on
        )
        made.append(routes.make_front_end(whole))
        return octavia.make_front_end(whole)

    async with in_process_server(make, tmp_path, "/load-balancer") as api:
        other = Network(id="other", mtu=1442, project_id="p", created_at=NOON)
        machines = vm("vm1", NET, "02:00:00:00:00:01"), vm("vm2", "other", "02:00:00:00:00:02")
        await api.model.write(lambda _: Changes(puts=(network(), other, *machines)))
        body = {"vip_subnet_id": SUBNET, "vip_address": "10.0.0.10", "listeners": LISTENERS}
        balancer = (await api.call_ok("POST", f"{ROOT}/loadbalancers", {"loadbalancer": body}))["loadbalancer"]
        ids = {each["name"]: each["id"] for each in balancer["listeners"]}

        async def door(scope: Scope, receive: Receive, send: Send) -> None:
            await made[0]({**scope, "identity": scene.caller}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=door), base_url="http://door") as client:
            scene = Scene(api, client, clock, balancer["id"], [ids["front"], ids["back"]])
            client.event_hooks = {"response": [(await make_validator(made[0], client)).check_response]}
            yield scene


async def test_statistics_return_501_until_a_node_reports(scene: Scene):
    for path in (f"loadbalancers/{scene.balancer}", f"listeners/{scene.listeners[0]}"):
        status, text = await scene.stats(path)
        assert status == 501
        words = "Provider 'fairlead' does not support a requested option: statistics (no compute node reports counters"
        assert words in text
    await scene.report_counters("node1")
    assert await scene.stats(f"loadbalancers/{scene.balancer}") == ZEROS


async def test_statistics_are_summed_over_nodes_and_listeners(scene: Scene):
    await scene.report_counters("node1", at0={"connections": 5, "bytes_in": 100, "active": 1}, at1={"errors": 2})
    await scene.report_counters("node2", at0={"connections": 7, "errors": 1, "bytes_out": 50})
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


async def test_new_report_replaces_the_last_report_of_the_node(scene: Scene):
    await scene.report_counters("node1", at0={"connections": 5}, at1={"connections": 1})
    for _ in range(2):
        await scene.report_counters("node1", at0={"connections": 6})
        assert (await scene.stats(f"loadbalancers/{scene.balancer}"))["total_connections"] == 6


async def test_unresponsive_node_has_no_active_connections(scene: Scene):
    await scene.report_counters("node1", at0={"connections": 5, "active": 5})
    await scene.report_counters("node2", at0={"connections": 2, "active": 2}, interval=60)
    scene.clock.now += 30
    found = await scene.stats(f"loadbalancers/{scene.balancer}")
    assert (found["total_connections"], found["active_connections"]) == (7, 2)


async def test_counters_of_deleted_and_unknown_listeners_are_dropped(scene: Scene):
    scene.listeners.append(UNKNOWN_ID)
    assert await scene.report_counters("node1", at0={"connections": 5}, at2={"connections": 9}) == [UNKNOWN_ID]
    await scene.api.call_ok("DELETE", f"{ROOT}/listeners/{scene.listeners[0]}")
    assert (await scene.stats(f"loadbalancers/{scene.balancer}")) == ZEROS
    assert await scene.report_counters("node1", at0={"connections": 5}) == [scene.listeners[0]]


async def test_agent_resolves_addresses_to_listeners(scene: Scene):
    found = await scene.owner_of_port(
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


async def test_listener_lookup_returns_503_while_ovn_is_disconnected(scene: Scene):
    found = await scene.owner_of_port(("datapath:1", "tcp", "10.0.0.10", 80), ("datapath:99", "tcp", "10.0.0.10", 80))
    assert found.status_code == 503
    assert found.json() == {"error": "OVN is unavailable: not connected to the OVN Southbound database"}


@pytest.mark.parametrize(("roles", "status"), [(["service"], 403), (["admin"], 200), (["member", "reader"], 403)])
async def test_agent_api_admits_only_administrators_and_agents_with_chassis(
    scene: Scene, roles: list[str], status: int
):
    """Only agents and administrators have access, and an agent's user without a chassis may report for no node."""

    scene.caller = Identity(user="u", project_id="p", roles=frozenset(roles))
    assert (await scene.owner_of_port()).status_code == status
    answer = await scene.agents.put("/chassis/node1", json={"interval": 1, "listeners": {}})
    assert answer.status_code == status
    if roles == ["service"]:
        assert "user u has no chassis: end its line in the password file with" in answer.json()["error"]


@pytest.mark.parametrize(
    ("who", "chassis", "status", "words"),
    [
        (agent("node1"), "node1", 200, ""),
        (agent("node1", "node2"), "node2", 200, ""),
        (agent("node1"), "node2", 403, "user n represents chassis node1, not node2"),
        (agent("node9"), "node9", 404, "chassis node9 does not exist in OVN"),
        (agent("away"), "away", 503, "OVN is unavailable: not connected to the OVN Southbound database"),
        (ADMIN, "node2", 200, ""),
        (ADMIN, "node9", 404, "chassis node9 does not exist in OVN"),
    ],
)
async def test_agent_reports_for_its_own_chassis_only(
    scene: Scene, who: Identity, chassis: str, status: int, words: str
):
    scene.caller = who
    one = {scene.listeners[0]: {"connections": 5}}
    for answer in (
        await scene.agents.put(f"/chassis/{chassis}", json={"interval": 1, "listeners": one}),
        await scene.owner_of_port(chassis=chassis),
    ):
        assert (answer.status_code, answer.json().get("error", "")) == (status, words)
    found = await scene.stats(f"loadbalancers/{scene.balancer}")
    assert (found == {**ZEROS, "total_connections": 5}) if status == 200 else found[0] == 501


@pytest.mark.parametrize(
    ("who", "status"),
    [(agent("node1"), 403), (agent("host1"), 200), (agent("host2"), 404), (ADMIN, 200)],
)
async def test_declared_plain_host_reports_without_an_ovn_chassis(scene: Scene, who: Identity, status: int):
    declared = Host(name="host1", number=1, addresses=(parse_address("192.0.2.1"),), prefixes=())
    await scene.api.model.write(lambda _: Changes(puts=(declared,)))
    scene.caller = who
    chassis = "host2" if "host2" in who.chassis else "host1"
    one = {scene.listeners[0]: {"connections": 5}}
    answer = await scene.agents.put(f"/chassis/{chassis}", json={"interval": 1, "listeners": one})
    assert answer.status_code == status
    found = await scene.stats(f"loadbalancers/{scene.balancer}")
    assert (found == {**ZEROS, "total_connections": 5}) if status == 200 else found[0] == 501


async def test_listener_lookup_covers_only_networks_of_the_own_node(scene: Scene):
    """An agent resolves counted addresses to listeners of its own node's networks only: node1 has a machine on the
    VIP's network, node2 on another, node3 none."""

    sightings = ("datapath:1", "tcp", "10.0.0.10", 80), ("zone:vm1", "tcp", "10.0.0.10", 81)
    nobodys, named = {"listeners": [None, None], "proxied": [], "places": [None, None]}, [NET, "vm1"]
    owned = {"listeners": scene.listeners, "proxied": [], "places": named}
    for chassis, found in (("node1", owned), ("node2", nobodys), ("node3", nobodys)):
        scene.caller = agent(chassis)
        for answer in (await scene.owner_of_port(*sightings), await scene.owner_of_port(*sightings, chassis=chassis)):
            assert answer.json() == found
    scene.caller = agent("node1", "node2")
    answer = await scene.owner_of_port(*sightings)
    assert answer.status_code == 400
    assert answer.json() == {"error": "parameter chassis is required: one of node1, node2"}
    scene.caller = ADMIN
    assert (await scene.owner_of_port(*sightings)).json() == owned
    assert (await scene.owner_of_port(*sightings, chassis="node2")).json() == nobodys


async def test_implausible_counter_values_are_ignored(scene: Scene):
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
async def test_invalid_agent_message_is_rejected_and_not_stored(
    scene: Scene, method: str, path: str, body: Any, words: str
):
    answer = await scene.agents.request(method, path, json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert (await scene.stats(f"loadbalancers/{scene.balancer}"))[0] == 501


def age(_: str) -> float:
    return 3600.0


def test_counters_missing_from_a_new_report_are_dropped():
    clock = Clock()
    node_counts = NodeCounts(clock)
    node_counts.record("node1", {"web": TrafficCounters(connections=1)}, 10, age)
    node_counts.record("node1", {}, 10, age)
    assert node_counts.total(["web"]) == TrafficCounters()
    assert node_counts.nodes == 1
    clock.now += 30
    assert node_counts.nodes == 0


def test_counters_of_a_node_expire_after_a_day_without_reports():
    clock = Clock()
    node_counts = NodeCounts(clock)
    for node in range(100):
        node_counts.record(f"invented{node}", {"web": TrafficCounters(connections=1)}, 10, age)
    clock.now += 30 + RETENTION_SECONDS
    node_counts.record("node1", {"web": TrafficCounters(connections=7)}, 10, age)
    assert node_counts.total(["web"]) == TrafficCounters(connections=107)
    clock.now += 1
    node_counts.record("node1", {"web": TrafficCounters(connections=8)}, 10, age)
    assert node_counts.total(["web"]) == TrafficCounters(connections=8)
    assert len(node_counts) == 1


def test_totals_continue_after_a_node_restarts_its_counters():
    """Totals continue after a node has lost its file, and traffic that its switch counted before is not counted
    twice."""
    clock = Clock()
    node_counts = NodeCounts(clock)
    for told, total in ((100, 100), (90, 100), (95, 105), (0, 105), (1, 106), (1, 106)):
        node_counts.record("node1", {"web": TrafficCounters(connections=told, bytes_in=5 * told)}, 10, age)
        assert node_counts.total(["web"]) == TrafficCounters(connections=total, bytes_in=5 * total)
        clock.now += 10


@pytest.mark.parametrize("what", [field.name for field in fields(TrafficCounters) if field.name != "active"])
def test_counter_growth_is_limited_by_time_since_the_last_report(what: str):
    clock = Clock()
    node_counts = NodeCounts(clock)
    most = getattr(MAX_GROWTH_PER_SECOND, what)
    old = most * (3600 + 10)
    assert node_counts.record("node1", {"web": TrafficCounters(**{what: old + 1})}, 10, age) == ["web"]
    assert node_counts.total(["web"]) == TrafficCounters()
    assert node_counts.record("node1", {"web": TrafficCounters(**{what: old})}, 10, age) == []
    clock.now += 20
    assert node_counts.record("node1", {"web": TrafficCounters(**{what: old + 30 * most + 1})}, 10, age) == ["web"]
    assert node_counts.total(["web"]) == TrafficCounters(**{what: old})
    clock.now += 1  # one second later the value is plausible
    assert node_counts.record("node1", {"web": TrafficCounters(**{what: old + 30 * most + 1})}, 10, age) == []
    assert node_counts.total(["web"]) == TrafficCounters(**{what: old + 30 * most + 1})


def test_implausible_number_of_active_connections_is_ignored():
    node_counts = NodeCounts(Clock())
    assert node_counts.record("node1", {"web": TrafficCounters(active=MAX_GROWTH_PER_SECOND.active + 1)}, 10, age) == [
        "web"
    ]
    assert node_counts.record("node1", {"web": TrafficCounters(active=MAX_GROWTH_PER_SECOND.active)}, 10, age) == []
    assert node_counts.total(["web"]) == TrafficCounters(active=MAX_GROWTH_PER_SECOND.active)


async def test_report_above_the_maximum_number_of_listeners_is_rejected(scene: Scene):
    """The body with the maximum number of listeners and values is accepted; one more listener is refused."""
    sums = {each.name: MAX_COUNTER for each in fields(TrafficCounters)}

    for more, status in ((0, 200), (1, 400)):
        names = [f"{number:08d}-0000-4000-8000-000000000000" for number in range(MAX_LISTENERS - 1 + more)]
        content = msgspec.json.encode({"interval": 10, "listeners": dict.fromkeys([*names, scene.listeners[0]], sums)})
        answer = await scene.agents.put("/chassis/node1", content=content)
        assert answer.status_code == status, answer.text[:200]
        assert f"at most {MAX_LISTENERS}" in answer.text or len(answer.json()["unknown"]) == len(names)

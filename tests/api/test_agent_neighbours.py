"""The neighbour long poll of a node: MAC addresses that its machines need in their neighbour tables."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from fairlead.agent_protocol.messages import MAX_POLL_SECONDS
from fairlead.api.agents import neighbours as api_neighbours
from fairlead.api.agents import routes
from fairlead.api.http.front_end import Services
from fairlead.changes.identity import Identity
from fairlead.drivers.interface import Unreachable
from fairlead.model.documents.addresses import derive_mac
from fairlead.model.documents.local_ip import LocalIP
from fairlead.model.documents.network import FixedIP, Network, Port
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries import neighbours
from fairlead.model.registry.changeset import Changes
from fairlead.runtime.fair_semaphore import FairSemaphore
from harness.api import ADMIN, NOON, InProcessServer, in_process_server, write_many
from harness.openapi_validation import make_validator
from harness.virtual_clock import time_of_loop
from harness.waiting import eventually

pytestmark = pytest.mark.virtual_clock
COMMON: dict[str, Any] = {"project_id": "p", "created_at": NOON}


@dataclass
class Scene:
    api: InProcessServer
    client: httpx.AsyncClient
    caller: Identity = ADMIN
    ports: dict[str, set[str]] = field(default_factory=dict)
    away: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    turns: FairSemaphore = field(default_factory=lambda: FairSemaphore(of_one=1, waiting=10))
    waited: list[float] = field(default_factory=list)

    async def ask(self, chassis: str = "node1", **body: Any) -> httpx.Response:
        return await self.client.post(f"/chassis/{chassis}/neighbours", json={"remembered": {}, **body}, timeout=30)

    async def good(self, chassis: str = "node1", **body: Any) -> Any:
        answer = await self.ask(chassis, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def put(self, *local_ips: LocalIP) -> None:
        await self.api.model.write(lambda _: Changes(puts=local_ips))

    async def delete(self, identity: str) -> None:
        await self.api.model.write(lambda _: Changes(deletes=(Owner(Kind.LOCAL_IP, identity),)))

    async def looked(self) -> None:
        """Wait until the pending long poll is about to check for changes again."""
        before = len(self.waited)
        await eventually(lambda: len(self.waited) > before)


def lip(address: str = "10.0.0.200", network_id: str = "net1", identity: str = "lip") -> LocalIP:
    return LocalIP(id=identity, network_id=network_id, port_id="owner", address=ip_address(address), **COMMON)


def vm(name: str, number: int, network_id: str = "net1", address: str = "") -> Port:
    fixed = (FixedIP(subnet_id="sub", address=ip_address(address)),) if address else ()
    mac = f"02:00:00:00:00:{number:02x}"
    return Port(id=name, network_id=network_id, mac_address=mac, fixed_ips=fixed, **COMMON)


def told(answer: Any) -> Any:
    """Return, by network: the ports, and address -> MAC."""
    return {
        network: (each["ports"], {one["address"]: one["mac"] for one in each["neighbours"]})
        for network, each in answer["networks"].items()
    }


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(api_neighbours, "perf_counter", time_of_loop)
    made = list[Starlette]()

    def ports_on(chassis: str) -> frozenset[str] | None:
        if scene.away:
            raise Unreachable("not connected to the OVN Southbound database")
        return frozenset(scene.ports[chassis]) if chassis in scene.ports else None

    def make(services: Services) -> Starlette:
        made.append(routes.make_front_end(replace(services, ports_of_chassis=ports_on)))
        return made[0]

    async with in_process_server(make, tmp_path, "/agent") as api:
        networks = (Network(id=each, mtu=1442, **COMMON) for each in ("net1", "net2"))
        machines = vm("vm1", 1), vm("vm2", 2, "net2"), vm("owner", 0xC8, address="10.0.0.200")
        await api.model.write(lambda _: Changes(puts=(*networks, *machines)))

        async def door(scope: Scope, receive: Receive, send: Send) -> None:
            seen = {"extensions": {"fairlead.over": {"event": scene.over}}, "waited": scene.waited}
            turn = lambda: scene.turns.turn("p", 5.0)  # noqa: E731
            await made[0]({**scope, **seen, "turn": turn, "identity": scene.caller}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=door), base_url="http://door") as client:
            scene = Scene(api, client)
            scene.ports = {"node1": {"vm1", "owner", "somebody-elses"}, "node2": {"vm2"}, "node3": set()}
            client.event_hooks = {"response": [(await make_validator(made[0], client)).check_response]}
            yield scene


async def test_neighbour_poll_reports_added_and_removed_local_ips(scene: Scene):
    nothing = await scene.good(wait=1)
    assert nothing["networks"] == {}
    waiting = asyncio.create_task(scene.good(digest=nothing["digest"], wait=30))
    await scene.looked()
    assert not waiting.done()
    await scene.put(lip(), lip("fd00:a::200", identity="six"))
    heard = await waiting
    virtual = derive_mac("net1")
    assert told(heard) == {"net1": (["owner", "vm1"], {"10.0.0.200": virtual, "fd00:a::200": virtual})}
    assert heard["networks"]["net1"]["neighbours"][0] == {
        "address": "10.0.0.200", "mac": virtual, "lasting": True, "unheard": ["owner"]
    }  # fmt: skip
    remembered = {"net1": ["10.0.0.200", "fd00:a::200"]}
    waiting = asyncio.create_task(scene.good(digest=heard["digest"], wait=30, remembered=remembered))
    await scene.delete("lip")
    gone = await waiting
    assert told(gone)["net1"][1] == {"10.0.0.200": "02:00:00:00:00:c8", "fd00:a::200": virtual}
    assert gone["networks"]["net1"]["neighbours"][0]["lasting"] is False


async def test_neighbour_poll_without_changes_returns_at_its_timeout(scene: Scene):
    digest = (await scene.good())["digest"]
    began, waited = asyncio.get_running_loop().time(), len(scene.waited)
    assert await scene.good(digest=digest, wait=1) == {"digest": digest, "networks": None}
    assert asyncio.get_running_loop().time() - began == pytest.approx(1)
    assert sum(scene.waited[waited:]) == pytest.approx(1), "and metrics do not take it for work"
    assert await scene.good(digest=digest) == {"digest": digest, "networks": None}


async def test_new_port_on_a_node_ends_its_neighbour_poll(scene: Scene):
    await scene.put(lip())
    digest = (await scene.good("node3"))["digest"]
    waiting = asyncio.create_task(scene.good("node3", digest=digest, wait=30))
    await scene.looked()
    scene.ports["node3"] = {"vm1"}
    assert told(await waiting) == {"net1": (["vm1"], {"10.0.0.200": derive_mac("net1")})}


async def test_neighbour_poll_returns_only_networks_of_the_node(scene: Scene):
    await scene.put(lip())
    for chassis in ("node2", "node3"):
        assert (await scene.good(chassis, remembered={"net1": ["10.0.0.200"]}))["networks"] == {}


@pytest.mark.parametrize("how", ["gone", "newer"])
async def test_neighbour_poll_ends_on_disconnect_or_newer_poll_of_the_node(scene: Scene, how: str):
    """A long poll ends when the client disconnects, the server stops, or the same node sends a new request."""

    digest = (await scene.good())["digest"]
    waiting = asyncio.create_task(scene.good(digest=digest, wait=MAX_POLL_SECONDS))
    await scene.looked()
    before = asyncio.get_running_loop().time()
    if how == "gone":
        scene.over.set()
    else:
        assert (await scene.good(digest=digest))["networks"] is None
    assert (await waiting)["networks"] is None
    assert asyncio.get_running_loop().time() - before <= api_neighbours.POLL_INTERVAL


async def test_waiting_neighbour_polls_do_not_block_other_agent_requests(scene: Scene):
    """A waiting long poll does not use its project's turn; a project may have one concurrent request here."""

    digests = {chassis: (await scene.good(chassis))["digest"] for chassis in scene.ports}
    waiting = [
        asyncio.create_task(scene.good(each, digest=digest, wait=MAX_POLL_SECONDS)) for each, digest in digests.items()
    ]
    for _ in waiting:
        await scene.looked()
    answer = await scene.client.put("/chassis/node1", json={"interval": 1, "listeners": {}})
    assert answer.status_code == 200
    assert not any(each.done() for each in waiting)
    scene.over.set()
    await asyncio.gather(*waiting)


def agent(*chassis: str) -> Identity:
    return Identity(user="n", project_id="ops", roles=frozenset({"service"}), chassis=frozenset(chassis))


@pytest.mark.parametrize(
    ("who", "chassis", "status", "words"),
    [
        (agent("node1"), "node1", 200, None),
        (agent("node1"), "node2", 403, "user n represents chassis node1, not node2"),
        (agent("node9"), "node9", 404, "chassis node9 does not exist in OVN"),
        (ADMIN, "node2", 200, None),
        (Identity(user="u", project_id="p", roles=frozenset({"member"})), "node1", 403, "the agents API requires role"),
    ],
)
async def test_agent_polls_neighbours_of_its_own_chassis_only(
    scene: Scene, who: Identity, chassis: str, status: int, words: str | None
):
    scene.caller = who
    answer = await scene.ask(chassis)
    assert answer.status_code == status
    assert words is None or words in answer.json()["error"]


async def test_neighbour_poll_returns_503_while_ovn_is_disconnected(scene: Scene):
    digest = (await scene.good())["digest"]
    waiting = asyncio.create_task(scene.ask(digest=digest, wait=MAX_POLL_SECONDS))
    await scene.looked()
    scene.away = True
    for answer in (await waiting, await scene.ask()):
        assert answer.status_code == 503
        assert answer.json() == {"error": "OVN is unavailable: not connected to the OVN Southbound database"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"remembered": None}, "remembered is missing."),
        ({"remembered": []}, "remembered: Value should be an object."),
        ({"remembered": {"net1": ["x"]}}, "remembered: 'x' is not a valid IP address."),
        ({"remembered": {"net1": ["10.0.0.1"] * 10_001}}, "remembered: Value should have at most 10000 items."),
        ({"wait": -1}, "wait: Value should be greater or equal to 0"),
        ({"wait": MAX_POLL_SECONDS + 1}, "wait: Value should be lower or equal to 60"),
        ({"digest": "x" * 65}, "digest: Value should have a maximum character requirement of 64"),
    ],
)
async def test_invalid_neighbour_poll_is_rejected_with_the_field_name(scene: Scene, body: Any, words: str):
    answer = await scene.ask(**body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


async def test_oversized_neighbour_poll_is_rejected(scene: Scene):
    answer = await scene.ask(remembered={"x" * routes.MAX_REQUEST_BYTES: []})
    assert answer.status_code == 413


async def test_maximum_number_of_neighbours_fits_in_one_request(scene: Scene):
    longest = [f"fd00:aaaa:bbbb:cccc:dddd:eeee:ffff:{number:x}" for number in range(neighbours.MAX_NEIGHBOURS)]
    assert len(json.dumps(longest)) < routes.MAX_REQUEST_BYTES
    assert (await scene.good(remembered={"net1": longest}))["networks"] == {}


async def test_maximum_neighbour_list_is_built_in_short_steps(scene: Scene):
    """The longest list is built in short steps: five networks, each with the maximum number of neighbours."""

    names = [f"big{number}" for number in range(neighbours.MAX_NEIGHBOURS // neighbours.MAX_LOCAL_IPS_PER_NETWORK)]
    made = [
        lip(f"10.{number}.{each // 250}.{each % 250}", name, f"{name}-{each}")
        for number, name in enumerate(names)
        for each in range(neighbours.MAX_LOCAL_IPS_PER_NETWORK)
    ]
    places = [
        *(Network(id=name, mtu=1442, **COMMON) for name in names),
        *(vm(f"vm-{name}", 9, name) for name in names),
    ]
    await write_many(scene.api.model, (*places, *made))
    scene.ports["node1"] = {f"vm-{name}" for name in names}
    answer = await scene.ask()
    told = answer.json()["networks"].values()
    assert sum(len(each["neighbours"]) for each in told) == neighbours.MAX_NEIGHBOURS

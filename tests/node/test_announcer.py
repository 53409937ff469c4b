"""Neighbours received from servers, and the announcements that the switch sends for them."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from fairlead.agent_protocol.messages import render_neighbourhoods
from fairlead.drivers.ovn.vswitch.announcer import Answer, Frame, Ports
from fairlead.drivers.ovn.vswitch.database import SwitchError
from fairlead.http.server_client import ServerError
from fairlead.model.queries.neighbours import Neighbour, Neighbourhood
from fairlead.node import announcer
from fairlead.node.announcer import MOST_AT_ONCE, Announcing
from fairlead.node.packets import announcement
from fairlead.node.server_requests import Servers
from harness.agents import running
from harness.neighbours import OWNERS, VIRTUAL, local_ip, ordinary
from harness.waiting import eventually

pytestmark = pytest.mark.virtual_clock

L = ip_address("10.0.0.200")


@dataclass
class Told:
    """A server with configured responses; without news it delays the response."""

    networks: dict[str, Neighbourhood] = field(default_factory=dict)
    away: bool = False
    asked: list[Any] = field(default_factory=list)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        if self.away:
            raise ServerError("http://there does not answer: refused")
        self.asked.append(body)
        rendered = render_neighbourhoods(self.networks)
        digest = str(hash(str(rendered)))
        return {"digest": digest, "networks": None if digest == body["digest"] else rendered}


@dataclass
class Switched:
    frames: list[tuple[str, list[int]]] = field(default_factory=list)
    """Frame as hexadecimal digits, and its output ports."""
    messages: int = 0
    times: list[float] = field(default_factory=list)
    """Times of the messages."""
    answering: set[Answer] = field(default_factory=set)
    broken: bool = False
    looks: int = 0

    async def ports(self) -> Ports:
        if self.broken:
            raise SwitchError("ovs-vsctl: No such file or directory")
        return {"a": 1, "b": 2, "owner": 3}

    async def send(self, frames: Collection[Frame]) -> None:
        self.messages += 1
        self.times.append(asyncio.get_running_loop().time())
        self.frames += [(frame.octets.hex(), list(frame.ports)) for frame in frames]

    async def answers(self, addresses: Collection[Any]) -> frozenset[Answer]:
        self.looks += 1
        return frozenset(self.answering)


@dataclass
class Scene:
    servers: list[Told]
    switch: Switched
    path: Path
    node: Announcing

    def tell(self, *neighbours: Neighbour, ports: str = "a b owner") -> None:
        networks = {"net1": Neighbourhood(ports=frozenset(ports.split()), neighbours=neighbours)} if neighbours else {}
        for server in self.servers:
            server.networks = networks

    def said(self, mac: str, ports: list[int], address: str = "10.0.0.200") -> tuple[str, list[int]]:
        return announcement(ip_address(address), mac).hex(), ports


async def chassis() -> str:
    return "node one/2"


@asynccontextmanager
async def beginning(path: Path) -> AsyncIterator[Scene]:
    """Run an agent that starts with this file."""
    servers, switch = [Told(), Told()], Switched(answering={(L, VIRTUAL)})
    node = Announcing(path, chassis, Servers(servers), switch)  # type: ignore[arg-type]
    async with running(node.run):
        yield Scene(servers, switch, path, node)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with beginning(tmp_path / "said.json") as scene:
        yield scene


async def test_a_local_ip_is_said_when_it_comes_and_the_ports_own_when_it_goes(scene: Scene):
    scene.tell(local_ip(unheard=("owner",)))
    await eventually(lambda: scene.switch.frames)
    assert scene.switch.frames == [scene.said(VIRTUAL, [1, 2])]
    await eventually(lambda: scene.servers[0].asked[-1]["remembered"] == {"net1": ["10.0.0.200"]})
    scene.tell(ordinary(unheard=("owner",)))
    await eventually(lambda: len(scene.switch.frames) == 2)
    scene.switch.answering.clear()
    await eventually(lambda: len(scene.switch.frames) == 3)
    assert scene.switch.frames[1:] == [scene.said(OWNERS, [1, 2])] * 2
    scene.tell()
    await eventually(lambda: "net1" not in scene.path.read_text())
    assert len(scene.switch.frames) == 3
    assert scene.servers[1].asked == []


async def test_nothing_is_said_of_a_local_ip_before_ovn_answers_for_it(scene: Scene):
    scene.switch.answering = {(L, OWNERS)}
    scene.tell(local_ip(), ordinary("10.0.0.9"))
    await eventually(lambda: scene.switch.looks > 2)
    assert scene.switch.frames == [scene.said(OWNERS, [1, 2, 3], "10.0.0.9")]
    scene.switch.answering = {(L, VIRTUAL)}
    await eventually(lambda: len(scene.switch.frames) == 2)
    assert scene.switch.frames[1] == scene.said(VIRTUAL, [1, 2, 3])


async def test_what_cannot_be_said_or_heard_is_said_later(tmp_path: Path, caplog):
    caplog.set_level(logging.INFO)
    async with beginning(tmp_path / "said.json") as scene:
        scene.servers[0].away = scene.servers[1].away = scene.switch.broken = True
        scene.tell(local_ip())
        await eventually(lambda: "refused" in caplog.text)
        scene.servers[1].away = False
        await eventually(lambda: "No such file" in caplog.text)
        scene.switch.broken = False
        await eventually(lambda: scene.switch.frames)
        asked = len(scene.servers[1].asked)
        scene.servers[0].away = False
        await eventually(lambda: len(scene.servers[1].asked) > asked + 2)
        assert scene.servers[0].asked == [], "who has answered last is asked first"
        assert scene.switch.frames == [scene.said(VIRTUAL, [1, 2, 3])]
        assert {record.message for record in caplog.records if "again" in record.message} == {
            "http://there does not answer: refused; trying again every 2 s",
            "hearing of neighbours again",
            "ovs-vsctl: No such file or directory; trying again every 2 s",
            "announcing neighbours again",
        }


async def test_an_answer_that_cannot_be_read_is_no_answer(scene: Scene, caplog):
    scene.servers[0].ask = lambda *_: {"networks": {}}  # type: ignore[method-assign]
    await eventually(lambda: "a server's answer cannot be read: digest is missing." in caplog.text)


async def test_many_are_said_in_several_messages(scene: Scene):
    many = [f"10.0.{number // 250}.{number % 250}" for number in range(2 * MOST_AT_ONCE + 1)]
    scene.switch.answering = {(ip_address(each), VIRTUAL) for each in many}
    scene.tell(*map(local_ip, many), ports="a")
    await eventually(lambda: len(scene.switch.frames) == len(many))
    assert (scene.switch.messages, scene.switch.looks) == (3, 1)


async def test_frames_have_a_most_in_a_second(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(announcer, "MOST_FRAMES", 10)
    monkeypatch.setattr(announcer, "MOST_AT_ONCE", 1)

    scene.switch.answering = {(ip_address(f"10.0.0.{number}"), VIRTUAL) for number in range(3)}
    scene.tell(*(local_ip(f"10.0.0.{number}") for number in range(3)), ports="a b")
    await eventually(lambda: len(scene.switch.frames) == 3)
    first = scene.switch.times[0]
    assert [each - first for each in scene.switch.times] == pytest.approx([0.0, 0.2, 0.4])


async def test_what_many_machines_hear_is_said_in_several_messages(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(announcer, "MOST_FRAMES", 5)

    many = [f"10.0.0.{number}" for number in range(4)]
    scene.switch.answering = {(ip_address(each), VIRTUAL) for each in many}
    scene.tell(*map(local_ip, many), ports="a b")
    await eventually(lambda: len(scene.switch.frames) == 2)
    assert scene.switch.messages == 1


async def test_who_has_news_all_the_time_keeps_nobody_unsaid(scene: Scene):
    """Updates arrive faster than OVN can be asked which addresses it answers."""

    async def answers(addresses: Collection[Any]) -> frozenset[Answer]:
        heard = len(scene.servers[0].asked)
        scene.tell(local_ip(), local_ip(f"10.0.0.{len(scene.servers[0].asked) % 100}"))
        await eventually(lambda: len(scene.servers[0].asked) > heard + 1)
        return frozenset({(L, VIRTUAL)})

    scene.switch.answers = answers  # type: ignore[method-assign]
    scene.tell(local_ip())
    await eventually(lambda: scene.switch.frames)
    assert scene.switch.frames[0] == scene.said(VIRTUAL, [1, 2, 3])


async def test_what_was_said_outlives_the_agent(tmp_path: Path):
    """The Local IP is removed while no agent runs."""

    async with beginning(tmp_path / "said.json") as scene:
        scene.tell(local_ip())
        await eventually(lambda: "10.0.0.200" in scene.path.read_text() if scene.path.exists() else False)

    async with beginning(tmp_path / "said.json") as scene:
        scene.tell(ordinary())
        await eventually(lambda: scene.switch.frames)
        assert scene.servers[0].asked[0]["remembered"] == {"net1": ["10.0.0.200"]}
        assert scene.switch.frames[0] == scene.said(OWNERS, [1, 2, 3])


async def test_what_is_said_is_written_down_before(scene: Scene):
    """An agent that is killed may have announced the address, so its file must have it before."""

    async def send(frames: Collection[Frame]) -> None:
        assert json.loads(scene.path.read_text()) == {"said": {"net1": {"10.0.0.200": VIRTUAL}}}
        await Switched.send(scene.switch, frames)

    scene.switch.send = send  # type: ignore[method-assign]
    scene.tell(local_ip())
    await eventually(lambda: scene.switch.frames)


@pytest.mark.parametrize("text", ["", "{", '{"said": []}', '{"said": {"net1": {"x": "y"}}}'])
async def test_a_file_that_cannot_be_read_is_said(tmp_path: Path, caplog, text: str):
    (tmp_path / "said.json").write_text(text)
    async with beginning(tmp_path / "said.json") as scene:
        await eventually(lambda: scene.servers[0].asked)
        assert scene.servers[0].asked[0]["remembered"] == {}
        assert "what was said of neighbours is forgotten" in caplog.text

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
from fairlead.model.queries.neighbours import Neighbour, NetworkAnnouncements
from fairlead.node import announcer
from fairlead.node.announcer import MAX_ANNOUNCEMENTS_PER_MESSAGE, NeighbourAnnouncer
from fairlead.node.packets import announcement
from fairlead.node.server_requests import Servers
from harness.agents import running
from harness.neighbours import OWNER_MAC, VIRTUAL_MAC, local_ip, ordinary
from harness.waiting import eventually

pytestmark = pytest.mark.virtual_clock

L = ip_address("10.0.0.200")


@dataclass
class ScriptedServer:
    """A server with configured responses; without news it delays the response."""

    networks: dict[str, NetworkAnnouncements] = field(default_factory=dict)
    away: bool = False
    asked: list[Any] = field(default_factory=list)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        if self.away:
            raise ServerError("http://there does not answer: refused")
        self.asked.append(body)
        rendered = render_neighbourhoods(self.networks)
        digest = str(hash(str(rendered)))
        return {"digest": digest, "networks": None if digest == body["digest"] else rendered}


@dataclass
class FrameRecorder:
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

    async def read_answers(self, addresses: Collection[Any]) -> frozenset[Answer]:
        self.looks += 1
        return frozenset(self.answering)


@dataclass
class Scene:
    servers: list[ScriptedServer]
    switch: FrameRecorder
    path: Path
    node: NeighbourAnnouncer

    def tell(self, *neighbours: Neighbour, ports: str = "a b owner") -> None:
        networks = (
            {"net1": NetworkAnnouncements(ports=frozenset(ports.split()), neighbours=neighbours)} if neighbours else {}
        )
        for server in self.servers:
            server.networks = networks

    def said(self, mac: str, ports: list[int], address: str = "10.0.0.200") -> tuple[str, list[int]]:
        return announcement(ip_address(address), mac).hex(), ports


async def chassis() -> str:
    return "node one/2"


@asynccontextmanager
async def beginning(path: Path) -> AsyncIterator[Scene]:
    """Run an agent that starts with this file."""
    servers, switch = [ScriptedServer(), ScriptedServer()], FrameRecorder(answering={(L, VIRTUAL_MAC)})
    node = NeighbourAnnouncer(path, chassis, Servers(servers), switch)  # type: ignore[arg-type]
    async with running(node.run):
        yield Scene(servers, switch, path, node)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with beginning(tmp_path / "said.json") as scene:
        yield scene


async def test_created_and_deleted_local_ips_are_announced_with_the_right_mac(scene: Scene):
    scene.tell(local_ip(unheard=("owner",)))
    await eventually(lambda: scene.switch.frames)
    assert scene.switch.frames == [scene.said(VIRTUAL_MAC, [1, 2])]
    await eventually(lambda: scene.servers[0].asked[-1]["remembered"] == {"net1": ["10.0.0.200"]})
    scene.tell(ordinary(unheard=("owner",)))
    await eventually(lambda: len(scene.switch.frames) == 2)
    scene.switch.answering.clear()
    await eventually(lambda: len(scene.switch.frames) == 3)
    assert scene.switch.frames[1:] == [scene.said(OWNER_MAC, [1, 2])] * 2
    scene.tell()
    await eventually(lambda: "net1" not in scene.path.read_text())
    assert len(scene.switch.frames) == 3
    assert scene.servers[1].asked == []


async def test_local_ip_is_not_announced_before_ovn_answers_for_the_address(scene: Scene):
    scene.switch.answering = {(L, OWNER_MAC)}
    scene.tell(local_ip(), ordinary("10.0.0.9"))
    await eventually(lambda: scene.switch.looks > 2)
    assert scene.switch.frames == [scene.said(OWNER_MAC, [1, 2, 3], "10.0.0.9")]
    scene.switch.answering = {(L, VIRTUAL_MAC)}
    await eventually(lambda: len(scene.switch.frames) == 2)
    assert scene.switch.frames[1] == scene.said(VIRTUAL_MAC, [1, 2, 3])


async def test_announcements_are_retried_after_server_and_switch_failures(tmp_path: Path, caplog):
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
        assert scene.switch.frames == [scene.said(VIRTUAL_MAC, [1, 2, 3])]
        assert {record.message for record in caplog.records if record.name == "fairlead.node.log_once"} == {
            "http://there does not answer: refused; retrying every 2 s",
            "recovered: receiving neighbour announcements",
            "ovs-vsctl: No such file or directory; retrying every 2 s",
            "recovered: announcing neighbours",
        }


async def test_invalid_server_response_is_logged(scene: Scene, caplog):
    scene.servers[0].request = lambda *_: {"networks": {}}  # type: ignore[method-assign]
    await eventually(lambda: "invalid response of a server: digest is missing." in caplog.text)


async def test_many_announcements_are_split_into_several_messages(scene: Scene):
    many = [f"10.0.{number // 250}.{number % 250}" for number in range(2 * MAX_ANNOUNCEMENTS_PER_MESSAGE + 1)]
    scene.switch.answering = {(ip_address(each), VIRTUAL_MAC) for each in many}
    scene.tell(*map(local_ip, many), ports="a")
    await eventually(lambda: len(scene.switch.frames) == len(many))
    assert (scene.switch.messages, scene.switch.looks) == (3, 1)


async def test_frames_per_second_are_limited(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(announcer, "MAX_FRAMES_PER_SECOND", 10)
    monkeypatch.setattr(announcer, "MAX_ANNOUNCEMENTS_PER_MESSAGE", 1)

    scene.switch.answering = {(ip_address(f"10.0.0.{number}"), VIRTUAL_MAC) for number in range(3)}
    scene.tell(*(local_ip(f"10.0.0.{number}") for number in range(3)), ports="a b")
    await eventually(lambda: len(scene.switch.frames) == 3)
    first = scene.switch.times[0]
    assert [each - first for each in scene.switch.times] == pytest.approx([0.0, 0.2, 0.4])


async def test_announcements_to_several_ports_are_split_by_the_frame_limit(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(announcer, "MAX_FRAMES_PER_SECOND", 5)

    many = [f"10.0.0.{number}" for number in range(4)]
    scene.switch.answering = {(ip_address(each), VIRTUAL_MAC) for each in many}
    scene.tell(*map(local_ip, many), ports="a b")
    await eventually(lambda: len(scene.switch.frames) == 2)
    assert scene.switch.messages == 1


async def test_continuous_updates_do_not_starve_announcements(scene: Scene):
    """Updates arrive faster than OVN can be asked which addresses it answers."""

    async def answers(addresses: Collection[Any]) -> frozenset[Answer]:
        heard = len(scene.servers[0].asked)
        scene.tell(local_ip(), local_ip(f"10.0.0.{len(scene.servers[0].asked) % 100}"))
        await eventually(lambda: len(scene.servers[0].asked) > heard + 1)
        return frozenset({(L, VIRTUAL_MAC)})

    scene.switch.read_answers = answers  # type: ignore[method-assign]
    scene.tell(local_ip())
    await eventually(lambda: scene.switch.frames)
    assert scene.switch.frames[0] == scene.said(VIRTUAL_MAC, [1, 2, 3])


async def test_announced_addresses_survive_an_agent_restart(tmp_path: Path):
    """The Local IP is removed while no agent runs."""

    async with beginning(tmp_path / "said.json") as scene:
        scene.tell(local_ip())
        await eventually(lambda: "10.0.0.200" in scene.path.read_text() if scene.path.exists() else False)

    async with beginning(tmp_path / "said.json") as scene:
        scene.tell(ordinary())
        await eventually(lambda: scene.switch.frames)
        assert scene.servers[0].asked[0]["remembered"] == {"net1": ["10.0.0.200"]}
        assert scene.switch.frames[0] == scene.said(OWNER_MAC, [1, 2, 3])


async def test_addresses_are_stored_before_the_announcement(scene: Scene):
    """An agent that is killed may have announced the address, so its file must have it before."""

    async def send(frames: Collection[Frame]) -> None:
        assert json.loads(scene.path.read_text()) == {"said": {"net1": {"10.0.0.200": VIRTUAL_MAC}}}
        await FrameRecorder.send(scene.switch, frames)

    scene.switch.send = send  # type: ignore[method-assign]
    scene.tell(local_ip())
    await eventually(lambda: scene.switch.frames)


@pytest.mark.parametrize("text", ["", "{", '{"said": []}', '{"said": {"net1": {"x": "y"}}}'])
async def test_unreadable_state_file_is_logged_and_ignored(tmp_path: Path, caplog, text: str):
    (tmp_path / "said.json").write_text(text)
    async with beginning(tmp_path / "said.json") as scene:
        await eventually(lambda: scene.servers[0].asked)
        assert scene.servers[0].asked[0]["remembered"] == {}
        assert "discarding the log of neighbour announcements" in caplog.text

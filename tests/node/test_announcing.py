"""What is heard of servers, and what the switch is told then."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from fairlead.api.agent_messages import render_neighbourhoods
from fairlead.client import ServerError
from fairlead.drivers.ovn.announcer import Answer, Frame, Ports
from fairlead.drivers.ovn.vswitch import SwitchError
from fairlead.model.neighbours import Neighbour, Neighbourhood
from fairlead.node import announcing
from fairlead.node.announcing import MOST_AT_ONCE, Announcing
from fairlead.node.packets import announcement
from fairlead.node.protocol import Servers
from node.test_neighbours import OWNERS, VIRTUAL, local_ip, ordinary

L = ip_address("10.0.0.200")


@dataclass
class Told:
    """A server that answers what it is told to, and waits for a moment when there is no news."""

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
    """Octets in hex, and the ports."""
    messages: int = 0
    answering: set[Answer] = field(default_factory=set)
    broken: bool = False
    looks: int = 0

    async def ports(self) -> Ports:
        if self.broken:
            raise SwitchError("ovs-vsctl: No such file or directory")
        return {"a": 1, "b": 2, "owner": 3}

    async def send(self, frames: Collection[Frame]) -> None:
        self.messages += 1
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

    async def until(self, what: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not what():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)

    def tell(self, *neighbours: Neighbour, ports: str = "a b owner") -> None:
        networks = {"net1": Neighbourhood(ports=frozenset(ports.split()), neighbours=neighbours)} if neighbours else {}
        for server in self.servers:
            server.networks = networks

    def said(self, mac: str, ports: list[int], address: str = "10.0.0.200") -> tuple[str, list[int]]:
        return announcement(ip_address(address), mac).hex(), ports


Story: TypeAlias = Callable[[Scene], Awaitable[None]]


async def chassis() -> str:
    return "node one/2"


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Story], None]:
    monkeypatch.setattr(announcing, "AGAIN", 0.05)
    monkeypatch.setattr(announcing, "QUESTION_PAUSE", 0.01)

    async def run(story: Story) -> None:
        servers, switch, path = [Told(), Told()], Switched(answering={(L, VIRTUAL)}), tmp_path / "said.json"
        node = Announcing(path, chassis, Servers(servers), switch)  # type: ignore[arg-type]
        running = asyncio.create_task(node.run())
        try:
            await story(Scene(servers, switch, path, node))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    return lambda story: asyncio.run(run(story))


def test_a_local_ip_is_said_when_it_comes_and_the_ports_own_when_it_goes(play):
    async def story(scene: Scene) -> None:
        scene.tell(local_ip(unheard=("owner",)))
        await scene.until(lambda: scene.switch.frames)
        assert scene.switch.frames == [scene.said(VIRTUAL, [1, 2])]
        await scene.until(lambda: scene.servers[0].asked[-1]["remembered"] == {"net1": ["10.0.0.200"]})
        scene.tell(ordinary(unheard=("owner",)))
        await scene.until(lambda: len(scene.switch.frames) == 2)
        scene.switch.answering.clear()
        await scene.until(lambda: len(scene.switch.frames) == 3)
        assert scene.switch.frames[1:] == [scene.said(OWNERS, [1, 2])] * 2
        scene.tell()
        await scene.until(lambda: "net1" not in scene.path.read_text())
        assert len(scene.switch.frames) == 3
        assert scene.servers[1].asked == []

    play(story)


def test_nothing_is_said_of_a_local_ip_before_ovn_answers_for_it(play):
    async def story(scene: Scene) -> None:
        scene.switch.answering = {(L, OWNERS)}
        scene.tell(local_ip(), ordinary("10.0.0.9"))
        await scene.until(lambda: scene.switch.looks > 2)
        assert scene.switch.frames == [scene.said(OWNERS, [1, 2, 3], "10.0.0.9")]
        scene.switch.answering = {(L, VIRTUAL)}
        await scene.until(lambda: len(scene.switch.frames) == 2)
        assert scene.switch.frames[1] == scene.said(VIRTUAL, [1, 2, 3])

    play(story)


def test_what_cannot_be_said_or_heard_is_said_later(play, caplog):
    caplog.set_level(logging.INFO)

    async def story(scene: Scene) -> None:
        scene.servers[0].away = scene.servers[1].away = scene.switch.broken = True
        scene.tell(local_ip())
        await scene.until(lambda: "refused" in caplog.text)
        scene.servers[1].away = False
        await scene.until(lambda: "No such file" in caplog.text)
        scene.switch.broken = False
        await scene.until(lambda: scene.switch.frames)
        asked = len(scene.servers[1].asked)
        scene.servers[0].away = False
        await scene.until(lambda: len(scene.servers[1].asked) > asked + 2)
        assert scene.servers[0].asked == [], "who has answered last is asked first"
        assert scene.switch.frames == [scene.said(VIRTUAL, [1, 2, 3])]
        assert {record.message for record in caplog.records if "again" in record.message} == {
            "http://there does not answer: refused; trying again every 0.05 s",
            "hearing of neighbours again",
            "ovs-vsctl: No such file or directory; trying again every 0.05 s",
            "announcing neighbours again",
        }

    play(story)


def test_an_answer_that_cannot_be_read_is_no_answer(play, caplog):
    async def story(scene: Scene) -> None:
        scene.servers[0].ask = lambda *_: {"networks": {}}  # type: ignore[method-assign]
        await scene.until(lambda: "a server's answer cannot be read: digest is missing." in caplog.text)

    play(story)


def test_many_are_said_in_several_messages(play):
    async def story(scene: Scene) -> None:
        many = [f"10.0.{number // 250}.{number % 250}" for number in range(2 * MOST_AT_ONCE + 1)]
        scene.switch.answering = {(ip_address(each), VIRTUAL) for each in many}
        scene.tell(*map(local_ip, many), ports="a")
        await scene.until(lambda: len(scene.switch.frames) == len(many))
        assert (scene.switch.messages, scene.switch.looks) == (3, 1)

    play(story)


def test_frames_have_a_most_in_a_second(play, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(announcing, "MOST_FRAMES", 10)
    monkeypatch.setattr(announcing, "MOST_AT_ONCE", 1)

    async def story(scene: Scene) -> None:
        loop = asyncio.get_running_loop()
        scene.switch.answering = {(ip_address(f"10.0.0.{number}"), VIRTUAL) for number in range(3)}
        began = loop.time()
        scene.tell(*(local_ip(f"10.0.0.{number}") for number in range(3)), ports="a b")
        await scene.until(lambda: len(scene.switch.frames) == 3)
        assert loop.time() - began >= 0.4

    play(story)


def test_what_many_machines_hear_is_said_in_several_messages(play, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(announcing, "MOST_FRAMES", 5)

    async def story(scene: Scene) -> None:
        many = [f"10.0.0.{number}" for number in range(4)]
        scene.switch.answering = {(ip_address(each), VIRTUAL) for each in many}
        scene.tell(*map(local_ip, many), ports="a b")
        await scene.until(lambda: len(scene.switch.frames) == 2)
        assert scene.switch.messages == 1

    play(story)


def test_who_has_news_all_the_time_keeps_nobody_unsaid(play):
    """They come faster than OVN can be asked what it answers."""

    async def story(scene: Scene) -> None:
        async def answers(addresses: Collection[Any]) -> frozenset[Answer]:
            heard = len(scene.servers[0].asked)
            scene.tell(local_ip(), local_ip(f"10.0.0.{len(scene.servers[0].asked) % 100}"))
            await scene.until(lambda: len(scene.servers[0].asked) > heard + 1)
            return frozenset({(L, VIRTUAL)})

        scene.switch.answers = answers  # type: ignore[method-assign]
        scene.tell(local_ip())
        await scene.until(lambda: scene.switch.frames)
        assert scene.switch.frames[0] == scene.said(VIRTUAL, [1, 2, 3])

    play(story)


def test_what_was_said_outlives_the_agent(play, tmp_path: Path):
    """It went while no agent was there."""

    async def first(scene: Scene) -> None:
        scene.tell(local_ip())
        await scene.until(lambda: "10.0.0.200" in scene.path.read_text() if scene.path.exists() else False)

    async def second(scene: Scene) -> None:
        scene.tell(ordinary())
        await scene.until(lambda: scene.switch.frames)
        assert scene.servers[0].asked[0]["remembered"] == {"net1": ["10.0.0.200"]}
        assert scene.switch.frames[0] == scene.said(OWNERS, [1, 2, 3])

    play(first)
    play(second)


def test_what_is_said_is_written_down_before(play):
    """An agent that ends in the middle may have said it, and has to know that."""

    async def story(scene: Scene) -> None:
        async def send(frames: Collection[Frame]) -> None:
            assert json.loads(scene.path.read_text()) == {"said": {"net1": {"10.0.0.200": VIRTUAL}}}
            await Switched.send(scene.switch, frames)

        scene.switch.send = send  # type: ignore[method-assign]
        scene.tell(local_ip())
        await scene.until(lambda: scene.switch.frames)

    play(story)


@pytest.mark.parametrize("text", ["", "{", '{"said": []}', '{"said": {"net1": {"x": "y"}}}'])
def test_a_file_that_cannot_be_read_is_said(play, tmp_path: Path, caplog, text: str):
    (tmp_path / "said.json").write_text(text)

    async def story(scene: Scene) -> None:
        await scene.until(lambda: scene.servers[0].asked)
        assert scene.servers[0].asked[0]["remembered"] == {}
        assert "what was said of neighbours is forgotten" in caplog.text

    play(story)

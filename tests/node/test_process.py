"""Requests and reports of an agent, one poll at a time."""

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.config.options import AgentOptions
from fairlead.http.server_client import ServerError
from fairlead.model.queries.counter_samples import Readings
from fairlead.model.queries.statistics import Datapath
from fairlead.node.process import Agent
from fairlead.node.server_requests import Servers
from harness.counting import WEB, counted


@dataclass
class Recorded:
    """A server with configured responses that records its requests."""

    known: bool = True
    away: bool = False
    asked: list[tuple[str, Any]] = field(default_factory=list)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        if self.away:
            raise ServerError("http://there does not answer: refused")
        self.asked.append((path, body))
        if path == "/agent/sightings":
            return {"listeners": ["web" for _ in body["sightings"]]}
        return {"unknown": [] if self.known else list(body["listeners"])}


@dataclass
class Switched:
    readings: list[Readings]

    async def read(self) -> Readings:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


async def chassis() -> str:
    return "node one/2"


def agent_of(folder: Path, servers: list[Recorded], *readings: Readings) -> Agent:
    options = AgentOptions(state_file=str(folder / "agent.json"))
    return Agent(options, Servers(servers), Switched(list(readings)), chassis, "boot")  # type: ignore[arg-type]


TOLD = {
    "interval": 10,
    "listeners": {"web": {"connections": 5, "errors": 0, "bytes_in": 0, "bytes_out": 0, "active": 0}},
}


async def test_a_look_asks_whose_it_is_and_tells_all_servers(tmp_path: Path):
    servers = [Recorded(), Recorded()]
    await agent_of(tmp_path, servers, {WEB: counted(5)}).step()
    seen = [{"place": "datapath:1", "transport": "tcp", "address": "10.0.0.10", "port": 80}]
    asked = {"chassis": "node one/2", "sightings": seen}
    assert servers[0].asked == [("/agent/sightings", asked), ("/agent/chassis/node%20one%2F2", TOLD)]
    assert servers[1].asked == [("/agent/chassis/node%20one%2F2", TOLD)]


async def test_many_are_asked_about_in_turns(tmp_path: Path):
    server = Recorded()
    many = [replace(WEB, place=Datapath(key)) for key in range(2500)]
    await agent_of(tmp_path, [server], dict.fromkeys(many, counted(2))).step()
    assert [len(body["sightings"]) for path, body in server.asked if path == "/agent/sightings"] == [1000, 1000, 500]
    assert server.asked[-1][1]["listeners"]["web"]["connections"] == 5000


async def test_nothing_is_lost_while_no_server_answers(tmp_path: Path):
    server = Recorded(away=True)
    agent = agent_of(tmp_path, [server], {WEB: counted(2)}, {WEB: counted(5)})
    with pytest.raises(ServerError):
        await agent.step()
    server.away = False
    await agent.step()
    assert server.asked[-1][1] == TOLD


async def test_one_server_of_two_is_enough(tmp_path: Path):
    servers = [Recorded(away=True), Recorded()]
    with pytest.raises(ServerError):
        await agent_of(tmp_path, servers, {WEB: counted(5)}).step()
    assert servers[1].asked[-1][1] == TOLD


async def test_a_listener_that_no_server_knows_is_forgotten(tmp_path: Path):
    knows, does_not = Recorded(), Recorded(known=False)
    agent = agent_of(tmp_path, [does_not, knows], {WEB: counted(5)})
    await agent.step()
    await agent.step()
    assert does_not.asked[-1][1] == TOLD
    knows.known = False
    await agent.step()
    await agent.step()
    assert does_not.asked[-1][1]["listeners"] == {}


async def test_a_complaint_is_said_once_and_its_end_too(tmp_path: Path, caplog):
    caplog.set_level(logging.INFO)
    server = Recorded(away=True)
    agent = agent_of(tmp_path, [server], {WEB: counted(5)})
    for away in (True, True, False, False):
        server.away = away
        await agent.look()
    assert [record.message for record in caplog.records] == [
        "http://there does not answer: refused; trying again every 10 s",
        "counting and telling again",
    ]

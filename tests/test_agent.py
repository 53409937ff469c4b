"""What an agent adds up, keeps and tells."""

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fairlead.agent import Agent, Tally, read_state, write_state
from fairlead.client import ServerError
from fairlead.config import AgentOptions
from fairlead.drivers.ovn_counters import Count, Reading, Readings
from fairlead.model.addresses import parse_address
from fairlead.model.loadbalancer import Transport
from fairlead.model.statistics import Figures, Sighting

WEB = Sighting(place="datapath:1", transport=Transport.TCP, address=parse_address("10.0.0.10"), port=80)
DNS = Sighting(place="zone:vm1", transport=Transport.UDP, address=parse_address("fd00::10"), port=53)


def counted(value: int, *, cookie: int = 1, created: float = 0.0, active: int = 0) -> Reading:
    return Reading(counts={"connections": Count(value=value, cookie=cookie, created=created)}, active=active)


def take(tally: Tally, *readings: Readings, listener: str | None = "web") -> Figures | None:
    for each in readings:
        tally.take(each, dict.fromkeys(tally.grown(each), listener))
    return tally.sums.get("web")


@pytest.mark.parametrize(
    ("readings", "sum_"),
    [
        ([counted(5), counted(5), counted(8)], 8),
        ([counted(5), counted(3, cookie=2), counted(4, cookie=2)], 9),
        ([counted(5), counted(7, cookie=2)], 12),
        ([counted(5), counted(7, created=9.0)], 12),
        ([counted(5), counted(7, created=0.2)], 7),
        ([counted(5), counted(2)], 7),
        ([counted(0), counted(0, cookie=2)], None),
    ],
    ids=["grows", "made anew", "made anew and larger", "same rule, later", "looked at slowly", "shrinks", "nothing"],
)
def test_what_a_flow_counts_is_added_once(readings: list[Reading], sum_: int | None):
    found = take(Tally(), *({WEB: reading} for reading in readings))
    assert found == (None if sum_ is None else Figures(connections=sum_))


def test_a_flow_that_goes_and_comes_back_counts_from_nothing():
    assert take(Tally(), {WEB: counted(5)}, {}, {WEB: counted(5)}) == Figures(connections=10)


def test_what_is_nobodys_is_dropped():
    tally = Tally()
    take(tally, {WEB: counted(5)}, listener=None)
    assert take(tally, {WEB: counted(6)}) == Figures(connections=1)


def test_open_connections_are_those_of_the_last_look():
    tally = Tally()
    assert take(tally, {WEB: counted(2, active=2), DNS: Reading(active=3)}) == Figures(connections=2, active=5)
    assert take(tally, {WEB: counted(2, active=1)}) == Figures(connections=2, active=1)
    assert take(tally, {WEB: counted(2)}) == Figures(connections=2)


def test_only_what_has_grown_or_is_open_is_asked_about():
    tally = Tally()
    take(tally, {WEB: counted(5)})
    assert tally.grown({WEB: counted(5), DNS: counted(0)}) == []
    assert tally.grown({WEB: counted(6), DNS: Reading(active=1)}) == [WEB, DNS]


def test_sums_outlive_the_agent_and_a_boot_begins_anew(tmp_path: Path):
    path, tally = tmp_path / "new" / "agent.json", Tally()
    take(tally, {WEB: counted(5, cookie=9, created=2.5), DNS: Reading(active=1)})
    write_state(path, "boot1", tally)
    assert read_state(path, "boot1") == tally
    assert take(read_state(path, "boot1"), {WEB: counted(6, cookie=9, created=2.5)}) == Figures(connections=6)
    assert take(read_state(path, "boot2"), {WEB: counted(6, cookie=9, created=2.5)}) == Figures(connections=11)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot": 1}', '{"boot":"b","last":[],"sums":{"x":{"nothing":1}}}'])
def test_a_file_that_cannot_be_read_is_said_and_counting_begins_anew(tmp_path: Path, caplog, text: str):
    (tmp_path / "agent.json").write_text(text)
    assert read_state(tmp_path / "agent.json", "b") == Tally()
    assert "counting begins anew" in caplog.text


@dataclass
class Recorded:
    """A server that answers as it is told, and remembers what it was asked."""

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

    async def chassis(self) -> str:
        return "node one/2"

    async def read(self) -> Readings:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


def agent_of(folder: Path, servers: list[Recorded], *readings: Readings) -> Agent:
    options = AgentOptions(state=str(folder / "agent.json"))
    return Agent(options, servers, Switched(list(readings)), "boot")  # type: ignore[arg-type]


TOLD = {"interval": 10, "listeners": {"web": {"connections": 5, "errors": 0, "bytes_in": 0, "active": 0}}}


def test_a_look_asks_whose_it_is_and_tells_all_servers(tmp_path: Path):
    servers = [Recorded(), Recorded()]
    asyncio.run(agent_of(tmp_path, servers, {WEB: counted(5)}).step())
    seen = [{"place": "datapath:1", "transport": "tcp", "address": "10.0.0.10", "port": 80}]
    asked = {"chassis": "node one/2", "sightings": seen}
    assert servers[0].asked == [("/agent/sightings", asked), ("/agent/chassis/node%20one%2F2", TOLD)]
    assert servers[1].asked == [("/agent/chassis/node%20one%2F2", TOLD)]


def test_many_are_asked_about_in_turns(tmp_path: Path):
    server = Recorded()
    many = [Sighting(place=f"datapath:{i}", transport=WEB.transport, address=WEB.address, port=80) for i in range(2500)]
    asyncio.run(agent_of(tmp_path, [server], dict.fromkeys(many, counted(2))).step())
    assert [len(body["sightings"]) for path, body in server.asked if path == "/agent/sightings"] == [1000, 1000, 500]
    assert server.asked[-1][1]["listeners"]["web"]["connections"] == 5000


def test_nothing_is_lost_while_no_server_answers(tmp_path: Path):
    server = Recorded(away=True)
    agent = agent_of(tmp_path, [server], {WEB: counted(2)}, {WEB: counted(5)})
    with pytest.raises(ServerError):
        asyncio.run(agent.step())
    server.away = False
    asyncio.run(agent.step())
    assert server.asked[-1][1] == TOLD


def test_one_server_of_two_is_enough(tmp_path: Path):
    servers = [Recorded(away=True), Recorded()]
    with pytest.raises(ServerError):
        asyncio.run(agent_of(tmp_path, servers, {WEB: counted(5)}).step())
    assert servers[1].asked[-1][1] == TOLD


def test_a_listener_that_no_server_knows_is_forgotten(tmp_path: Path):
    knows, does_not = Recorded(), Recorded(known=False)
    agent = agent_of(tmp_path, [does_not, knows], {WEB: counted(5)})
    asyncio.run(agent.step())
    asyncio.run(agent.step())
    assert does_not.asked[-1][1] == TOLD
    knows.known = False
    asyncio.run(agent.step())
    asyncio.run(agent.step())
    assert does_not.asked[-1][1]["listeners"] == {}


def test_a_complaint_is_said_once_and_its_end_too(tmp_path: Path, caplog):
    caplog.set_level(logging.INFO)
    server = Recorded(away=True)
    agent = agent_of(tmp_path, [server], {WEB: counted(5)})
    for away in (True, True, False, False):
        server.away = away
        asyncio.run(agent.look())
    assert [record.message for record in caplog.records] == [
        "http://there does not answer: refused; trying again every 10 s",
        "counting and telling again",
    ]

"""Requests and reports of an agent, one poll at a time."""

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.config.options import AgentOptions
from fairlead.http.server_client import ServerError
from fairlead.model.queries.counter_samples import CounterSamples
from fairlead.model.queries.statistics import Datapath
from fairlead.node.process import CounterReporter
from fairlead.node.server_requests import Servers
from harness.counter_samples import WEB, counted_sample


@dataclass
class Recorded:
    """A server with configured responses that records its requests."""

    known: bool = True
    away: bool = False
    asked: list[tuple[str, Any]] = field(default_factory=list)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        if self.away:
            raise ServerError("http://there does not answer: refused")
        self.asked.append((path, body))
        if path == "/agent/sightings":
            return {"listeners": ["web" for _ in body["sightings"]]}
        return {"unknown": [] if self.known else list(body["listeners"])}


@dataclass
class Switched:
    readings: list[CounterSamples]

    async def read(self) -> CounterSamples:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


async def chassis() -> str:
    return "node one/2"


def agent_of(folder: Path, servers: list[Recorded], *readings: CounterSamples) -> CounterReporter:
    options = AgentOptions(state_file=str(folder / "agent.json"))
    return CounterReporter(options, Servers(servers), Switched(list(readings)), chassis, "boot")  # type: ignore[arg-type]


REPORTED = {
    "interval": 10,
    "listeners": {"web": {"connections": 5, "errors": 0, "bytes_in": 0, "bytes_out": 0, "active": 0}},
}


async def test_step_looks_up_listeners_at_one_server_and_reports_to_all(tmp_path: Path):
    servers = [Recorded(), Recorded()]
    await agent_of(tmp_path, servers, {WEB: counted_sample(5)}).collect()
    seen = [{"place": "datapath:1", "transport": "tcp", "address": "10.0.0.10", "port": 80}]
    asked = {"chassis": "node one/2", "sightings": seen}
    assert servers[0].asked == [("/agent/sightings", asked), ("/agent/chassis/node%20one%2F2", REPORTED)]
    assert servers[1].asked == [("/agent/chassis/node%20one%2F2", REPORTED)]


async def test_many_counters_are_looked_up_in_batches(tmp_path: Path):
    server = Recorded()
    many = [replace(WEB, place=Datapath(key)) for key in range(2500)]
    await agent_of(tmp_path, [server], dict.fromkeys(many, counted_sample(2))).collect()
    assert [len(body["sightings"]) for path, body in server.asked if path == "/agent/sightings"] == [1000, 1000, 500]
    assert server.asked[-1][1]["listeners"]["web"]["connections"] == 5000


async def test_counters_are_kept_while_no_server_answers(tmp_path: Path):
    server = Recorded(away=True)
    agent = agent_of(tmp_path, [server], {WEB: counted_sample(2)}, {WEB: counted_sample(5)})
    with pytest.raises(ServerError):
        await agent.collect()
    server.away = False
    await agent.collect()
    assert server.asked[-1][1] == REPORTED


async def test_counters_reach_the_second_server_when_the_first_one_fails(tmp_path: Path):
    servers = [Recorded(away=True), Recorded()]
    with pytest.raises(ServerError):
        await agent_of(tmp_path, servers, {WEB: counted_sample(5)}).collect()
    assert servers[1].asked[-1][1] == REPORTED


async def test_listener_unknown_to_every_server_is_dropped(tmp_path: Path):
    knows, does_not = Recorded(), Recorded(known=False)
    agent = agent_of(tmp_path, [does_not, knows], {WEB: counted_sample(5)})
    await agent.collect()
    await agent.collect()
    assert does_not.asked[-1][1] == REPORTED
    knows.known = False
    await agent.collect()
    await agent.collect()
    assert does_not.asked[-1][1]["listeners"] == {}


async def test_repeated_error_and_its_end_are_logged_once(tmp_path: Path, caplog):
    caplog.set_level(logging.INFO)
    server = Recorded(away=True)
    agent = agent_of(tmp_path, [server], {WEB: counted_sample(5)})
    for away in (True, True, False, False):
        server.away = away
        await agent.try_once()
    assert [record.message for record in caplog.records] == [
        "http://there does not answer: refused; retrying every 10 s",
        "recovered: collecting and reporting counters",
    ]

"""A killed agent: its connection ends, and no traffic is sent to proxies of its node, whose state is unknown."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import uvloop

from fairlead.agent_protocol.reports import AgentReport
from fairlead.api.agents.liveness import FLAPPING_HOLD_OFF, RECONNECT_GRACE, NodeAgents
from fairlead.model.documents.agent import Agent
from fairlead.model.registry.changeset import Changes
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.agents import serving
from harness.language import parse_model
from harness.nodes import nodes_deployment
from harness.waiting import assert_holds_on_loop, eventually

SINCE = datetime(2026, 1, 1, tzinfo=UTC)


def report(since: datetime = SINCE, name: str = "one") -> AgentReport:
    return AgentReport(
        agent=Agent(name=name, since=since, heartbeat=5.0), probe_results={}, is_complete=True, serving={}
    )


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class ReceivingClient:
    agents: NodeAgents
    model: Model
    clock: Clock

    async def is_away(self, after: float = 0.0) -> bool:
        self.clock.now += after
        await self.agents.find_stale()
        return self.model.snapshot.agents["one"].is_disconnected


@asynccontextmanager
async def receiving_client(folder: Path) -> AsyncIterator[ReceivingClient]:
    store, clock = await SqliteStore.open(folder / "store.db"), Clock()
    model = await Model.load(store, check=lambda snapshot, owner: None)
    try:
        yield ReceivingClient(NodeAgents(model, lambda _: (), clock), model, clock)
    finally:
        await store.close()


async def test_disconnected_agent_is_away_until_a_new_agent_reports(tmp_path: Path):
    async with receiving_client(tmp_path) as it:
        await it.agents.take_report(report(), "first")
        assert not await it.is_away(1)
        it.agents.record_disconnect("one", "another")
        assert not await it.is_away(1)
        it.agents.record_disconnect("one", "first")
        assert not await it.is_away()
        assert await it.is_away(RECONNECT_GRACE + 0.1)
        assert it.model.snapshot.agents["one"].is_responsive  # its probe results stay valid
        await it.agents.take_report(report(SINCE + timedelta(hours=1)), "second")
        assert not await it.is_away(1)
        it.agents.record_disconnect("one", "second")
        assert await it.is_away(RECONNECT_GRACE + 0.1)


@pytest.mark.parametrize("is_host", [True, False])
async def test_log_of_a_lost_agent_differs_for_nodes_and_plain_hosts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_host: bool
):
    """The log of a node differs from that of a plain host, which no other node replaces: its kernel continues to
    forward."""

    async with receiving_client(tmp_path) as it:
        if is_host:
            hosts, _ = parse_model("host one 1 10.20.0.21 10.1.0.0/24", {})
            await it.model.write(lambda _: Changes(puts=tuple(hosts.values())))
        await it.agents.take_report(report(), "first")
        it.agents.record_disconnect("one", "first")
        assert await it.is_away(RECONNECT_GRACE + 0.1)
        await it.is_away(60)
    stays = "its host keeps the last configuration, its members keep their last status, and no change reaches it"
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"agent one disconnected: {stays if is_host else 'clients are sent to proxies of other chassis'}",
        f"agent one is unresponsive: {stays if is_host else 'other agents probe its members'}",
    ]


async def test_disconnects_of_an_agent_that_reconnected_are_ignored_for_a_while(tmp_path: Path):
    """Closed connections of a live agent are ignored for a while, because an intermediary may keep closing them."""

    async with receiving_client(tmp_path) as it:
        await it.agents.take_report(report(), "first")
        it.agents.record_disconnect("one", "first")
        assert await it.is_away(1)
        await it.agents.take_report(report(), "second")
        it.agents.record_disconnect("one", "second")
        assert not await it.is_away(1)
        await it.agents.take_report(report(), "third")
        it.clock.now += FLAPPING_HOLD_OFF
        await it.agents.take_report(report(), "third")
        it.agents.record_disconnect("one", "third")
        assert await it.is_away(1)


# Over a connection

CLIENT_PROGRAM = """
import asyncio, sys
from fairlead.agent_protocol.reports import AgentReport, render_report
from fairlead.model.documents.agent import Agent
from fairlead.node.connection import Connection, Remote
from fairlead.node.identity import read_identity
from pathlib import Path
from datetime import UTC, datetime

async def speak(url, identity):
    tls = read_identity(Path(identity)).tls() if identity else None
    connection = Connection(Remote(url=url, tls=tls), 5.0)
    agent = Agent(name="one", since=datetime.now(UTC), heartbeat=5.0)
    for _ in range(2):
        report = AgentReport(agent=agent, probe_results={}, is_complete=True, serving={})
        await connection.request(*render_report(report))
    print("said", flush=True)
    await asyncio.sleep(60)

asyncio.run(speak(sys.argv[1], sys.argv[2]))
"""


async def start_client(url: str, identity: str = "") -> asyncio.subprocess.Process:
    """Start an agent in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT_PROGRAM, url, identity, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"said\n"
    return process


async def kill(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


async def test_killed_agent_is_away_and_agent_closed_by_the_server_is_not(tmp_path: Path):
    async with serving(tmp_path) as server:
        process = await start_client(server.url)
        try:
            await server.close_connections()
            await assert_holds_on_loop(1.0, lambda: not server.model.snapshot.agents["one"].is_disconnected)
        finally:
            await kill(process)
        await kill(await start_client(server.url))
        await eventually(lambda: server.model.snapshot.agents["one"].is_disconnected)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_killed_agent_is_detected_over_tls(tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]):
    """The end of a TLS connection is detected in uvloop, which does not report its EOF."""

    async def story() -> None:
        async with nodes_deployment(tmp_path) as stage:
            await stage.enrol("one")
            await kill(await start_client(stage.url, str(tmp_path / "one.pem")))
            await eventually(lambda: stage.snapshot.agents["one"].is_disconnected)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(story())

"""Probe results that survive the agent: a new one reports them before its first probe."""

import asyncio
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import pytest

from fairlead.agent_protocol.probe_results_file import read_probe_results
from fairlead.model.documents.agent import Agent
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.node.probe_results import PersistentReports, probe_results_path
from harness.waiting import eventually_equal

pytestmark = pytest.mark.virtual_clock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
AGENT = Agent(name="one", version="1", host="one", since=NOON, heartbeat=5.0)


def endpoint(number: int) -> Endpoint:
    return Endpoint(f"port{number}", ip_address("fd00::1"), 80, Transport.TCP, "net", "monitor")


def seen(health: Health, latency: float | None = None) -> ProbeResult:
    return ProbeResult(health=health, chassis="one", since=NOON, error="connection refused", latency=latency)


def reports(folder: Path) -> PersistentReports:
    return PersistentReports(probe_results_path(folder / "agent.json"), lambda: AGENT, lambda: (), 0)


def kept(folder: Path) -> dict[Endpoint, ProbeResult]:
    return read_probe_results(folder / "agent.sightings.json")


async def until_kept(folder: Path, expected: dict[Endpoint, ProbeResult]) -> None:
    await eventually_equal(lambda: kept(folder), expected)


async def test_restarted_agent_loads_the_stored_probe_results(tmp_path: Path):
    news = {endpoint(1): seen(Health.ERROR), endpoint(2): seen(Health.ONLINE, 0.25)}

    running = asyncio.create_task((first := reports(tmp_path)).run())
    first.observe(news)
    await until_kept(tmp_path, news)
    running.cancel()
    assert reports(tmp_path)._results == news


async def test_results_of_endpoints_no_longer_probed_are_dropped(tmp_path: Path):
    running = asyncio.create_task((first := reports(tmp_path)).run())
    first.observe({endpoint(1): seen(Health.ERROR), endpoint(2): seen(Health.ERROR)})
    await until_kept(tmp_path, {endpoint(1): seen(Health.ERROR), endpoint(2): seen(Health.ERROR)})
    first.retain_only([endpoint(2), endpoint(3)])
    await until_kept(tmp_path, {endpoint(2): seen(Health.ERROR)})
    assert first._results == {endpoint(2): seen(Health.ERROR)}
    running.cancel()


@pytest.mark.parametrize("text", ["", "nonsense", "[[1, 2]]", '[[["p", "no address", 1, "TCP"], {}]]'])
def test_unreadable_result_file_is_ignored(tmp_path: Path, text: str):
    (tmp_path / "agent.sightings.json").write_text(text)
    assert reports(tmp_path)._results == {}


async def test_stored_results_survive_suspension_and_unprobed_endpoints(tmp_path: Path):
    """The agent may be killed before the next probe."""

    running = asyncio.create_task((first := reports(tmp_path)).run())
    first.observe({endpoint(1): seen(Health.ERROR)})
    await until_kept(tmp_path, {endpoint(1): seen(Health.ERROR)})
    first.mark_stale()
    first.observe({endpoint(1): seen(Health.UNPROBED), endpoint(2): seen(Health.ONLINE)})
    await until_kept(tmp_path, {endpoint(1): seen(Health.ERROR), endpoint(2): seen(Health.ONLINE)})
    running.cancel()


def test_latencies_alone_are_not_written(tmp_path: Path):
    first = reports(tmp_path)
    first.observe({endpoint(1): seen(Health.ONLINE)})
    first._changed.clear()
    first.observe({endpoint(1): seen(Health.ONLINE, 0.5)})
    assert not first._changed.is_set()

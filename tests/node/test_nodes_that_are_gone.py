"""Unresponsive nodes: servers that started later return their counters and probe results too, all the same."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.server.unresponsive_nodes import OTHERS, UnresponsiveNodes
from harness.agents import AgentServer, running
from harness.etcd import EtcdCluster, etcd_cluster
from harness.multiple_servers import SOME_DOWN, FollowingAgent, await_state, start_server
from harness.ports import free_port
from harness.probe_results import DOCUMENTS, DOWN, UP
from harness.probes import FIRST, SECOND, SIX
from harness.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(params=["sqlite", "etcd"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/s.db"
    return f"{request.getfixturevalue('etcd').url}/gone"


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with etcd_cluster() as cluster:
        yield cluster


@asynccontextmanager
async def beginning(folder: Path, url: str, port: int, *, writes: bool) -> AsyncIterator[AgentServer]:
    """A server that stores the last state of unresponsive nodes."""
    async with AsyncExitStack() as stack:
        server = await start_server(stack, folder, url, port)
        services = server.services
        silences = UnresponsiveNodes(
            server.model, services.node_counts, services.nodes.agents, lambda: writes, services.now
        )
        await stack.enter_async_context(running(silences.run))
        yield server


async def test_server_started_after_a_node_failure_returns_the_last_state_of_the_node(url: str, tmp_path: Path):
    async with AsyncExitStack() as stack:
        ports = [free_port() for _ in range(3)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        first = await stack.enter_async_context(AsyncExitStack())
        there = await first.enter_async_context(beginning(tmp_path / "0", url, ports[0], writes=True))
        await there.put(*DOCUMENTS)
        one, two = (
            FollowingAgent(name, urls, tmp_path, TrafficCounters(connections=number, active=2), interval=1)
            for name, number in (("one", 30), ("two", 12))
        )
        await stack.enter_async_context(two.running())
        async with one.running():
            one.reports.observe({FIRST: DOWN, SIX: UP})
            two.reports.observe({SECOND: UP})
            await await_state((SOME_DOWN, "DEGRADED", 42), [there])
        second = await stack.enter_async_context(AsyncExitStack())
        later = await second.enter_async_context(beginning(tmp_path / "1", url, ports[1], writes=False))
        await eventually(lambda: "one" in there.model.snapshot.unresponsive_nodes)
        await await_state((SOME_DOWN, "DEGRADED", 42), [there, later])
        await first.aclose()
        last = await stack.enter_async_context(beginning(tmp_path / "2", url, ports[2], writes=True))
        await second.aclose()
        await await_state((SOME_DOWN, "DEGRADED", 42), [last])
        one.figures = TrafficCounters(connections=35)
        async with one.running():
            await await_state((SOME_DOWN, "DEGRADED", 47), [last])
            await eventually(lambda: "one" not in last.model.snapshot.unresponsive_nodes)
            await await_state((SOME_DOWN, "DEGRADED", 47), [last])


@pytest.mark.virtual_clock
async def test_server_with_the_last_report_stores_a_stale_node_exactly_once(tmp_path: Path):
    """The server that writes to OVN started after the node had failed.

    The server with the node's reports stores them.
    """

    async with AsyncExitStack() as stack:
        server = await start_server(stack, tmp_path / "0", f"sqlite://{tmp_path}/s.db", 0)
        await server.put(*DOCUMENTS)
        services, stored = server.services, lambda: [*server.model.snapshot.unresponsive_nodes]
        counts = services.node_counts
        silences = UnresponsiveNodes(server.model, counts, services.nodes.agents, lambda: False, services.now)
        node = FollowingAgent("one", [server.url], tmp_path, TrafficCounters(connections=3), interval=1)
        async with node.running():
            await eventually(lambda: counts.is_responsive("one"))
        await eventually(lambda: not counts.is_responsive("one"))
        await silences.check()
        assert stored() == []
        await asyncio.sleep(OTHERS - 1.0)
        await silences.check()
        assert stored() == []
        await asyncio.sleep(2.0)
        await silences.check()
        assert stored() == ["one"]
        await server.put(deletes=(Owner(Kind.UNRESPONSIVE_NODE, "one"),))
        await silences.check()
        assert stored() == []


async def test_stale_node_is_stored_and_removed_when_every_server_may_write(url: str, tmp_path: Path):
    """Without a central dataplane no server is the leader.

    The server with the most recent report stores it; after that nothing is left to do, neither for the node nor after
    it reconnects.
    """

    async with AsyncExitStack() as stack:
        ports = [free_port() for _ in range(3)]
        servers = [await start_server(stack, tmp_path / str(at), url, port) for at, port in enumerate(ports)]
        counts = [each.services.node_counts for each in servers]
        silences = [
            UnresponsiveNodes(each.model, its.node_counts, its.nodes.agents, lambda: True, its.now)
            for each in servers
            for its in [each.services]
        ]
        await servers[0].put(*DOCUMENTS)

        async def looked() -> int:
            """Number of transactions of all servers in three concurrent checks each."""
            before = await _revision(servers[0])
            for _ in range(3):
                await asyncio.gather(*(each.check() for each in silences))
            return await _revision(servers[0]) - before

        node = FollowingAgent(
            "one", [each.url for each in servers], tmp_path, TrafficCounters(connections=3), interval=1
        )
        for _ in range(2):
            async with node.running():
                await eventually(lambda: all(each.is_responsive("one") for each in counts))
                was_kept = "one" in servers[0].model.snapshot.unresponsive_nodes
                assert await looked() == was_kept
                assert "one" not in servers[0].model.snapshot.unresponsive_nodes
            await eventually(lambda: not any(each.is_responsive("one") for each in counts))
            assert 1 <= await looked() <= len(servers)
            assert await looked() == 0
            assert "one" in servers[0].model.snapshot.unresponsive_nodes


async def _revision(server: AgentServer) -> int:
    await server.model.catch_up()
    return server.model.snapshot.revision

"""Unresponsive nodes: servers that started later return their counters and probe results too, all the same."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.traffic_counters import Figures
from fairlead.server.unresponsive_nodes import OTHERS, Silences
from harness.agents import Served, running
from harness.etcd import Etcd, started
from harness.ports import free_port
from harness.probes import FIRST, SECOND, SIX
from harness.several_servers import SOME_DOWN, Node, all_say, begin
from harness.sightings import DOCUMENTS, DOWN, UP
from harness.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(params=["sqlite", "etcd"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/s.db"
    return f"{request.getfixturevalue('etcd').url}/gone"


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with started() as cluster:
        yield cluster


@asynccontextmanager
async def beginning(folder: Path, url: str, port: int, *, writes: bool) -> AsyncIterator[Served]:
    """A server that stores the last state of unresponsive nodes."""
    async with AsyncExitStack() as stack:
        server = await begin(stack, folder, url, port)
        services = server.services
        silences = Silences(server.model, services.node_counts, services.nodes.agents, lambda: writes, services.now)
        await stack.enter_async_context(running(silences.run))
        yield server


async def test_whoever_begins_after_a_node_has_died_says_what_all_say(url: str, tmp_path: Path):
    async with AsyncExitStack() as stack:
        ports = [free_port() for _ in range(3)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        first = await stack.enter_async_context(AsyncExitStack())
        there = await first.enter_async_context(beginning(tmp_path / "0", url, ports[0], writes=True))
        await there.put(*DOCUMENTS)
        one, two = (
            Node(name, urls, tmp_path, Figures(connections=number, active=2), interval=1)
            for name, number in (("one", 30), ("two", 12))
        )
        await stack.enter_async_context(two.running())
        async with one.running():
            one.reports.observe({FIRST: DOWN, SIX: UP})
            two.reports.observe({SECOND: UP})
            await all_say((SOME_DOWN, "DEGRADED", 42), [there])
        second = await stack.enter_async_context(AsyncExitStack())
        later = await second.enter_async_context(beginning(tmp_path / "1", url, ports[1], writes=False))
        await eventually(lambda: "one" in there.model.snapshot.silent_nodes)
        await all_say((SOME_DOWN, "DEGRADED", 42), [there, later])
        await first.aclose()
        last = await stack.enter_async_context(beginning(tmp_path / "2", url, ports[2], writes=True))
        await second.aclose()
        await all_say((SOME_DOWN, "DEGRADED", 42), [last])
        one.figures = Figures(connections=35)
        async with one.running():
            await all_say((SOME_DOWN, "DEGRADED", 47), [last])
            await eventually(lambda: "one" not in last.model.snapshot.silent_nodes)
            await all_say((SOME_DOWN, "DEGRADED", 47), [last])


@pytest.mark.virtual_clock
async def test_whoever_heard_a_node_keeps_it_if_nobody_else_does_and_once(tmp_path: Path):
    """The server that writes to OVN started after the node had failed.

    The server with the node's reports stores them.
    """

    async with AsyncExitStack() as stack:
        server = await begin(stack, tmp_path / "0", f"sqlite://{tmp_path}/s.db", 0)
        await server.put(*DOCUMENTS)
        services, stored = server.services, lambda: [*server.model.snapshot.silent_nodes]
        counts = services.node_counts
        silences = Silences(server.model, counts, services.nodes.agents, lambda: False, services.now)
        node = Node("one", [server.url], tmp_path, Figures(connections=3), interval=1)
        async with node.running():
            await eventually(lambda: counts.is_heard("one"))
        await eventually(lambda: not counts.is_heard("one"))
        await silences.look()
        assert stored() == []
        await asyncio.sleep(OTHERS - 1.0)
        await silences.look()
        assert stored() == []
        await asyncio.sleep(2.0)
        await silences.look()
        assert stored() == ["one"]
        await server.put(deletes=(Owner(Kind.SILENT_NODE, "one"),))
        await silences.look()
        assert stored() == []


async def test_where_every_server_may_write_a_silent_node_is_kept_and_forgotten_once(url: str, tmp_path: Path):
    """Without a central dataplane no server is the leader.

    The server with the most recent report stores it; after that nothing is left to do, neither for the node nor after
    it reconnects.
    """

    async with AsyncExitStack() as stack:
        ports = [free_port() for _ in range(3)]
        servers = [await begin(stack, tmp_path / str(at), url, port) for at, port in enumerate(ports)]
        counts = [each.services.node_counts for each in servers]
        silences = [
            Silences(each.model, its.node_counts, its.nodes.agents, lambda: True, its.now)
            for each in servers
            for its in [each.services]
        ]
        await servers[0].put(*DOCUMENTS)

        async def looked() -> int:
            """Number of transactions of all servers in three concurrent checks each."""
            before = await _revision(servers[0])
            for _ in range(3):
                await asyncio.gather(*(each.look() for each in silences))
            return await _revision(servers[0]) - before

        node = Node("one", [each.url for each in servers], tmp_path, Figures(connections=3), interval=1)
        for _ in range(2):
            async with node.running():
                await eventually(lambda: all(each.is_heard("one") for each in counts))
                was_kept = "one" in servers[0].model.snapshot.silent_nodes
                assert await looked() == was_kept
                assert "one" not in servers[0].model.snapshot.silent_nodes
            await eventually(lambda: not any(each.is_heard("one") for each in counts))
            assert 1 <= await looked() <= len(servers)
            assert await looked() == 0
            assert "one" in servers[0].model.snapshot.silent_nodes


async def _revision(server: Served) -> int:
    await server.model.catch_up()
    return server.model.snapshot.revision

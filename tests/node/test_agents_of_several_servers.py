"""Agents that follow different servers: all servers return the same health and statistics, and any may stop."""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from fairlead.http.server_client import ApiClient
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.port_ranges import PortRange
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.queries.statistics import CountedService, Datapath
from fairlead.node.server_requests import Servers
from fairlead.store.read_barrier import StoreStale
from harness.agents import serving
from harness.etcd import EtcdCluster, etcd_cluster
from harness.multiple_servers import ALL_UP, LISTENER, SOME_DOWN, FollowingAgent, await_state, start_server
from harness.ports import free_port
from harness.probe_results import DOCUMENTS, DOWN, UP, WEB
from harness.probes import FIRST, SECOND, SIX
from harness.waiting import eventually

pytestmark = pytest.mark.slow

(VIP, *_) = WEB.vips
COUNTED = CountedService(place=Datapath(1), transport=Transport.TCP, address=VIP.address, port=80)
SECOND_LISTENER = "web-second"
WEB_TWICE = replace(
    WEB,
    listeners=(*WEB.listeners, replace(WEB.listeners[0], id=SECOND_LISTENER, ports=(PortRange(81, 81),))),
)
_NUMBERS = count()


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with etcd_cluster() as cluster:
        yield cluster


@pytest.fixture(params=[("sqlite", 2), ("etcd", 3)], ids=["two on sqlite", "three on etcd"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, int]:
    """A store, and the number of servers that share it."""
    kind, servers = request.param
    if kind == "sqlite":
        return f"sqlite://{tmp_path}/s.db", servers
    return f"{request.getfixturevalue('etcd').url}/agents{next(_NUMBERS)}", servers


async def test_all_servers_return_the_same_health_and_counters_of_all_agents(place: tuple[str, int], tmp_path: Path):
    url, number = place

    async with AsyncExitStack() as stack:
        ports = [free_port() for _ in range(number)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        first = await stack.enter_async_context(AsyncExitStack())
        servers = [
            await start_server(first if not at else stack, tmp_path / "files", url, port)
            for at, port in enumerate(ports)
        ]
        await servers[0].put(*DOCUMENTS)
        one = FollowingAgent("one", urls, tmp_path, TrafficCounters(connections=30, active=2))
        two = FollowingAgent("two", urls[::-1], tmp_path, TrafficCounters(connections=12))
        for node in (one, two):
            await stack.enter_async_context(node.running())
        one.reports.observe({FIRST: DOWN, SIX: UP})
        two.reports.observe({SECOND: UP})
        await await_state((SOME_DOWN, "DEGRADED", 42), servers)
        for node in (one, two):
            await eventually(lambda node=node: node.given.snapshot.down.get("web") == {"web-a"})
        await first.aclose()
        one.reports.observe({FIRST: UP})
        two.figures = TrafficCounters(connections=20)
        await await_state((ALL_UP, "ONLINE", 50), servers[1:])
        await eventually(lambda: "web" not in one.given.snapshot.down)
        again = await start_server(stack, tmp_path / "files", url, ports[0])
        await await_state((ALL_UP, "ONLINE", 50), [again, *servers[1:]])


async def test_lagging_server_reads_the_store_before_calling_a_listener_unknown(place: tuple[str, int], tmp_path: Path):
    """A node discards whatever has no owner at any server. This server does not follow the store by itself."""

    async with AsyncExitStack() as stack:
        early, late = [
            await stack.enter_async_context(
                serving(tmp_path / "files", url=place[0], resolve_counting_place=lambda _: "net1")
            )
            for _ in range(2)
        ]
        await early.put(*DOCUMENTS)
        assert not late.model.snapshot.listener_owner
        servers = Servers([ApiClient(url=late.url)])
        assert (await servers.find_listeners("", [COUNTED])).listeners == [LISTENER]
        await early.put(WEB_TWICE)
        told = await servers.report(
            "one", 10, {SECOND_LISTENER: TrafficCounters(connections=1), "gone": TrafficCounters()}
        )
        assert (told.unknown, told.failure) == ({"gone"}, None)


async def test_no_counters_are_dropped_while_the_store_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def away() -> None:
        raise StoreStale("the store is away")

    async with serving(tmp_path / "files") as server:
        await server.put(*DOCUMENTS)
        monkeypatch.setattr(server.model.read_barrier, "wait_with_timeout", away)
        servers = Servers([ApiClient(url=server.url)])
        told = await servers.report(
            "one", 10, {LISTENER: TrafficCounters(connections=3), "unheard of": TrafficCounters()}
        )
        assert (told.unknown, told.failure) == (set(), None)
        assert server.services.node_counts.total([LISTENER]) == TrafficCounters(connections=3)

"""Agents that follow different servers: all servers return the same health and statistics, and any may stop."""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from fairlead.http.server_client import Server
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.port_ranges import PortRange
from fairlead.model.documents.traffic_counters import Figures
from fairlead.model.queries.statistics import CountedService, Datapath
from fairlead.node.server_requests import Servers
from fairlead.store.read_barrier import NotKnown
from harness.agents import serving
from harness.etcd import Etcd, started
from harness.ports import free_port
from harness.probes import FIRST, SECOND, SIX
from harness.several_servers import ALL_UP, LISTENER, SOME_DOWN, Node, all_say, begin
from harness.sightings import DOCUMENTS, DOWN, UP, WEB
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
def etcd() -> Iterator[Etcd]:
    with started() as cluster:
        yield cluster


@pytest.fixture(params=[("sqlite", 2), ("etcd", 3)], ids=["two on sqlite", "three on etcd"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, int]:
    """A store, and the number of servers that share it."""
    kind, servers = request.param
    if kind == "sqlite":
        return f"sqlite://{tmp_path}/s.db", servers
    return f"{request.getfixturevalue('etcd').url}/agents{next(_NUMBERS)}", servers


async def test_all_servers_say_what_agents_tell_whichever_they_listen_to(place: tuple[str, int], tmp_path: Path):
    url, number = place

    async with AsyncExitStack() as stack:
        ports = [free_port() for _ in range(number)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        first = await stack.enter_async_context(AsyncExitStack())
        servers = [
            await begin(first if not at else stack, tmp_path / "files", url, port) for at, port in enumerate(ports)
        ]
        await servers[0].put(*DOCUMENTS)
        one = Node("one", urls, tmp_path, Figures(connections=30, active=2))
        two = Node("two", urls[::-1], tmp_path, Figures(connections=12))
        for node in (one, two):
            await stack.enter_async_context(node.running())
        one.reports.observe({FIRST: DOWN, SIX: UP})
        two.reports.observe({SECOND: UP})
        await all_say((SOME_DOWN, "DEGRADED", 42), servers)
        for node in (one, two):
            await eventually(lambda node=node: node.given.snapshot.down.get("web") == {"web-a"})
        await first.aclose()
        one.reports.observe({FIRST: UP})
        two.figures = Figures(connections=20)
        await all_say((ALL_UP, "ONLINE", 50), servers[1:])
        await eventually(lambda: "web" not in one.given.snapshot.down)
        again = await begin(stack, tmp_path / "files", url, ports[0])
        await all_say((ALL_UP, "ONLINE", 50), [again, *servers[1:]])


async def test_nothing_is_nobodys_at_a_server_that_has_not_heard_of_it_yet(place: tuple[str, int], tmp_path: Path):
    """A node discards whatever has no owner at any server. This server does not follow the store by itself."""

    async with AsyncExitStack() as stack:
        early, late = [
            await stack.enter_async_context(serving(tmp_path / "files", url=place[0], locate=lambda _: "net1"))
            for _ in range(2)
        ]
        await early.put(*DOCUMENTS)
        assert not late.model.snapshot.listener_owner
        servers = Servers([Server(url=late.url)])
        assert (await servers.ask_whose("", [COUNTED])).listeners == [LISTENER]
        await early.put(WEB_TWICE)
        told = await servers.tell("one", 10, {SECOND_LISTENER: Figures(connections=1), "gone": Figures()})
        assert (told.unknown, told.failure) == ({"gone"}, None)


async def test_while_the_store_is_away_no_sums_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def away() -> None:
        raise NotKnown("the store is away")

    async with serving(tmp_path / "files") as server:
        await server.put(*DOCUMENTS)
        monkeypatch.setattr(server.model.looks, "newest_in_time", away)
        servers = Servers([Server(url=server.url)])
        told = await servers.tell("one", 10, {LISTENER: Figures(connections=3), "unheard of": Figures()})
        assert (told.unknown, told.failure) == (set(), None)
        assert server.services.node_counts.total([LISTENER]) == Figures(connections=3)

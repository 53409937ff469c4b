"""Agents of which each listens to another server: all servers say the same health and statistics, and any may end."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.client import Server
from fairlead.model.facts import CHASSIS, PLUGGED
from fairlead.model.figures import Figures
from fairlead.model.loadbalancer import Transport
from fairlead.model.owner import Kind, Owner
from fairlead.model.port_ranges import PortRange
from fairlead.model.statistics import CountedService, Datapath
from fairlead.node.channel import Channel, Slice
from fairlead.node.connection import Remote
from fairlead.node.protocol import Servers
from fairlead.node.reporting import Reports
from fairlead.store.looks import NotKnown
from harness.agents import Served, running, serving, until
from harness.etcd import Etcd, started
from model.test_probes import FIRST, SECOND, SIX
from node.test_channel import AGENT, DOCUMENTS, DOWN, ONE, TWO, UP, WEB

pytestmark = pytest.mark.slow

LBS = "/load-balancer/v2.0/lbaas/loadbalancers"
(LISTENER,) = (each.id for each in WEB.listeners)
(VIP, *_) = WEB.vips
COUNTED = CountedService(place=Datapath(1), transport=Transport.TCP, address=VIP.address, port=80)
SECOND_LISTENER = "web-second"
WEB_TWICE = replace(
    WEB,
    listeners=(*WEB.listeners, replace(WEB.listeners[0], id=SECOND_LISTENER, ports=(PortRange(81, 81),))),
)
PLUGS = {"one": {"vm1": "one"}, "two": {"vm2": "two"}}
_NUMBERS = count()
REPORT_INTERVAL = 0.1
SOME_DOWN = {"web-a": "ERROR", "web-b": "ONLINE", "web-six": "ONLINE"}
ALL_UP = dict.fromkeys(SOME_DOWN, "ONLINE")


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with started() as cluster:
        yield cluster


@pytest.fixture(params=[("sqlite", 2), ("etcd", 3)], ids=["two on sqlite", "three on etcd"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, int]:
    """A store, and how many servers share it."""
    kind, servers = request.param
    if kind == "sqlite":
        return f"sqlite://{tmp_path}/s.db", servers
    return f"{request.getfixturevalue('etcd').url}/agents{next(_NUMBERS)}", servers


def free_port(stack: ExitStack) -> int:
    """Nobody else's until the stack ends."""
    listener = stack.enter_context(socket.socket())
    listener.bind(("127.0.0.1", 0))
    port: int = listener.getsockname()[1]
    return port


@dataclass
class Node:
    """What an agent does: it listens to one server, and tells all of them."""

    name: str
    urls: list[str]
    folder: Path
    figures: Figures
    interval: int = 10
    given: Slice = field(init=False)
    reports: Reports = field(init=False)

    def __post_init__(self) -> None:
        self.given = Slice(self.name, self.folder / self.name)
        agent = replace(AGENT, name=self.name, host=self.name)
        self.reports = Reports(lambda: agent, self.remotes, len(self.urls))

    def remotes(self) -> list[Remote]:
        return [Remote(url=url) for url in self.urls]

    async def tell(self) -> None:
        servers = Servers([Server(url=url) for url in self.urls])
        while True:
            await servers.tell(self.name, self.interval, {LISTENER: self.figures})
            await asyncio.sleep(REPORT_INTERVAL)

    def running(self) -> Any:
        return running(Channel(self.given, self.remotes).run, self.reports.run, self.tell)


async def asked(url: str) -> Any:
    """How its members and all of it stand there, and what was counted."""
    async with httpx.AsyncClient(base_url=url) as client:
        tree = (await client.get(f"{LBS}/web/status")).json()["statuses"]["loadbalancer"]
        members = [each for listener in tree["listeners"] for pool in listener["pools"] for each in pool["members"]]
        stats = (await client.get(f"{LBS}/web/stats")).json().get("stats", {})
        return (
            {each["id"]: each["operating_status"] for each in members},
            tree["operating_status"],
            stats.get("total_connections"),
        )


async def all_say(wanted: Any, servers: list[Served]) -> None:
    said: list[Any] = []
    try:
        async with asyncio.timeout(20):
            while said != [wanted] * len(servers):
                said = [await asked(each.url) for each in servers]
                await asyncio.sleep(0.02)
    except TimeoutError:
        assert said == [wanted] * len(servers)


async def begin(stack: AsyncExitStack, folder: Path, url: str, port: int) -> Served:
    """A server that sees in OVN what all see there."""
    server = await stack.enter_async_context(serving(folder, url=url, port=port))
    server.observe(CHASSIS, {"one": ONE, "two": TWO})
    server.observe(PLUGGED, {machine: chassis for plugs in PLUGS.values() for machine, chassis in plugs.items()})
    for each in server.model.snapshot.load_balancers:
        server.reconciler.mark([Owner(Kind.LOAD_BALANCER, each)])
    await stack.enter_async_context(running(server.model.follow, server.reconciler.run))
    return server


async def test_all_servers_say_what_agents_tell_whichever_they_listen_to(place: tuple[str, int], tmp_path: Path):
    url, number = place

    async with AsyncExitStack() as stack:
        with ExitStack() as held:
            ports = [free_port(held) for _ in range(number)]
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
            await until(lambda node=node: node.given.snapshot.down.get("web") == {"web-a"})
        await first.aclose()
        one.reports.observe({FIRST: UP})
        two.figures = Figures(connections=20)
        await all_say((ALL_UP, "ONLINE", 50), servers[1:])
        await until(lambda: "web" not in one.given.snapshot.down)
        again = await begin(stack, tmp_path / "files", url, ports[0])
        await all_say((ALL_UP, "ONLINE", 50), [again, *servers[1:]])


async def test_nothing_is_nobodys_at_a_server_that_has_not_heard_of_it_yet(place: tuple[str, int], tmp_path: Path):
    """A node drops what is nobody's. This server hears of nothing by itself."""

    async with AsyncExitStack() as stack:
        early, late = [
            await stack.enter_async_context(serving(tmp_path / "files", url=place[0], locate=lambda _: "net1"))
            for _ in range(2)
        ]
        await early.put(*DOCUMENTS)
        assert not late.model.snapshot.listener_owner
        servers = Servers([Server(url=late.url)])
        assert await servers.ask_listeners("", [COUNTED]) == [LISTENER]
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

"""What proxies of plain hosts serve: from a report to the slices of all hosts, and over restarts of servers."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from time import thread_time
from typing import Any, TypeVar

from immutables import Map

from fairlead.api.agent_channel import Channel
from fairlead.api.agent_lines import Slice, at_line, list_line, read_line
from fairlead.api.agent_reports import Report
from fairlead.api.agent_texts import Texts
from fairlead.api.loop_lag import LONG
from fairlead.api.node_agents import NodeAgents
from fairlead.model.agent import Agent
from fairlead.model.facts import PROXIES
from fairlead.model.hosts import Host
from fairlead.model.observed_proxy import Proxy
from fairlead.model.owner import Kind, Owner
from fairlead.model.proxy_place import ProxyPlace, host_proxy_id
from fairlead.model.slices import slice_of
from fairlead.model.snapshot import Snapshot
from fairlead.model.steps import at_once
from fairlead.model.writing import Changes
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.hold import as_in_a_server
from harness.language import parse_model

from .test_agent_channel import Listener

_T = TypeVar("_T")
TEXT = """\
network pool announced 203.0.113.0/24
network net1 10.0.0.0/24
host one 1 10.20.0.21 10.1.0.0/24
host two 2 10.20.0.22 10.2.0.0/24
web vip=203.0.113.5 on=pool provider=native http:80{proxy=2000}=a/10.1.0.11:8080
api vip=203.0.113.6 on=pool provider=native project=alice http:80{proxy=2000}=a/10.1.0.12:8080
"""
PLACE, WEB = ProxyPlace("pool", "demo"), Owner(Kind.LOAD_BALANCER, "web")
HERE = {"pool/demo": frozenset({2000})}


@dataclass
class Server:
    model: Model
    channel: Channel
    agents: NodeAgents

    async def hear(self, name: str, serving: dict[str, frozenset[int]]) -> None:
        await self.agents.hear(Report(agent=seen(name), sightings={}, whole=True, serving=serving))
        await self.rest()

    async def rest(self) -> None:
        at_once(self.channel.looking())
        while self.channel.writing:  # noqa: ASYNC110 - nothing says so
            await asyncio.sleep(0)


def seen(name: str) -> Agent:
    return Agent(name=name, since=datetime(2026, 1, 1, tzinfo=UTC), heartbeat=5.0)


@asynccontextmanager
async def server(folder: Path, epoch: str = "first") -> AsyncIterator[Server]:
    store = await SqliteStore.open(folder / "store.db")
    model = await Model.load(store, check=lambda snapshot, owner: None)
    channel = Channel(model, epoch, frame=bytes)
    if not model.snapshot.hosts:
        await model.write(lambda _: Changes(puts=tuple(parse_model(TEXT, {})[0].values())))
    try:
        yield Server(model, channel, NodeAgents(model, channel.near))
    finally:
        await store.close()


def serving(snapshot: Snapshot) -> dict[str, frozenset[int]]:
    return {identity: proxy.serving for identity, proxy in snapshot.proxies.items()}


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_every_host_hears_what_a_proxy_serves_and_whom_that_concerns(tmp_path: Path):
    async def story() -> None:
        async with server(tmp_path) as first:
            one, two = (Listener(first.channel, Slice(name)) for name in ("one", "two"))
            one.listen()
            two.listen()
            one.concerned.clear()
            await first.hear("two", HERE)
            for each in (one, two):
                assert serving(each.slice.snapshot) == {"pool/demo/two": frozenset({2000})}
                assert each.slice.snapshot.proxies == slice_of(first.model.snapshot, each.slice.name).proxies
            assert one.concerned == [WEB]
            await first.hear("two", {})
            assert serving(one.slice.snapshot) == {}
            assert one.concerned == [WEB, WEB]

    run(story())


def test_nobody_speaks_for_others_or_of_what_is_on_no_host(tmp_path: Path):
    async def story() -> None:
        async with server(tmp_path) as first:
            said = {"pool/demo/one": frozenset({2000}), "net1/demo": frozenset({2000}), "pool": frozenset({1})}
            await first.hear("stranger", HERE)
            await first.hear("two", said)
            assert serving(first.model.snapshot) == {}

    run(story())


def test_what_a_server_that_begins_has_not_heard_yet_holds(tmp_path: Path):
    async def story() -> None:
        one = Listener(None, Slice("one"))  # type: ignore[arg-type]
        async with server(tmp_path) as first:
            one.channel = first.channel
            one.listen()
            await first.hear("one", HERE)
            await first.hear("two", HERE)
        async with server(tmp_path, "second") as second:
            one.channel = second.channel
            one.listen()
            assert one.lists == 2
            assert serving(one.slice.snapshot) == {
                host_proxy_id(PLACE, name): HERE["pool/demo"] for name in ("one", "two")
            }
            await second.hear("two", {})
            assert serving(one.slice.snapshot) == {"pool/demo/one": HERE["pool/demo"]}
            await second.hear("one", HERE)
            assert serving(one.slice.snapshot) == serving(second.model.snapshot)

    run(story())


def test_a_host_that_is_declared_later_hears_of_all_others(tmp_path: Path):
    async def story() -> None:
        async with server(tmp_path) as first:
            await first.hear("one", HERE)
            three = Listener(first.channel, Slice("three"))
            three.listen()
            assert serving(three.slice.snapshot) == {}
            host = parse_model("host three 3 10.20.0.23 10.3.0.0/24", {})[0]
            await first.model.write(lambda _: Changes(puts=tuple(host.values())))
            await first.rest()
            assert serving(three.slice.snapshot) == {"pool/demo/one": HERE["pool/demo"]}

    run(story())


def test_what_changes_while_a_host_is_told_of_all_others_is_not_told_before_what_it_was(tmp_path: Path):
    many = {"pool/demo": frozenset(range(20_000, 32_000))}

    async def story() -> None:
        async with server(tmp_path) as first:
            await first.hear("one", many)
            await first.hear("two", many)
            three = Listener(first.channel, Slice("three"))
            three.listen()
            host = parse_model("host three 3 10.20.0.23 10.3.0.0/24", {})[0]
            await first.model.write(lambda _: Changes(puts=tuple(host.values())))
            looking = first.channel.looking()
            next(looking)
            at_once(first.model.observe(PROXIES, {"pool/demo/two": None}))
            at_once(looking)
            await first.rest()
            assert three.slice.snapshot.proxies == first.model.snapshot.proxies

    run(story())


def test_proxies_of_many_hosts_are_told_and_heard_without_holding_anybody_up():
    hosts, places = [f"host{number}" for number in range(50)], [f"pool/project{number}" for number in range(100)]
    everywhere = Proxy(serving=frozenset(range(20_000, 20_100)))
    snapshot = Snapshot(
        hosts=Map({name: Host(name=name, number=1, addresses=(), prefixes=()) for name in hosts}),
        agents=Map({name: seen(name) for name in hosts}),
        proxies=Map({f"{place}/{name}": everywhere for place in places for name in hosts}),
    )
    with as_in_a_server():
        pieces, telling = longest(Texts().host_proxies(snapshot, hosts))
        slice_ = Slice("host1")
        told = [list_line(snapshot), *(line for piece in pieces for line in piece.splitlines())]
        for text in told:
            at_once(slice_.take(read_line(text)))
        _, hearing = longest(slice_.take(read_line(at_line("first:1", 1))))
    assert slice_.snapshot.proxies == snapshot.proxies
    assert max(telling, hearing) < LONG


def longest(steps: Iterator[_T]) -> tuple[list[_T], float]:
    """What they give, and the seconds of the longest one."""
    found, most = list[_T](), 0.0
    while True:
        began = thread_time()
        given = [*islice(steps, 1)]
        most = max(most, thread_time() - began)
        if not given:
            return found, most
        found += given

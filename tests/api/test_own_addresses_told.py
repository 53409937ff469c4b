"""Addresses that hosts themselves have: from a report to the slices of all hosts, and across server restarts."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fairlead.agent_protocol.reports import REPORT, Report, read_report, render_report
from fairlead.agent_protocol.slice_lines import Slice
from fairlead.model.documents.addresses import IPAddress, parse_address
from fairlead.model.documents.agent import Agent
from fairlead.model.documents.hosts import MOST_OWN
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.slices import slice_of
from fairlead.model.snapshot import Snapshot
from fairlead.node import channel
from harness.front_ends.agent_channel import Listener, Server, seen, server
from harness.language import parse_model

AGENT = Agent(name="one", since=datetime(2026, 1, 1, tzinfo=UTC), heartbeat=5.0)
BRIDGE, OTHER = parse_address("10.1.0.11"), parse_address("10.2.0.1")
CONCERNED = [Owner(Kind.LOAD_BALANCER, "web")]


async def hear(told: Server, name: str, addresses: set[IPAddress] | None) -> None:
    own = None if addresses is None else frozenset(addresses)
    await told.agents.hear(Report(agent=seen(name), sightings={}, whole=True, addresses=own))
    await told.rest()


def own(snapshot: Snapshot) -> Mapping[str, set[IPAddress]]:
    return {host: set(addresses) for host, addresses in snapshot.own_addresses.items()}


async def test_every_host_hears_what_a_host_is_itself_and_whom_that_concerns(tmp_path: Path):
    async with server(tmp_path) as first:
        one, two = (Listener(first.channel, Slice(name)) for name in ("one", "two"))
        one.listen()
        two.listen()
        one.concerned.clear()
        await hear(first, "one", {BRIDGE})
        for each in (one, two):
            assert own(each.slice.snapshot) == {"one": {BRIDGE}}
            assert each.slice.snapshot.own_addresses == slice_of(first.model.snapshot, "two").own_addresses
        assert one.concerned == CONCERNED
        await hear(first, "one", {BRIDGE})
        await hear(first, "one", None)
        assert own(first.model.snapshot) == {"one": {BRIDGE}}, "it has said nothing else"
        assert one.concerned == CONCERNED
        await hear(first, "one", set())
        assert own(two.slice.snapshot) == {"one": set()}
        assert one.concerned == CONCERNED * 2


async def test_nobody_speaks_for_others_or_of_what_is_not_behind_it(tmp_path: Path):
    async with server(tmp_path) as first:
        await hear(first, "stranger", {BRIDGE})
        await hear(first, "two", {BRIDGE, OTHER, parse_address("203.0.113.5"), parse_address("10.20.0.22")})
        assert own(first.model.snapshot) == {"two": {OTHER}}


async def test_what_a_server_that_begins_has_not_heard_yet_holds(tmp_path: Path):
    one = Listener(None, Slice("one"))  # type: ignore[arg-type]
    async with server(tmp_path) as first:
        one.channel = first.channel
        one.listen()
        await hear(first, "one", {BRIDGE})
        await hear(first, "two", {OTHER})
    async with server(tmp_path, "second") as second:
        one.channel = second.channel
        one.listen()
        assert one.lists == 2
        assert own(one.slice.snapshot) == {"one": {BRIDGE}, "two": {OTHER}}
        await hear(second, "two", set())
        assert own(one.slice.snapshot) == {"one": {BRIDGE}, "two": set()}
        again = Listener(second.channel, Slice("two"))
        again.listen()
        assert own(again.slice.snapshot) == {"two": set()}


async def test_a_host_that_is_declared_later_hears_of_all_others(tmp_path: Path):
    async with server(tmp_path) as first:
        await hear(first, "one", {BRIDGE})
        three = Listener(first.channel, Slice("three"))
        three.listen()
        assert own(three.slice.snapshot) == {}
        host = parse_model("host three 3 10.20.0.23 10.3.0.0/24", {})[0]
        await first.model.write(lambda _: Changes(puts=tuple(host.values())))
        await first.rest()
        assert own(three.slice.snapshot) == {"one": {BRIDGE}}


async def test_what_a_silent_host_has_said_holds_until_it_is_declared_no_more(tmp_path: Path):
    async with server(tmp_path) as first:
        await hear(first, "two", {OTHER})
        await first.agents.forget("two")
        await first.agents.look()
        assert own(first.model.snapshot) == {"two": {OTHER}}
        await first.model.write(lambda _: Changes(deletes=(Owner(Kind.HOST, "two"),)))
        await first.agents.look()
        assert own(first.model.snapshot) == {}


async def test_an_agent_that_begins_again_knows_it_from_its_file(tmp_path: Path):
    async with server(tmp_path) as first:
        path, told = tmp_path / "slice", Listener(first.channel, Slice("one"))
        kept = channel.Slice("one", path)
        watch = first.channel.follow("one")
        for piece in first.channel.whole("one"):
            for line in piece.splitlines():
                await kept.take(line)
        first.channel.leave(watch)
        told.listen()
        await hear(first, "two", {OTHER})
        missed = first.channel.missed("one", kept.cursor)
        assert missed is not None
        for line in missed.splitlines():
            await kept.take(line)
        await kept.keep()
        assert own(channel.Slice("one", path).snapshot) == own(told.slice.snapshot) == {"two": {OTHER}}


def told(addresses: frozenset[IPAddress] | None) -> dict[str, Any]:
    return dict(render_report(Report(agent=AGENT, sightings={}, whole=True, addresses=addresses))[2])


@pytest.mark.parametrize("addresses", [None, frozenset(), frozenset({BRIDGE, parse_address("fd00::1")})])
def test_what_an_agent_says_a_server_hears(addresses: frozenset[IPAddress] | None):
    assert read_report("one", REPORT(told(addresses))).addresses == addresses


def test_of_more_than_a_server_hears_the_first_ones_are_told():
    many = frozenset(BRIDGE + each for each in range(MOST_OWN + 100))
    heard = read_report("one", REPORT(told(many))).addresses
    assert heard is not None
    assert len(heard) == MOST_OWN
    assert heard < many


@pytest.mark.parametrize(
    "addresses",
    [
        {},
        "10.1.0.1",
        [1],
        [None],
        ["10.1.0.1/24"],
        ["x" * 100],
        ["::ffff:10.1.0.1"],
        ["10.1.0.1"] * (MOST_OWN + 1),
    ],
)
def test_what_is_no_list_of_addresses_is_refused(addresses: object):
    with pytest.raises(ValueError, match=r"Value should|valid IP address|not appear"):
        REPORT({**told(None), "addresses": addresses})

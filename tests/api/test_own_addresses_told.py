"""Addresses that hosts themselves have: from a report to the slices of all hosts, and across server restarts."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fairlead.agent_protocol.reports import REPORT, AgentReport, read_report, render_report
from fairlead.agent_protocol.slice_lines import SliceBuilder
from fairlead.model.documents.addresses import IPAddress, parse_address
from fairlead.model.documents.agent import Agent
from fairlead.model.documents.hosts import MAX_OWN_ADDRESSES
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.slices import slice_of
from fairlead.model.snapshot import Snapshot
from fairlead.node import channel
from harness.front_ends.agent_channel import AgentEnd, ChannelServer, seen, server
from harness.language import parse_model

AGENT = Agent(name="one", since=datetime(2026, 1, 1, tzinfo=UTC), heartbeat=5.0)
BRIDGE, OTHER = parse_address("10.1.0.11"), parse_address("10.2.0.1")
CONCERNED = [Owner(Kind.LOAD_BALANCER, "web")]


async def hear(told: ChannelServer, name: str, addresses: set[IPAddress] | None) -> None:
    own = None if addresses is None else frozenset(addresses)
    await told.agents.take_report(AgentReport(agent=seen(name), probe_results={}, is_complete=True, addresses=own))
    await told.send_pending()


def own(snapshot: Snapshot) -> Mapping[str, set[IPAddress]]:
    return {host: set(addresses) for host, addresses in snapshot.own_addresses.items()}


async def test_every_host_receives_own_addresses_of_all_hosts(tmp_path: Path):
    async with server(tmp_path) as first:
        one, two = (AgentEnd(first.channel, SliceBuilder(name)) for name in ("one", "two"))
        one.listen()
        two.listen()
        one.notified_owners.clear()
        await hear(first, "one", {BRIDGE})
        for each in (one, two):
            assert own(each.slice.snapshot) == {"one": {BRIDGE}}
            assert each.slice.snapshot.own_addresses == slice_of(first.model.snapshot, "two").own_addresses
        assert one.notified_owners == CONCERNED
        await hear(first, "one", {BRIDGE})
        await hear(first, "one", None)
        assert own(first.model.snapshot) == {"one": {BRIDGE}}, "it has said nothing else"
        assert one.notified_owners == CONCERNED
        await hear(first, "one", set())
        assert own(two.slice.snapshot) == {"one": set()}
        assert one.notified_owners == CONCERNED * 2


async def test_own_addresses_outside_prefixes_of_the_reporting_host_are_ignored(tmp_path: Path):
    async with server(tmp_path) as first:
        await hear(first, "stranger", {BRIDGE})
        await hear(first, "two", {BRIDGE, OTHER, parse_address("203.0.113.5"), parse_address("10.20.0.22")})
        assert own(first.model.snapshot) == {"two": {OTHER}}


async def test_own_addresses_stay_valid_across_a_server_restart(tmp_path: Path):
    one = AgentEnd(None, SliceBuilder("one"))  # type: ignore[arg-type]
    async with server(tmp_path) as first:
        one.channel = first.channel
        one.listen()
        await hear(first, "one", {BRIDGE})
        await hear(first, "two", {OTHER})
    async with server(tmp_path, "second") as second:
        one.channel = second.channel
        one.listen()
        assert one.listing_count == 2
        assert own(one.slice.snapshot) == {"one": {BRIDGE}, "two": {OTHER}}
        await hear(second, "two", set())
        assert own(one.slice.snapshot) == {"one": {BRIDGE}, "two": set()}
        again = AgentEnd(second.channel, SliceBuilder("two"))
        again.listen()
        assert own(again.slice.snapshot) == {"two": set()}


async def test_host_declared_later_receives_own_addresses_of_other_hosts(tmp_path: Path):
    async with server(tmp_path) as first:
        await hear(first, "one", {BRIDGE})
        three = AgentEnd(first.channel, SliceBuilder("three"))
        three.listen()
        assert own(three.slice.snapshot) == {}
        host = parse_model("host three 3 10.20.0.23 10.3.0.0/24", {})[0]
        await first.model.write(lambda _: Changes(puts=tuple(host.values())))
        await first.send_pending()
        assert own(three.slice.snapshot) == {"one": {BRIDGE}}


async def test_own_addresses_of_an_unresponsive_host_stay_until_its_removal(tmp_path: Path):
    async with server(tmp_path) as first:
        await hear(first, "two", {OTHER})
        await first.agents.forget("two")
        await first.agents.find_stale()
        assert own(first.model.snapshot) == {"two": {OTHER}}
        await first.model.write(lambda _: Changes(deletes=(Owner(Kind.HOST, "two"),)))
        await first.agents.find_stale()
        assert own(first.model.snapshot) == {}


async def test_restarted_agent_reads_own_addresses_from_its_slice_file(tmp_path: Path):
    async with server(tmp_path) as first:
        path, told = tmp_path / "slice", AgentEnd(first.channel, SliceBuilder("one"))
        kept = channel.NodeSlice("one", path)
        watch = first.channel.open_watch("one")
        for piece in first.channel.full_slice("one"):
            for line in piece.splitlines():
                await kept.apply_line(line)
        first.channel.close_watch(watch)
        told.listen()
        await hear(first, "two", {OTHER})
        missed = first.channel.messages_after("one", kept.cursor)
        assert missed is not None
        for line in missed.splitlines():
            await kept.apply_line(line)
        await kept.write()
        assert own(channel.NodeSlice("one", path).snapshot) == own(told.slice.snapshot) == {"two": {OTHER}}


def told(addresses: frozenset[IPAddress] | None) -> dict[str, Any]:
    return dict(render_report(AgentReport(agent=AGENT, probe_results={}, is_complete=True, addresses=addresses))[2])


@pytest.mark.parametrize("addresses", [None, frozenset(), frozenset({BRIDGE, parse_address("fd00::1")})])
def test_own_addresses_round_trip_through_a_report(addresses: frozenset[IPAddress] | None):
    assert read_report("one", REPORT(told(addresses))).addresses == addresses


def test_agent_reports_at_most_the_maximum_number_of_own_addresses():
    many = frozenset(BRIDGE + each for each in range(MAX_OWN_ADDRESSES + 100))
    heard = read_report("one", REPORT(told(many))).addresses
    assert heard is not None
    assert len(heard) == MAX_OWN_ADDRESSES
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
        ["10.1.0.1"] * (MAX_OWN_ADDRESSES + 1),
    ],
)
def test_invalid_own_address_list_is_rejected(addresses: object):
    with pytest.raises(ValueError, match=r"Value should|valid IP address|not appear"):
        REPORT({**told(None), "addresses": addresses})

"""Listeners served by proxies of plain hosts: from a report to the slices of all hosts, and across server restarts."""

from pathlib import Path

from immutables import Map

from fairlead.agent_protocol.slice_lines import SliceBuilder, at_line, list_line, read_line
from fairlead.api.agents.document_cache import DocumentCache
from fairlead.model.documents.hosts import Host
from fairlead.model.documents.observed_proxy import Proxy
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.proxy_place import ProxyPlace, host_proxy_id
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.facts import PROXIES
from fairlead.model.registry.slices import slice_of
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from harness.front_ends.agent_channel import AgentEnd, seen, server
from harness.language import parse_model
from harness.step_counter import longest_between_yields
from harness.step_limits import MAX_STEPS

PLACE, WEB = ProxyPlace("pool", "demo"), Owner(Kind.LOAD_BALANCER, "web")
HERE = {"pool/demo": frozenset({2000})}


def serving(snapshot: Snapshot) -> dict[str, frozenset[int]]:
    return {identity: proxy.serving for identity, proxy in snapshot.proxies.items()}


async def test_every_host_receives_proxy_listeners_and_affected_load_balancers(tmp_path: Path):
    async with server(tmp_path) as first:
        one, two = (AgentEnd(first.channel, SliceBuilder(name)) for name in ("one", "two"))
        one.listen()
        two.listen()
        one.notified_owners.clear()
        await first.connect_agent("two", HERE)
        for each in (one, two):
            assert serving(each.slice.snapshot) == {"pool/demo/two": frozenset({2000})}
            assert each.slice.snapshot.proxies == slice_of(first.model.snapshot, each.slice.name).proxies
        assert one.notified_owners == [WEB]
        await first.connect_agent("two", {})
        assert serving(one.slice.snapshot) == {}
        assert one.notified_owners == [WEB, WEB]


async def test_proxy_reports_of_other_hosts_and_networks_are_ignored(tmp_path: Path):
    async with server(tmp_path) as first:
        said = {"pool/demo/one": frozenset({2000}), "net1/demo": frozenset({2000}), "pool": frozenset({1})}
        await first.connect_agent("stranger", HERE)
        await first.connect_agent("two", said)
        assert serving(first.model.snapshot) == {}


async def test_reported_proxies_stay_valid_across_a_server_restart(tmp_path: Path):
    one = AgentEnd(None, SliceBuilder("one"))  # type: ignore[arg-type]
    async with server(tmp_path) as first:
        one.channel = first.channel
        one.listen()
        await first.connect_agent("one", HERE)
        await first.connect_agent("two", HERE)
    async with server(tmp_path, "second") as second:
        one.channel = second.channel
        one.listen()
        assert one.listing_count == 2
        assert serving(one.slice.snapshot) == {host_proxy_id(PLACE, name): HERE["pool/demo"] for name in ("one", "two")}
        await second.connect_agent("two", {})
        assert serving(one.slice.snapshot) == {"pool/demo/one": HERE["pool/demo"]}
        await second.connect_agent("one", HERE)
        assert serving(one.slice.snapshot) == serving(second.model.snapshot)


async def test_host_declared_later_receives_proxies_of_all_other_hosts(tmp_path: Path):
    async with server(tmp_path) as first:
        await first.connect_agent("one", HERE)
        three = AgentEnd(first.channel, SliceBuilder("three"))
        three.listen()
        assert serving(three.slice.snapshot) == {}
        host = parse_model("host three 3 10.20.0.23 10.3.0.0/24", {})[0]
        await first.model.write(lambda _: Changes(puts=tuple(host.values())))
        await first.send_pending()
        assert serving(three.slice.snapshot) == {"pool/demo/one": HERE["pool/demo"]}


async def test_proxy_change_during_the_initial_transfer_is_sent_in_order(tmp_path: Path):
    many = {"pool/demo": frozenset(range(20_000, 32_000))}

    async with server(tmp_path) as first:
        await first.connect_agent("one", many)
        await first.connect_agent("two", many)
        three = AgentEnd(first.channel, SliceBuilder("three"))
        three.listen()
        host = parse_model("host three 3 10.20.0.23 10.3.0.0/24", {})[0]
        await first.model.write(lambda _: Changes(puts=tuple(host.values())))
        looking = first.channel.recompute_reaches()
        next(looking)
        run_to_completion(first.model.observe(PROXIES, {"pool/demo/two": None}))
        run_to_completion(looking)
        await first.send_pending()
        assert three.slice.snapshot.proxies == first.model.snapshot.proxies


def test_proxies_of_many_hosts_are_sent_and_read_in_short_steps():
    hosts, places = [f"host{number}" for number in range(50)], [f"pool/project{number}" for number in range(100)]
    everywhere = Proxy(serving=frozenset(range(20_000, 20_100)))
    snapshot = Snapshot(
        hosts=Map({name: Host(name=name, number=1, addresses=(), prefixes=()) for name in hosts}),
        agents=Map({name: seen(name) for name in hosts}),
        proxies=Map({f"{place}/{name}": everywhere for place in places for name in hosts}),
    )
    pieces, telling = longest_between_yields(DocumentCache(lambda: snapshot).host_proxies(snapshot, hosts))
    slice_ = SliceBuilder("host1")
    told = [list_line(snapshot), *(line for piece in pieces for line in piece.splitlines())]
    for text in told:
        run_to_completion(slice_.take(read_line(text)))
    _, hearing = longest_between_yields(slice_.take(read_line(at_line("first:1", 1))))
    assert slice_.snapshot.proxies == snapshot.proxies
    assert max(telling, hearing) < MAX_STEPS["api"]

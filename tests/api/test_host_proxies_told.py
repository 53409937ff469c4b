"""Listeners served by proxies of plain hosts: from a report to the slices of all hosts, and across server restarts."""

from pathlib import Path

from immutables import Map

from fairlead.agent_protocol.slice_lines import Slice, at_line, list_line, read_line
from fairlead.api.agents.document_cache import Texts
from fairlead.model.documents.hosts import Host
from fairlead.model.documents.observed_proxy import Proxy
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.proxy_place import ProxyPlace, host_proxy_id
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.facts import PROXIES
from fairlead.model.registry.slices import slice_of
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import at_once
from harness.front_ends.agent_channel import Listener, seen, server
from harness.hold import MAX_STEPS
from harness.language import parse_model
from harness.step_counter import longest_between_yields

PLACE, WEB = ProxyPlace("pool", "demo"), Owner(Kind.LOAD_BALANCER, "web")
HERE = {"pool/demo": frozenset({2000})}


def serving(snapshot: Snapshot) -> dict[str, frozenset[int]]:
    return {identity: proxy.serving for identity, proxy in snapshot.proxies.items()}


async def test_every_host_hears_what_a_proxy_serves_and_whom_that_concerns(tmp_path: Path):
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


async def test_nobody_speaks_for_others_or_of_what_is_on_no_host(tmp_path: Path):
    async with server(tmp_path) as first:
        said = {"pool/demo/one": frozenset({2000}), "net1/demo": frozenset({2000}), "pool": frozenset({1})}
        await first.hear("stranger", HERE)
        await first.hear("two", said)
        assert serving(first.model.snapshot) == {}


async def test_what_a_server_that_begins_has_not_heard_yet_holds(tmp_path: Path):
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
        assert serving(one.slice.snapshot) == {host_proxy_id(PLACE, name): HERE["pool/demo"] for name in ("one", "two")}
        await second.hear("two", {})
        assert serving(one.slice.snapshot) == {"pool/demo/one": HERE["pool/demo"]}
        await second.hear("one", HERE)
        assert serving(one.slice.snapshot) == serving(second.model.snapshot)


async def test_a_host_that_is_declared_later_hears_of_all_others(tmp_path: Path):
    async with server(tmp_path) as first:
        await first.hear("one", HERE)
        three = Listener(first.channel, Slice("three"))
        three.listen()
        assert serving(three.slice.snapshot) == {}
        host = parse_model("host three 3 10.20.0.23 10.3.0.0/24", {})[0]
        await first.model.write(lambda _: Changes(puts=tuple(host.values())))
        await first.rest()
        assert serving(three.slice.snapshot) == {"pool/demo/one": HERE["pool/demo"]}


async def test_what_changes_while_a_host_is_told_of_all_others_is_not_told_before_what_it_was(tmp_path: Path):
    many = {"pool/demo": frozenset(range(20_000, 32_000))}

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


def test_proxies_of_many_hosts_are_told_and_heard_without_holding_anybody_up():
    hosts, places = [f"host{number}" for number in range(50)], [f"pool/project{number}" for number in range(100)]
    everywhere = Proxy(serving=frozenset(range(20_000, 20_100)))
    snapshot = Snapshot(
        hosts=Map({name: Host(name=name, number=1, addresses=(), prefixes=()) for name in hosts}),
        agents=Map({name: seen(name) for name in hosts}),
        proxies=Map({f"{place}/{name}": everywhere for place in places for name in hosts}),
    )
    pieces, telling = longest_between_yields(Texts(lambda: snapshot).host_proxies(snapshot, hosts))
    slice_ = Slice("host1")
    told = [list_line(snapshot), *(line for piece in pieces for line in piece.splitlines())]
    for text in told:
        at_once(slice_.take(read_line(text)))
    _, hearing = longest_between_yields(slice_.take(read_line(at_line("first:1", 1))))
    assert slice_.snapshot.proxies == snapshot.proxies
    assert max(telling, hearing) < MAX_STEPS["api"]

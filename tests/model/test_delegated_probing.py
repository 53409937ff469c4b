"""Assignment of probes to nodes: their own members, and delegated probing for unresponsive nodes."""

from dataclasses import replace
from datetime import UTC, datetime

from immutables import Map

from fairlead.changes.probe_ports import make_probe_ports
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.agent import Agent, find_stale
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.network import PortUse
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.probe_result import Sighting
from fairlead.model.queries.delegated_probing import (
    choose,
    find_cover,
    has_agent,
    hostless_places,
    known_of,
    place_of,
    probes_here,
    stale_nodes,
    untold_nodes,
    watched_places,
)
from fairlead.model.queries.probe_devices import cover_device, coverless_subnets
from fairlead.model.queries.probes import cover_port_id, endpoints, why_down
from fairlead.model.registry.changeset import Changes, apply_changes, with_foreign
from fairlead.model.registry.facts import AGENTS, AGENTS_PROBE, CHASSIS, COVERING, PLUGGED, SIGHTINGS, Fact, with_facts
from fairlead.model.snapshot import Snapshot
from harness.probes import API, FIRST, MODEL, SECOND, WEB, snapshot_of
from harness.story import parse_model

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def node(name: str, *ports: str, alive: bool = True) -> Chassis:
    return Chassis(name=name, host=f"{name}.example", ports=Map(dict.fromkeys(ports, True)), alive=alive)


def agent(name: str, *, heard: bool = True) -> Agent:
    return Agent(name=name, since=NOON, heartbeat=5.0, heard=heard)


def seen(health: Health, chassis: str) -> Sighting:
    return Sighting(health=health, chassis=chassis, since=NOON)


SITE = replace(
    snapshot_of(MODEL),
    chassis=Map({"one": node("one", "vm1"), "two": node("two", "vm2"), "three": node("three")}),
    plugged=Map({"vm1": "one.example", "vm2": "two.example"}),
    agents=Map({"one": agent("one"), "two": agent("two"), "three": agent("three")}),
)
STALE = replace(SITE, agents=SITE.agents.set("one", agent("one", heard=False)))
NOBODYS = """
network net1 10.0.0.0/24
web vip=10.0.0.10 on=net1 tcp:80{monitor=TCP}=a/10.0.0.11:80,b/198.51.100.7:80,c/10.0.0.1:80
""".strip()
EVERYWHERE = ("one", "two", "three", "four")


def test_a_node_probes_what_it_hosts_and_nobody_else_does():
    assert [name for name in SITE.chassis if probes_here(SITE, name, FIRST)] == ["one"]
    assert not probes_here(SITE, "nobody", FIRST)
    assert not probes_here(SITE, "one", Endpoint("vm9", parse_address("10.0.0.11"), 80, Transport.TCP))


def test_the_places_of_a_stale_agent_are_covered_by_one_that_is_heard():
    assert list(stale_nodes(SITE)) == []
    assert list(stale_nodes(STALE)) == ["one"]
    assert list(watched_places(STALE, "one")) == [("vm1", "net1")]
    chosen = find_cover(STALE, "net1", lambda _: EVERYWHERE)
    assert chosen in {"two", "three"}
    covered = replace(STALE, covered=Map({"vm1": chosen}))
    assert probes_here(covered, chosen, FIRST)
    assert not probes_here(covered, chosen, SECOND) or chosen == "two"


def test_nobody_covers_what_no_heard_agent_reaches():
    assert find_cover(STALE, "net1", lambda _: ("one", "four")) is None


def test_nobody_covers_what_is_on_networks_of_others():
    documents, _ = parse_model("network theirs by=neutron 10.9.0.0/24", {})
    snapshot = with_foreign(SITE, documents)
    assert find_cover(snapshot, "theirs", lambda _: EVERYWHERE) is None
    assert find_cover(snapshot, "net1", lambda _: EVERYWHERE) is not None


def test_a_member_at_nobodys_port_is_down_until_somebody_has_seen_it_answer():
    before = replace(snapshot_of(NOBODYS), agents=SITE.agents)
    by_ovn, _ = observe(before, AGENTS_PROBE, False)
    assert (by_ovn.down["web"], list(hostless_places(by_ovn))) == ({"web-a", "web-b", "web-c"}, [])
    site, _ = observe(before, AGENTS_PROBE, True)
    assert (site.down["web"], why(site)) == ({"web-a", "web-b", "web-c"}, dict.fromkeys("abc", Health.GONE))
    assert sorted(hostless_places(site)) == [("net1/10.0.0.11", "net1"), ("net1/198.51.100.7", "net1")]
    found = {str(each.address): each for each in endpoints(site, site.load_balancers["web"])}
    assert found.keys() == {"10.0.0.11", "198.51.100.7"}, "c is a gateway"
    up, told = observe(site, SIGHTINGS, {found["10.0.0.11"]: seen(Health.ONLINE, "one")})
    assert (up.down["web"], told) == ({"web-b", "web-c"}, (WEB,))
    cover = cover_port_id("10.0.0.0/24")
    assert coverless_subnets(site, site.load_balancers["web"]) == {"10.0.0.0/24": "net1"}
    (made,) = make_probe_ports(site, site.load_balancers["web"], NOON)
    assert (made.id, made.use) == (cover, PortUse.PROBE)
    after = apply_changes(site, Changes(puts=(made,)), 2)
    assert coverless_subnets(after, after.load_balancers["web"]) == {}
    device = cover_device(after, after.networks["net1"])
    assert device is not None
    assert (device.port_name, device.addresses) == ("cover-net1", (made.fixed_ips[0].address,))
    assert [str(each) for each in device.gateways] == ["10.0.0.1"]


def test_what_is_nobodys_on_a_network_of_another_project_is_not_probed():
    shared = NOBODYS.replace("network net1 10.0.0.0/24", "network net1 shared project=city 10.0.0.0/24")
    site, _ = observe(snapshot_of(shared), AGENTS_PROBE, True)
    assert list(hostless_places(site)) == []
    assert list(endpoints(site, site.load_balancers["web"])) == []


def test_a_new_cover_concerns_the_network_which_has_its_port():
    assert list(COVERING.concerns(SITE, SITE, {"net1": "two", "gone": None})) == [Owner(Kind.NETWORK, "net1")]


def why(snapshot: Snapshot) -> dict[str, Health]:
    found = why_down(snapshot, snapshot.load_balancers["web"])
    return {each.removeprefix("web-"): health for each, health in found.items()}


def test_an_address_without_a_port_is_a_place_of_its_own():
    nowhere = Endpoint("", parse_address("192.0.2.1"), 80, Transport.TCP, "net1")
    assert place_of(nowhere) == "net1/192.0.2.1"
    assert not probes_here(SITE, "one", nowhere)
    assert probes_here(replace(SITE, covered=Map({"net1/192.0.2.1": "one"})), "one", nowhere)


def test_when_a_node_goes_only_its_own_networks_move():
    places = [f"net{number}" for number in range(1000)]
    before = {place: choose(EVERYWHERE, place) for place in places}
    after = {place: choose(EVERYWHERE[:3], place) for place in places}
    assert all(before[place] == after[place] for place in places if before[place] != "four")
    assert 200 < list(before.values()).count("four") < 300
    assert choose((), "net1") is None


def test_what_was_seen_last_holds_until_somebody_has_seen_something_else():
    up = with_facts(SITE, SIGHTINGS, {FIRST: seen(Health.ONLINE, "one")})
    silent = with_facts(up, AGENTS, {"one": agent("one", heard=False)})
    assert (known_of(up, FIRST), known_of(silent, FIRST)) == (Health.ONLINE, Health.ONLINE)
    failed = with_facts(silent, SIGHTINGS, {FIRST: seen(Health.ERROR, "two")})
    assert known_of(failed, FIRST) is Health.ERROR


def test_a_server_that_begins_waits_for_what_nodes_see_and_not_for_their_first_word():
    """A new server waits for complete probe results of a node, not only for its agent's first message."""
    begun = with_facts(SITE, AGENTS_PROBE, True)
    assert set(untold_nodes(begun)) == {"one", "two"}
    told = with_facts(begun, SIGHTINGS, {FIRST: seen(Health.ERROR, "one"), SECOND: seen(Health.ONLINE, "two")})
    assert set(untold_nodes(told)) == {"one", "two"}  # further results may follow
    told = with_facts(told, AGENTS, {"one": replace(agent("one"), told=True)})
    assert list(untold_nodes(told)) == ["two"]
    assert list(untold_nodes(with_facts(told, AGENTS, {"two": replace(agent("two"), told=True)}))) == []
    assert set(untold_nodes(with_facts(told, SIGHTINGS, {FIRST: None}))) == {"one", "two"}
    assert list(untold_nodes(with_facts(begun, AGENTS_PROBE, False))) == []


def test_an_agents_word_goes_before_that_of_ovn():
    both = replace(SITE, health=Map({FIRST: Health.ERROR, SECOND: Health.ERROR}))
    both = with_facts(both, SIGHTINGS, {FIRST: seen(Health.ONLINE, "one")})
    assert (known_of(both, FIRST), known_of(both, SECOND)) == (Health.ONLINE, Health.ERROR)


def test_a_machine_that_is_on_no_node_any_more_is_down_at_once():
    up = with_facts(SITE, SIGHTINGS, {FIRST: seen(Health.ONLINE, "one")})
    gone = with_facts(with_facts(up, CHASSIS, {"one": node("one")}), PLUGGED, {"vm1": None})
    assert known_of(gone, FIRST) is Health.UNPLUGGED
    moved = with_facts(up, CHASSIS, {"one": node("one"), "two": node("two", "vm1", "vm2")})
    assert known_of(moved, FIRST) is Health.ONLINE


def test_a_dead_chassis_strands_what_nobody_covers():
    up = with_facts(SITE, SIGHTINGS, {FIRST: seen(Health.ONLINE, "one")})
    dead = with_facts(up, CHASSIS, {"one": node("one", "vm1", alive=False)})
    assert known_of(dead, FIRST) is Health.STRANDED
    assert known_of(with_facts(dead, SIGHTINGS, {FIRST: seen(Health.ONLINE, "two")}), FIRST) is Health.ONLINE


def test_members_go_down_and_come_back_by_what_agents_see():
    before, failed = SITE, {FIRST: seen(Health.ERROR, "one")}
    after, told = observe(before, SIGHTINGS, failed)
    assert (dict(after.down), told) == ({"web": {"web-a"}, "api": {"api-c"}}, (API, WEB))
    back, told = observe(after, SIGHTINGS, {FIRST: seen(Health.ONLINE, "one")})
    assert (dict(back.down), told) == ({}, (API, WEB))


def test_a_chassis_that_dies_takes_those_with_it_that_its_agent_saw():
    up, _ = observe(SITE, SIGHTINGS, {FIRST: seen(Health.ONLINE, "one")})
    dead, told = observe(up, CHASSIS, {"one": node("one", "vm1", alive=False)})
    assert (dict(dead.down), told) == ({"web": {"web-a"}, "api": {"api-c"}}, (API, WEB))


def test_a_new_agent_concerns_whoever_is_probed_on_its_chassis():
    without = replace(SITE, agents=SITE.agents.delete("one"))
    assert has_agent(SITE, "vm1")
    assert not has_agent(without, "vm1")
    assert list(AGENTS.concerns(without, SITE, {"one": agent("one")})) == [API, WEB]
    assert list(AGENTS.concerns(SITE, STALE, {"one": agent("one", heard=False)})) == []


def test_three_heartbeats_of_silence_are_too_many():
    beats = dict.fromkeys("abc", 5.0)
    assert find_stale({"a": 15.0, "b": 0.0, "c": 1.0}, beats, ()) == frozenset()
    assert find_stale({"a": 15.1, "b": 0.0, "c": 1.0}, beats, ()) == {"a"}


def test_if_most_fall_silent_at_once_it_is_the_server_that_hears_nobody():
    beats = dict.fromkeys("abcd", 5.0)
    assert find_stale({"a": 16.0, "b": 16.0, "c": 16.0, "d": 1.0}, beats, ()) == frozenset()
    assert find_stale({"a": 16.0, "b": 16.0, "c": 1.0, "d": 1.0}, beats, ()) == {"a", "b"}
    assert find_stale({"a": 99.0, "b": 16.0, "c": 16.0, "d": 1.0}, beats, {"a"}) == {"a"}
    assert find_stale({"a": 16.0}, {"a": 5.0}, ()) == {"a"}


def observe(snapshot: Snapshot, fact: Fact, news: object) -> tuple[Snapshot, tuple]:
    learned = with_facts(snapshot, fact, news)
    concerned = tuple(fact.concerns(snapshot, learned, news))
    after = fact.derive(learned, concerned)
    return after, fact.differing(snapshot, after, concerned)

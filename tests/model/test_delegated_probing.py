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
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.model.queries.delegated_probing import (
    derive_endpoint_health,
    find_delegate,
    has_agent,
    list_monitored_places,
    list_places_without_port,
    nodes_without_full_report,
    probe_place,
    probes_here,
    select_by_rendezvous,
    stale_nodes,
)
from fairlead.model.queries.probe_devices import delegate_device, subnets_without_delegate_port
from fairlead.model.queries.probes import delegate_port_id, endpoints, why_down
from fairlead.model.registry.changeset import Changes, apply_changes, with_unmanaged
from fairlead.model.registry.facts import (
    AGENTS,
    AGENTS_PROBE,
    CHASSIS,
    DELEGATE_PORTS,
    PLUGGED,
    PROBE_RESULTS,
    Fact,
    with_facts,
)
from fairlead.model.snapshot import Snapshot
from harness.case import parse_model
from harness.probes import API, FIRST, MODEL, SECOND, WEB, snapshot_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def node(name: str, *ports: str, alive: bool = True) -> Chassis:
    return Chassis(name=name, host=f"{name}.example", ports=Map(dict.fromkeys(ports, True)), alive=alive)


def agent(name: str, *, heard: bool = True) -> Agent:
    return Agent(name=name, since=NOON, heartbeat=5.0, is_responsive=heard)


def seen(health: Health, chassis: str) -> ProbeResult:
    return ProbeResult(health=health, chassis=chassis, since=NOON)


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


def test_only_the_hosting_node_probes_a_member():
    assert [name for name in SITE.chassis if probes_here(SITE, name, FIRST)] == ["one"]
    assert not probes_here(SITE, "nobody", FIRST)
    assert not probes_here(SITE, "one", Endpoint("vm9", parse_address("10.0.0.11"), 80, Transport.TCP))


def test_ports_of_a_stale_node_are_probed_by_a_responsive_node():
    assert list(stale_nodes(SITE)) == []
    assert list(stale_nodes(STALE)) == ["one"]
    assert list(list_monitored_places(STALE, "one")) == [("vm1", "net1")]
    chosen = find_delegate(STALE, "net1", lambda _: EVERYWHERE)
    assert chosen in {"two", "three"}
    covered = replace(STALE, covered=Map({"vm1": chosen}))
    assert probes_here(covered, chosen, FIRST)
    assert not probes_here(covered, chosen, SECOND) or chosen == "two"


def test_no_node_is_delegated_if_no_responsive_agent_reaches_the_network():
    assert find_delegate(STALE, "net1", lambda _: ("one", "four")) is None


def test_unmanaged_networks_have_no_delegated_probing():
    documents, _ = parse_model("network theirs by=neutron 10.9.0.0/24", {})
    snapshot = with_unmanaged(SITE, documents)
    assert find_delegate(snapshot, "theirs", lambda _: EVERYWHERE) is None
    assert find_delegate(snapshot, "net1", lambda _: EVERYWHERE) is not None


def test_member_address_without_a_port_is_down_until_a_probe_succeeds():
    before = replace(snapshot_of(NOBODYS), agents=SITE.agents)
    by_ovn, _ = observe(before, AGENTS_PROBE, False)
    assert (by_ovn.down["web"], list(list_places_without_port(by_ovn))) == ({"web-a", "web-b", "web-c"}, [])
    site, _ = observe(before, AGENTS_PROBE, True)
    assert (site.down["web"], why(site)) == ({"web-a", "web-b", "web-c"}, dict.fromkeys("abc", Health.GONE))
    assert sorted(list_places_without_port(site)) == [("net1/10.0.0.11", "net1"), ("net1/198.51.100.7", "net1")]
    found = {str(each.address): each for each in endpoints(site, site.load_balancers["web"])}
    assert found.keys() == {"10.0.0.11", "198.51.100.7"}, "c is a gateway"
    up, told = observe(site, PROBE_RESULTS, {found["10.0.0.11"]: seen(Health.ONLINE, "one")})
    assert (up.down["web"], told) == ({"web-b", "web-c"}, (WEB,))
    cover = delegate_port_id("10.0.0.0/24")
    assert subnets_without_delegate_port(site, site.load_balancers["web"]) == {"10.0.0.0/24": "net1"}
    (made,) = make_probe_ports(site, site.load_balancers["web"], NOON)
    assert (made.id, made.use) == (cover, PortUse.PROBE)
    after = apply_changes(site, Changes(puts=(made,)), 2)
    assert subnets_without_delegate_port(after, after.load_balancers["web"]) == {}
    device = delegate_device(after, after.networks["net1"])
    assert device is not None
    assert (device.port_name, device.addresses) == ("cover-net1", (made.fixed_ips[0].address,))
    assert [str(each) for each in device.gateways] == ["10.0.0.1"]


def test_portless_member_on_a_network_of_another_project_is_not_probed():
    shared = NOBODYS.replace("network net1 10.0.0.0/24", "network net1 shared project=city 10.0.0.0/24")
    site, _ = observe(snapshot_of(shared), AGENTS_PROBE, True)
    assert list(list_places_without_port(site)) == []
    assert list(endpoints(site, site.load_balancers["web"])) == []


def test_new_delegated_prober_affects_only_its_network():
    assert list(DELEGATE_PORTS.affected_owners(SITE, SITE, {"net1": "two", "gone": None})) == [
        Owner(Kind.NETWORK, "net1")
    ]


def why(snapshot: Snapshot) -> dict[str, Health]:
    found = why_down(snapshot, snapshot.load_balancers["web"])
    return {each.removeprefix("web-"): health for each, health in found.items()}


def test_address_without_a_port_is_keyed_by_network_and_address():
    nowhere = Endpoint("", parse_address("192.0.2.1"), 80, Transport.TCP, "net1")
    assert probe_place(nowhere) == "net1/192.0.2.1"
    assert not probes_here(SITE, "one", nowhere)
    assert probes_here(replace(SITE, covered=Map({"net1/192.0.2.1": "one"})), "one", nowhere)


def test_removed_node_moves_only_its_own_networks_to_other_probers():
    places = [f"net{number}" for number in range(1000)]
    before = {place: select_by_rendezvous(EVERYWHERE, place) for place in places}
    after = {place: select_by_rendezvous(EVERYWHERE[:3], place) for place in places}
    assert all(before[place] == after[place] for place in places if before[place] != "four")
    assert 200 < list(before.values()).count("four") < 300
    assert select_by_rendezvous((), "net1") is None


def test_last_probe_result_holds_until_a_newer_one_arrives():
    up = with_facts(SITE, PROBE_RESULTS, {FIRST: seen(Health.ONLINE, "one")})
    silent = with_facts(up, AGENTS, {"one": agent("one", heard=False)})
    assert (derive_endpoint_health(up, FIRST), derive_endpoint_health(silent, FIRST)) == (Health.ONLINE, Health.ONLINE)
    failed = with_facts(silent, PROBE_RESULTS, {FIRST: seen(Health.ERROR, "two")})
    assert derive_endpoint_health(failed, FIRST) is Health.ERROR


def test_new_server_waits_for_complete_probe_results_of_each_node():
    """A new server waits for complete probe results of a node, not only for its agent's first message."""
    begun = with_facts(SITE, AGENTS_PROBE, True)
    assert set(nodes_without_full_report(begun)) == {"one", "two"}
    told = with_facts(begun, PROBE_RESULTS, {FIRST: seen(Health.ERROR, "one"), SECOND: seen(Health.ONLINE, "two")})
    assert set(nodes_without_full_report(told)) == {"one", "two"}  # further results may follow
    told = with_facts(told, AGENTS, {"one": replace(agent("one"), has_full_report=True)})
    assert list(nodes_without_full_report(told)) == ["two"]
    assert (
        list(nodes_without_full_report(with_facts(told, AGENTS, {"two": replace(agent("two"), has_full_report=True)})))
        == []
    )
    assert set(nodes_without_full_report(with_facts(told, PROBE_RESULTS, {FIRST: None}))) == {"one", "two"}
    assert list(nodes_without_full_report(with_facts(begun, AGENTS_PROBE, False))) == []


def test_agent_probe_result_takes_precedence_over_ovn():
    both = replace(SITE, health=Map({FIRST: Health.ERROR, SECOND: Health.ERROR}))
    both = with_facts(both, PROBE_RESULTS, {FIRST: seen(Health.ONLINE, "one")})
    assert (derive_endpoint_health(both, FIRST), derive_endpoint_health(both, SECOND)) == (Health.ONLINE, Health.ERROR)


def test_member_unplugged_from_every_node_is_down_immediately():
    up = with_facts(SITE, PROBE_RESULTS, {FIRST: seen(Health.ONLINE, "one")})
    gone = with_facts(with_facts(up, CHASSIS, {"one": node("one")}), PLUGGED, {"vm1": None})
    assert derive_endpoint_health(gone, FIRST) is Health.UNPLUGGED
    moved = with_facts(up, CHASSIS, {"one": node("one"), "two": node("two", "vm1", "vm2")})
    assert derive_endpoint_health(moved, FIRST) is Health.ONLINE


def test_member_on_a_dead_chassis_is_stranded_without_a_delegated_result():
    up = with_facts(SITE, PROBE_RESULTS, {FIRST: seen(Health.ONLINE, "one")})
    dead = with_facts(up, CHASSIS, {"one": node("one", "vm1", alive=False)})
    assert derive_endpoint_health(dead, FIRST) is Health.STRANDED
    assert (
        derive_endpoint_health(with_facts(dead, PROBE_RESULTS, {FIRST: seen(Health.ONLINE, "two")}), FIRST)
        is Health.ONLINE
    )


def test_members_go_down_and_up_by_agent_probe_results():
    before, failed = SITE, {FIRST: seen(Health.ERROR, "one")}
    after, told = observe(before, PROBE_RESULTS, failed)
    assert (dict(after.down), told) == ({"web": {"web-a"}, "api": {"api-c"}}, (API, WEB))
    back, told = observe(after, PROBE_RESULTS, {FIRST: seen(Health.ONLINE, "one")})
    assert (dict(back.down), told) == ({}, (API, WEB))


def test_dead_chassis_takes_its_probed_members_down():
    up, _ = observe(SITE, PROBE_RESULTS, {FIRST: seen(Health.ONLINE, "one")})
    dead, told = observe(up, CHASSIS, {"one": node("one", "vm1", alive=False)})
    assert (dict(dead.down), told) == ({"web": {"web-a"}, "api": {"api-c"}}, (API, WEB))


def test_new_agent_affects_load_balancers_probed_on_its_chassis():
    without = replace(SITE, agents=SITE.agents.delete("one"))
    assert has_agent(SITE, "vm1")
    assert not has_agent(without, "vm1")
    assert list(AGENTS.affected_owners(without, SITE, {"one": agent("one")})) == [API, WEB]
    assert list(AGENTS.affected_owners(SITE, STALE, {"one": agent("one", heard=False)})) == []


def test_agent_is_stale_after_three_missed_heartbeats():
    beats = dict.fromkeys("abc", 5.0)
    assert find_stale({"a": 15.0, "b": 0.0, "c": 1.0}, beats, ()) == frozenset()
    assert find_stale({"a": 15.1, "b": 0.0, "c": 1.0}, beats, ()) == {"a"}


def test_no_agent_becomes_stale_when_most_fall_silent_together():
    beats = dict.fromkeys("abcd", 5.0)
    assert find_stale({"a": 16.0, "b": 16.0, "c": 16.0, "d": 1.0}, beats, ()) == frozenset()
    assert find_stale({"a": 16.0, "b": 16.0, "c": 1.0, "d": 1.0}, beats, ()) == {"a", "b"}
    assert find_stale({"a": 99.0, "b": 16.0, "c": 16.0, "d": 1.0}, beats, {"a"}) == {"a"}
    assert find_stale({"a": 16.0}, {"a": 5.0}, ()) == {"a"}


def observe(snapshot: Snapshot, fact: Fact, news: object) -> tuple[Snapshot, tuple]:
    learned = with_facts(snapshot, fact, news)
    concerned = tuple(fact.affected_owners(snapshot, learned, news))
    after = fact.derive(learned, concerned)
    return after, fact.filter_changed(snapshot, after, concerned)

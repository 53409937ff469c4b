"""Facts: each kind is declared once, has one way to change, and lists the owners that it affects."""

from dataclasses import fields, replace
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any

import pytest
from immutables import Map

from fairlead.model.documents.agent import Agent
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.health import Health
from fairlead.model.documents.observed_proxy import Proxy, ProxyPortChanges
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.model.documents.proxy_place import ProxyPlace
from fairlead.model.queries.probes import members_health, why_down, why_unknown
from fairlead.model.queries.proxies import find_proxies_not_serving, proxy_port_id
from fairlead.model.registry.changeset import Changes, apply_changes, index_names
from fairlead.model.registry.facts import (
    ABILITIES,
    AGENTS,
    AGENTS_PROBE,
    CHASSIS,
    COUNT_REPLY_BYTES,
    DELEGATE_PORTS,
    DELEGATES,
    DERIVED_FIELDS,
    EXTERNAL_ALLOCATIONS,
    FACTS,
    GATEWAY_CHASSIS,
    HEALTH,
    OWN_ADDRESSES,
    PLUGGED,
    PROBE_RESULTS,
    PROXIED_PROVIDERS,
    PROXIES,
    PROXY_PORT_CHANGES,
    RECOVERED_MEMBERS,
    REJECTED_PROXY_PORTS,
    UNREACHABLE_HOSTS,
    Fact,
    derive,
    ports_on,
    with_facts,
)
from fairlead.model.registry.kinds import KINDS
from fairlead.model.snapshot import Snapshot, map_name
from harness.case import parse_model
from harness.probes import API, FIRST, MODEL, SECOND, WEB, observe, snapshot_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
AGENT = Agent(name="node1", since=NOON, heartbeat=5.0)
SIGHTING = ProbeResult(health=Health.ERROR, chassis="node1", since=NOON)
PLACE, ELSEWHERE = ProxyPlace("net1", "demo"), ProxyPlace("net2", "demo")
OWN = frozenset({ip_address("10.1.0.1")})
GIVEN = Map({ip_address("192.0.2.9"): True})
WANTED = ProxyPortChanges(create_on=("node1",), delete=("port",))
NODE = Chassis(name="node1", host="node1.example", ports=Map({"vm1": True, "vm2": False}))


def test_each_fact_is_a_snapshot_field_that_no_document_changes():
    names = [fact.field for fact in FACTS if fact.apply is None]
    assert len(set(names)) == len(names)
    assert set(names) | DERIVED_FIELDS <= {field.name for field in fields(Snapshot)}
    assert not (set(names) | DERIVED_FIELDS) & ({map_name(kind) for kind in KINDS} | index_names())


@pytest.mark.parametrize(
    ("fact", "news", "known"),
    [
        (HEALTH, {FIRST: Health.ERROR, SECOND: None}, Map({FIRST: Health.ERROR})),
        (PROBE_RESULTS, {FIRST: SIGHTING, SECOND: None}, Map({FIRST: SIGHTING})),
        (AGENTS, {"node1": AGENT, "node2": None}, Map({"node1": AGENT})),
        (DELEGATES, {"vm1": "node2", "vm2": None}, Map({"vm1": "node2"})),
        (DELEGATE_PORTS, {"net1": "node2", "net2": None}, Map({"net1": "node2"})),
        (CHASSIS, {"node1": NODE, "node2": None}, Map({"node1": NODE})),
        (PLUGGED, {"vm1": "node1", "vm2": None}, Map({"vm1": "node1"})),
        (ABILITIES, frozenset({"more"}), frozenset({"more"})),
        (AGENTS_PROBE, True, True),
        (PROXIES, {"proxy": Proxy(), "other": None}, Map({"proxy": Proxy()})),
        (PROXY_PORT_CHANGES, {PLACE: WANTED, ELSEWHERE: None}, Map({PLACE: WANTED})),
        (REJECTED_PROXY_PORTS, {"net1": "no", "net2": None}, Map({"net1": "no"})),
        (PROXIED_PROVIDERS, frozenset({"fairlead"}), frozenset({"fairlead"})),
        (COUNT_REPLY_BYTES, True, True),
        (GATEWAY_CHASSIS, ("gw1",), ("gw1",)),
        (UNREACHABLE_HOSTS, frozenset({"host1"}), frozenset({"host1"})),
        (OWN_ADDRESSES, {"host1": OWN, "host2": None}, Map({"host1": OWN})),
        (RECOVERED_MEMBERS, Map({"web": frozenset({"a"})}), Map({"web": frozenset({"a"})})),
        (EXTERNAL_ALLOCATIONS, {ip_address("192.0.2.9"): True, ip_address("2001:db8::9"): None}, GIVEN),
    ],
    ids=[fact.field for fact in FACTS if fact.apply is None],
)
def test_fact_update_changes_only_the_field_of_that_fact(fact: Fact[Any], news: Any, known: Any):
    before = snapshot_of(MODEL)
    after = with_facts(before, fact, news)
    assert getattr(after, fact.field) == known
    assert replace(after, **{fact.field: getattr(before, fact.field)}) == before
    assert with_facts(after, fact, news) == after


def test_fact_updates_affect_the_expected_owners():
    documents, _ = parse_model("network out 192.0.2.0/24 external\nrouter r1 gateway:out=192.0.2.9", {})
    snapshot = apply_changes(snapshot_of(MODEL), Changes(puts=tuple(documents.values())), 2)
    assert list(HEALTH.affected_owners(snapshot, snapshot, {FIRST: Health.ERROR})) == [API, WEB]
    assert list(ABILITIES.affected_owners(snapshot, snapshot, frozenset())) == [*map(balancer, snapshot.load_balancers)]
    assert list(GATEWAY_CHASSIS.affected_owners(snapshot, snapshot, ())) == [Owner(Kind.ROUTER, "r1")]
    assert [
        *PLUGGED.affected_owners(snapshot, snapshot, {"vm1": None}),
        *CHASSIS.affected_owners(snapshot, snapshot, {"node1": None}),
    ] == []


def balancer(identity: str) -> Owner:
    return Owner(Kind.LOAD_BALANCER, identity)


def test_gone_unprobeable_and_unprobed_members_are_distinct_states():
    stranger = MODEL.replace("port vm2 net1 10.0.0.12", "port vm2 net1 10.0.0.12 project=other")
    snapshot = apply_changes(snapshot_of(stranger), Changes(deletes=(Owner(Kind.PORT, "vm1"),)), 2)
    snapshot = derive(snapshot, (WEB, API))
    web = snapshot.load_balancers["web"]
    gone = {"web-a": Health.GONE, "web-six": Health.GONE}
    assert dict(members_health(snapshot, web)) == {**gone, "web-b": Health.UNPROBEABLE}
    assert (why_down(snapshot, web), why_unknown(snapshot, web)) == (gone, {"web-b": Health.UNPROBEABLE})
    assert (dict(snapshot.down), dict(snapshot.online)) == ({"web": set(gone), "api": {"api-c"}}, {})
    snapshot, _ = observe(snapshot_of(MODEL), {FIRST: Health.ONLINE})
    assert dict(members_health(snapshot, web)) == {
        "web-a": Health.ONLINE,
        "web-b": Health.UNPROBED,
        "web-six": Health.UNPROBED,
    }


@pytest.mark.parametrize("health", [health for health in Health if health is not Health.PARTLY])
def test_every_health_value_is_exactly_one_of_online_down_or_unknown(health: Health):
    assert [health is Health.ONLINE, health.is_down, not health.is_known].count(True) == 1


def test_chassis_ports_include_ports_without_packet_flow():
    snapshot = with_facts(Snapshot(), CHASSIS, {"node1": NODE})
    assert (ports_on(snapshot, "node1"), ports_on(snapshot, "node2")) == ({"vm1", "vm2"}, None)


def test_proxy_that_starts_serving_affects_load_balancers_of_its_listeners():
    text = """
network net1 10.0.0.0/24
proxy chassis1 net1 10.0.0.61
web vip=10.0.0.10 on=net1 http:80{proxy=2000}=a/10.0.0.11:8080
api vip=10.0.0.20 on=net1 http:80{proxy=2001}=a/10.0.0.11:8080
ssh vip=10.0.0.30 on=net1 tcp:22=a/10.0.0.11:22"""
    old = snapshot_of(text.strip())
    port = proxy_port_id("net1", "chassis1")
    first = {port: Proxy(serving=frozenset({2000}))}
    new = with_facts(old, PROXIES, first)
    assert list(PROXIES.affected_owners(old, new, first)) == [WEB]
    both = {port: Proxy(serving=frozenset({2000, 2001, 2002}))}
    assert list(PROXIES.affected_owners(new, with_facts(new, PROXIES, both), both)) == [API]
    gone: dict[str, Proxy | None] = {port: None, "of nobody": None}
    assert list(PROXIES.affected_owners(new, with_facts(new, PROXIES, gone), gone)) == [WEB]
    alive = Chassis(name="chassis1", ports=Map({port: True}))
    known, dead = with_facts(new, CHASSIS, {"chassis1": alive}), {"chassis1": replace(alive, alive=False)}
    assert {API, WEB} <= set(CHASSIS.affected_owners(known, with_facts(known, CHASSIS, dead), dead))


def test_stale_agent_affects_load_balancers_with_proxies_on_its_chassis():
    text = """
network net1 10.0.0.0/24
proxy chassis1 net1 10.0.0.61
web vip=10.0.0.10 on=net1 http:80{proxy=2000}=a/10.0.0.11:8080"""
    heard = {"chassis1": replace(AGENT, name="chassis1")}
    node = Chassis(name="chassis1", ports=Map({proxy_port_id("net1", "chassis1"): True}))
    known = with_facts(with_facts(snapshot_of(text.strip()), CHASSIS, {"chassis1": node}), AGENTS, heard)
    silent = {"chassis1": replace(heard["chassis1"], is_responsive=False)}
    away = {"chassis1": replace(heard["chassis1"], is_disconnected=True)}
    for news in (silent, away):
        assert list(AGENTS.affected_owners(known, with_facts(known, AGENTS, news), news)) == [WEB]
    assert list(AGENTS.affected_owners(known, with_facts(known, AGENTS, heard), heard)) == []


def test_proxies_of_absent_agents_are_skipped_while_other_proxies_serve():
    text = """
network net1 10.0.0.0/24
proxy chassis1 net1 10.0.0.61
proxy chassis2 net1 10.0.0.62
web vip=10.0.0.10 on=net1 http:80{proxy=2000}=a/10.0.0.11:8080"""
    nodes = {name: Chassis(name=name) for name in ("chassis1", "chassis2")}
    ports = {name: proxy_port_id("net1", name) for name in nodes}
    serving = {port: Proxy(serving=frozenset({2000})) for port in ports.values()}
    known = with_facts(with_facts(snapshot_of(text.strip()), CHASSIS, nodes), PROXIES, serving)
    balancer = known.load_balancers["web"]
    agents = {name: replace(AGENT, name=name) for name in nodes}
    assert find_proxies_not_serving(with_facts(known, AGENTS, agents), balancer) == frozenset()
    for gone in ({"is_disconnected": True}, {"is_responsive": False}):
        one, both = ({name: replace(agents[name], **gone) for name in names} for names in (("chassis1",), (*nodes,)))
        there = with_facts(known, AGENTS, {**agents, **one})
        assert find_proxies_not_serving(there, balancer) == {f"web-http-80/{ports['chassis1']}"}
        assert find_proxies_not_serving(with_facts(known, AGENTS, both), balancer) == frozenset()

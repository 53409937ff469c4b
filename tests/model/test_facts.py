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
from fairlead.model.documents.observed_proxy import Proxy, WantedProxies
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.probe_result import Sighting
from fairlead.model.documents.proxy_place import ProxyPlace
from fairlead.model.queries.probes import members_health, why_down, why_unknown
from fairlead.model.queries.proxies import absent_proxies, proxy_port_id
from fairlead.model.registry.changeset import Changes, apply_changes, index_names
from fairlead.model.registry.facts import (
    ABILITIES,
    AGENTS,
    AGENTS_PROBE,
    CHASSIS,
    COUNTS_ANSWERS,
    COVERED,
    COVERING,
    DERIVED,
    FACTS,
    GATEWAY_CHASSIS,
    GIVEN_ELSEWHERE,
    HEALTH,
    LOST_HOSTS,
    OWN_ADDRESSES,
    PLUGGED,
    PROXIED_PROVIDERS,
    PROXIES,
    REFUSED_PROXIES,
    RETURNED,
    SIGHTINGS,
    WANTED_PROXIES,
    Fact,
    derive,
    ports_on,
    with_facts,
)
from fairlead.model.registry.kinds import KINDS
from fairlead.model.snapshot import Snapshot, map_name
from harness.probes import API, FIRST, MODEL, SECOND, WEB, observe, snapshot_of
from harness.story import parse_model

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
AGENT = Agent(name="node1", since=NOON, heartbeat=5.0)
SIGHTING = Sighting(health=Health.ERROR, chassis="node1", since=NOON)
PLACE, ELSEWHERE = ProxyPlace("net1", "demo"), ProxyPlace("net2", "demo")
OWN = frozenset({ip_address("10.1.0.1")})
GIVEN = Map({ip_address("192.0.2.9"): True})
WANTED = WantedProxies(come=("node1",), go=("port",))
NODE = Chassis(name="node1", host="node1.example", ports=Map({"vm1": True, "vm2": False}))


def test_each_fact_is_a_field_of_the_snapshot_that_no_document_changes():
    names = [fact.field for fact in FACTS if fact.take is None]
    assert len(set(names)) == len(names)
    assert set(names) | DERIVED <= {field.name for field in fields(Snapshot)}
    assert not (set(names) | DERIVED) & ({map_name(kind) for kind in KINDS} | index_names())


@pytest.mark.parametrize(
    ("fact", "news", "known"),
    [
        (HEALTH, {FIRST: Health.ERROR, SECOND: None}, Map({FIRST: Health.ERROR})),
        (SIGHTINGS, {FIRST: SIGHTING, SECOND: None}, Map({FIRST: SIGHTING})),
        (AGENTS, {"node1": AGENT, "node2": None}, Map({"node1": AGENT})),
        (COVERED, {"vm1": "node2", "vm2": None}, Map({"vm1": "node2"})),
        (COVERING, {"net1": "node2", "net2": None}, Map({"net1": "node2"})),
        (CHASSIS, {"node1": NODE, "node2": None}, Map({"node1": NODE})),
        (PLUGGED, {"vm1": "node1", "vm2": None}, Map({"vm1": "node1"})),
        (ABILITIES, frozenset({"more"}), frozenset({"more"})),
        (AGENTS_PROBE, True, True),
        (PROXIES, {"proxy": Proxy(), "other": None}, Map({"proxy": Proxy()})),
        (WANTED_PROXIES, {PLACE: WANTED, ELSEWHERE: None}, Map({PLACE: WANTED})),
        (REFUSED_PROXIES, {"net1": "no", "net2": None}, Map({"net1": "no"})),
        (PROXIED_PROVIDERS, frozenset({"fairlead"}), frozenset({"fairlead"})),
        (COUNTS_ANSWERS, True, True),
        (GATEWAY_CHASSIS, ("gw1",), ("gw1",)),
        (LOST_HOSTS, frozenset({"host1"}), frozenset({"host1"})),
        (OWN_ADDRESSES, {"host1": OWN, "host2": None}, Map({"host1": OWN})),
        (RETURNED, Map({"web": frozenset({"a"})}), Map({"web": frozenset({"a"})})),
        (GIVEN_ELSEWHERE, {ip_address("192.0.2.9"): True, ip_address("2001:db8::9"): None}, GIVEN),
    ],
    ids=[fact.field for fact in FACTS if fact.take is None],
)
def test_news_change_the_field_of_their_fact_alone(fact: Fact[Any], news: Any, known: Any):
    before = snapshot_of(MODEL)
    after = with_facts(before, fact, news)
    assert getattr(after, fact.field) == known
    assert replace(after, **{fact.field: getattr(before, fact.field)}) == before
    assert with_facts(after, fact, news) == after


def test_who_is_concerned():
    documents, _ = parse_model("network out 192.0.2.0/24 external\nrouter r1 gateway:out=192.0.2.9", {})
    snapshot = apply_changes(snapshot_of(MODEL), Changes(puts=tuple(documents.values())), 2)
    assert list(HEALTH.concerns(snapshot, snapshot, {FIRST: Health.ERROR})) == [API, WEB]
    assert list(ABILITIES.concerns(snapshot, snapshot, frozenset())) == [*map(balancer, snapshot.load_balancers)]
    assert list(GATEWAY_CHASSIS.concerns(snapshot, snapshot, ())) == [Owner(Kind.ROUTER, "r1")]
    assert [
        *PLUGGED.concerns(snapshot, snapshot, {"vm1": None}),
        *CHASSIS.concerns(snapshot, snapshot, {"node1": None}),
    ] == []


def balancer(identity: str) -> Owner:
    return Owner(Kind.LOAD_BALANCER, identity)


def test_not_yet_not_here_and_gone_are_three_answers():
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
def test_a_member_answers_or_is_down_or_nobody_knows(health: Health):
    assert [health is Health.ONLINE, health.is_down, not health.is_known].count(True) == 1


def test_a_chassis_has_its_ports_whether_their_packets_flow_or_not():
    snapshot = with_facts(Snapshot(), CHASSIS, {"node1": NODE})
    assert (ports_on(snapshot, "node1"), ports_on(snapshot, "node2")) == ({"vm1", "vm2"}, None)


def test_a_proxy_that_begins_to_serve_concerns_those_whose_listener_it_is():
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
    assert list(PROXIES.concerns(old, new, first)) == [WEB]
    both = {port: Proxy(serving=frozenset({2000, 2001, 2002}))}
    assert list(PROXIES.concerns(new, with_facts(new, PROXIES, both), both)) == [API]
    gone: dict[str, Proxy | None] = {port: None, "of nobody": None}
    assert list(PROXIES.concerns(new, with_facts(new, PROXIES, gone), gone)) == [WEB]
    alive = Chassis(name="chassis1", ports=Map({port: True}))
    known, dead = with_facts(new, CHASSIS, {"chassis1": alive}), {"chassis1": replace(alive, alive=False)}
    assert {API, WEB} <= set(CHASSIS.concerns(known, with_facts(known, CHASSIS, dead), dead))


def test_an_agent_that_falls_silent_concerns_those_who_lead_to_its_proxies():
    text = """
network net1 10.0.0.0/24
proxy chassis1 net1 10.0.0.61
web vip=10.0.0.10 on=net1 http:80{proxy=2000}=a/10.0.0.11:8080"""
    heard = {"chassis1": replace(AGENT, name="chassis1")}
    node = Chassis(name="chassis1", ports=Map({proxy_port_id("net1", "chassis1"): True}))
    known = with_facts(with_facts(snapshot_of(text.strip()), CHASSIS, {"chassis1": node}), AGENTS, heard)
    silent = {"chassis1": replace(heard["chassis1"], heard=False)}
    away = {"chassis1": replace(heard["chassis1"], away=True)}
    for news in (silent, away):
        assert list(AGENTS.concerns(known, with_facts(known, AGENTS, news), news)) == [WEB]
    assert list(AGENTS.concerns(known, with_facts(known, AGENTS, heard), heard)) == []


def test_to_proxies_of_which_no_agent_speaks_nobody_is_led_while_others_serve():
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
    assert absent_proxies(with_facts(known, AGENTS, agents), balancer) == frozenset()
    for gone in ({"away": True}, {"heard": False}):
        one, both = ({name: replace(agents[name], **gone) for name in names} for names in (("chassis1",), (*nodes,)))
        there = with_facts(known, AGENTS, {**agents, **one})
        assert absent_proxies(there, balancer) == {f"web-http-80/{ports['chassis1']}"}
        assert absent_proxies(with_facts(known, AGENTS, both), balancer) == frozenset()

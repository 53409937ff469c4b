"""Facts: each sort is declared once, changed in one way, and says which owners it concerns."""

from dataclasses import fields, replace
from typing import Any

import pytest
from immutables import Map

from fairlead.model.chassis import Chassis
from fairlead.model.facts import (
    ABILITIES,
    CHASSIS,
    DERIVED,
    FACTS,
    GATEWAY_CHASSIS,
    HEALTH,
    PLUGGED,
    Fact,
    derive,
    ports_on,
    with_facts,
)
from fairlead.model.health import Health
from fairlead.model.kinds import KINDS
from fairlead.model.owner import Kind, Owner
from fairlead.model.probes import members_health, why_down, why_unknown
from fairlead.model.snapshot import Snapshot, map_name
from fairlead.model.writing import Changes, apply_changes, index_names
from harness.probes import observe
from harness.story import parse_model
from model.test_probes import API, FIRST, MODEL, SECOND, WEB, snapshot_of

NODE = Chassis(name="node1", host="node1.example", ports=Map({"vm1": True, "vm2": False}))


def test_each_fact_is_a_field_of_the_snapshot_that_no_document_changes():
    names = [fact.field for fact in FACTS]
    assert len(set(names)) == len(names)
    assert set(names) | DERIVED <= {field.name for field in fields(Snapshot)}
    assert not (set(names) | DERIVED) & ({map_name(kind) for kind in KINDS} | index_names())


@pytest.mark.parametrize(
    ("fact", "news", "known"),
    [
        (HEALTH, {FIRST: Health.ERROR, SECOND: None}, Map({FIRST: Health.ERROR})),
        (CHASSIS, {"node1": NODE, "node2": None}, Map({"node1": NODE})),
        (PLUGGED, {"vm1": "node1", "vm2": None}, Map({"vm1": "node1"})),
        (ABILITIES, frozenset({"more"}), frozenset({"more"})),
        (GATEWAY_CHASSIS, ("gw1",), ("gw1",)),
    ],
    ids=[fact.field for fact in FACTS],
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

"""Proxies of nodes with an unresponsive agent: their state is unknown, so traffic goes to other proxies, if any."""

from collections.abc import Collection
from dataclasses import replace

import pytest
from immutables import Map

from fairlead.model.documents.agent import Agent
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.observed_proxy import Proxy
from fairlead.model.queries.proxies import (
    find_proxies_not_serving,
    proxy_port_id,
    proxy_tiers_by_chassis,
    unreported_proxies,
    with_proxy_pools,
)
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from harness.api import NOON
from harness.language import parse_model

MODEL = """network net1 10.0.0.0/24
proxy one net1 10.0.0.61
proxy two net1 10.0.0.62
web vip=10.0.0.10 on=net1 provider=fairlead http:80{proxy=2000}=a/10.0.0.11:8080"""
NAMES = ["one", "two"]


@pytest.mark.parametrize(
    ("serving", "silent", "absent"),
    [
        (NAMES, [], []),
        (NAMES, ["one"], ["one"]),
        (NAMES, NAMES, []),
        (["one"], ["one"], ["two"]),
        (["one"], ["two"], ["two"]),
        ([], ["one"], NAMES),
    ],
)
def test_proxy_of_an_unresponsive_node_is_used_only_without_alternatives(
    serving: Collection[str], silent: Collection[str], absent: Collection[str]
):
    documents, _ = parse_model(MODEL, {})
    snapshot = replace(
        apply_changes(Snapshot(), Changes(puts=tuple(documents.values())), 1),
        chassis=Map({name: Chassis(name=name, alive=True) for name in NAMES}),
        agents=Map(
            {name: Agent(name=name, since=NOON, heartbeat=5.0, is_responsive=name not in silent) for name in NAMES}
        ),
        proxies=Map({proxy_port_id("net1", name): Proxy(serving=frozenset({2000})) for name in serving}),
    )
    balancer = snapshot.load_balancers["web"]
    found = {each.partition("/")[2] for each in find_proxies_not_serving(snapshot, balancer)}
    assert found == {proxy_port_id("net1", name) for name in absent}


def test_start_waits_for_unreported_proxies_on_live_nodes():
    documents, _ = parse_model(MODEL, {})
    bare = apply_changes(Snapshot(), Changes(puts=tuple(documents.values())), 1)
    assert [*unreported_proxies(bare)] == []  # no node has been reported yet
    known = replace(bare, chassis=Map({"one": Chassis(name="one"), "two": Chassis(name="two", alive=False)}))
    assert [*unreported_proxies(known)] == [proxy_port_id("net1", "one")]
    told = replace(known, proxies=Map({proxy_port_id("net1", "one"): Proxy()}))
    assert [*unreported_proxies(told)] == []


def test_chassis_of_one_zone_share_one_proxy_table():
    """A thousand chassis in one zone share one table."""
    documents, _ = parse_model(MODEL, {})
    snapshot = apply_changes(Snapshot(), Changes(puts=tuple(documents.values())), 1)
    names = ["one", *(f"other{number}" for number in range(10))]
    zones = {name: Chassis(name=name, zones=frozenset({"az"})) for name in names}
    snapshot = replace(snapshot, chassis=Map({**zones, "far": Chassis(name="far")}))
    balancer = with_proxy_pools(snapshot, snapshot.load_balancers["web"])
    found = {chassis: tiers for chassis, _, tiers in proxy_tiers_by_chassis(snapshot, balancer)}
    assert found.keys() == set(names)
    assert [len(tiers) for tiers in found.values()].count(2) == 1  # its own proxy precedes those of the zone
    assert len({id(tiers) for name, tiers in found.items() if name != "one"}) == 1

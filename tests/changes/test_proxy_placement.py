"""Placement of proxies: a bounded number of chassis whose machines reach the network, stable across changes."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from fairlead.changes.proxy_placement import ProxyPlacement, find_placement
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.proxy_place import ProxyPlace
from fairlead.model.documents.quota import QuotaResource
from fairlead.model.queries.proxies import proxy_ports
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from harness.changes.proxy_places import NAMES, NET1, NETWORK, placed, world


def hosts(snapshot: Snapshot) -> list[str]:
    return [port.host for port in proxy_ports(snapshot, NET1)]


def test_each_chassis_that_reaches_the_network_has_a_dual_stack_proxy():
    snapshot = placed(world(), ["one", "two"])
    assert hosts(snapshot) == ["one", "two"]
    for port in proxy_ports(snapshot, NET1):
        assert [fixed.address.version for fixed in port.fixed_ips] == [4, 6]
        assert port.use.value == port.device_owner
    assert not find_placement(snapshot, NET1, ["one", "two"])


def test_network_without_proxied_listeners_has_no_proxies():
    assert not find_placement(world(), ProxyPlace("net2", "demo"), NAMES)
    assert not find_placement(world(), ProxyPlace("gone", "demo"), NAMES)


def test_proxies_are_removed_with_the_last_proxied_listener():
    snapshot = placed(world(), NAMES)
    snapshot = apply_changes(snapshot, Changes(deletes=(Owner(Kind.LOAD_BALANCER, "web"),)), 9)
    assert hosts(placed(snapshot, NAMES)) == []


def test_unresponsive_agents_and_dead_nodes_get_no_proxy():
    assert hosts(placed(world(silent=["two"], dead=["three"]), NAMES)) == ["four", "one"]


def test_unknown_chassis_state_after_a_start_removes_no_proxy():
    snapshot = placed(world(), NAMES)
    unknown = replace(snapshot, chassis=Map(), agents=Map())
    assert find_placement(unknown, NET1, []) == ProxyPlacement()
    assert find_placement(unknown, NET1, [], most=2).create_on == ()


def test_chassis_without_workloads_frees_its_place_within_the_proxy_limit():
    snapshot = placed(world(), ["one", "two"], most=2)
    assert find_placement(snapshot, NET1, NAMES, most=2) == ProxyPlacement()
    left = apply_changes(snapshot, Changes(deletes=(Owner(Kind.PORT, "vm-two"),)), 9)
    left = replace(left, chassis=left.chassis.set("two", Chassis(name="two", ports=Map({}))))
    moved = placed(left, ["one", "two", "four"], most=2)
    assert hosts(moved) == ["four", "one"]


def test_full_subnet_gets_fewer_proxies():
    text = NETWORK.replace("10.0.0.0/24 fd00::/64", "10.0.0.0/29").replace("10.0.0.10", "10.0.0.2")
    text = text.replace("10.0.0.11", "10.0.0.3")
    snapshot = placed(world(f"{text}port vm-one net1 10.0.0.3\nport b net1 10.0.0.4\nport c net1 10.0.0.2\n"), NAMES)
    assert len(hosts(snapshot)) == 2


def test_proxy_ports_count_for_no_quota():
    snapshot = placed(world(), NAMES)
    assert snapshot.usage.get(("demo", QuotaResource.PORT)) == world().usage.get(("demo", QuotaResource.PORT))


@given(st.lists(st.lists(st.sampled_from(NAMES), unique=True), max_size=8), st.integers(1, 4))
def test_proxy_placement_stays_within_the_limit_and_settles(nears: list[list[str]], most: int):
    snapshot = world()
    for near in nears:
        snapshot = placed(snapshot, near, most)
        assert len(hosts(snapshot)) <= most
        assert set(hosts(snapshot)) >= set(near) or len(hosts(snapshot)) == most
        assert not find_placement(snapshot, NET1, near, most)


def test_servers_with_different_agents_do_not_undo_proxy_placements():
    first = placed(world(), ["one", "two"], most=2)
    assert hosts(first) == ["one", "two"]
    for near in (["three", "four"], ["two", "three"], []):
        assert not find_placement(first, NET1, near, 2)
    silent = replace(first, agents=first.agents.set("one", replace(first.agents["one"], is_responsive=False)))
    assert [port.host for port in find_placement(silent, NET1, ["three"], 2).delete] == ["one"]
    assert find_placement(silent, NET1, ["three"], 2).create_on == ("three",)
    after_a_start = replace(first, agents=first.agents.delete("one").delete("two"))
    assert not find_placement(after_a_start, NET1, ["three", "four"], 2)

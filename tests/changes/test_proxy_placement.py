"""Placement of proxies: a bounded number of chassis whose machines reach the network, stable across changes."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from fairlead.changes.proxy_placement import Placement, find_placement
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.proxy_place import ProxyPlace
from fairlead.model.documents.quota import Counted
from fairlead.model.queries.proxies import proxy_ports
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from harness.changes.proxy_places import NAMES, NET1, NETWORK, placed, world


def hosts(snapshot: Snapshot) -> list[str]:
    return [port.host for port in proxy_ports(snapshot, NET1)]


def test_each_chassis_that_reaches_the_network_has_one_with_an_address_of_each_version():
    snapshot = placed(world(), ["one", "two"])
    assert hosts(snapshot) == ["one", "two"]
    for port in proxy_ports(snapshot, NET1):
        assert [fixed.address.version for fixed in port.fixed_ips] == [4, 6]
        assert port.use.value == port.device_owner
    assert not find_placement(snapshot, NET1, ["one", "two"])


def test_where_no_listener_needs_them_there_are_none():
    assert not find_placement(world(), ProxyPlace("net2", "demo"), NAMES)
    assert not find_placement(world(), ProxyPlace("gone", "demo"), NAMES)


def test_they_go_with_the_last_listener_that_needs_them():
    snapshot = placed(world(), NAMES)
    snapshot = apply_changes(snapshot, Changes(deletes=(Owner(Kind.LOAD_BALANCER, "web"),)), 9)
    assert hosts(placed(snapshot, NAMES)) == []


def test_nobody_has_one_whose_agent_is_silent_or_whose_node_is_dead():
    assert hosts(placed(world(silent=["two"], dead=["three"]), NAMES)) == ["four", "one"]


def test_what_is_not_known_after_a_start_takes_nothing_away():
    snapshot = placed(world(), NAMES)
    unknown = replace(snapshot, chassis=Map(), agents=Map())
    assert find_placement(unknown, NET1, []) == Placement()
    assert find_placement(unknown, NET1, [], most=2).come == ()


def test_so_many_and_no_more_and_whoever_has_no_machines_makes_room():
    snapshot = placed(world(), ["one", "two"], most=2)
    assert find_placement(snapshot, NET1, NAMES, most=2) == Placement()
    left = apply_changes(snapshot, Changes(deletes=(Owner(Kind.PORT, "vm-two"),)), 9)
    left = replace(left, chassis=left.chassis.set("two", Chassis(name="two", ports=Map({}))))
    moved = placed(left, ["one", "two", "four"], most=2)
    assert hosts(moved) == ["four", "one"]


def test_a_full_subnet_has_fewer():
    text = NETWORK.replace("10.0.0.0/24 fd00::/64", "10.0.0.0/29").replace("10.0.0.10", "10.0.0.2")
    text = text.replace("10.0.0.11", "10.0.0.3")
    snapshot = placed(world(f"{text}port vm-one net1 10.0.0.3\nport b net1 10.0.0.4\nport c net1 10.0.0.2\n"), NAMES)
    assert len(hosts(snapshot)) == 2


def test_they_count_for_no_quota():
    snapshot = placed(world(), NAMES)
    assert snapshot.usage.get(("demo", Counted.PORT)) == world().usage.get(("demo", Counted.PORT))


@given(st.lists(st.lists(st.sampled_from(NAMES), unique=True), max_size=8), st.integers(1, 4))
def test_whoever_comes_and_goes_there_are_at_most_so_many_and_the_last_word_is_settled(
    nears: list[list[str]], most: int
):
    snapshot = world()
    for near in nears:
        snapshot = placed(snapshot, near, most)
        assert len(hosts(snapshot)) <= most
        assert set(hosts(snapshot)) >= set(near) or len(hosts(snapshot)) == most
        assert not find_placement(snapshot, NET1, near, most)


def test_two_servers_to_which_different_agents_listen_do_not_undo_each_other():
    first = placed(world(), ["one", "two"], most=2)
    assert hosts(first) == ["one", "two"]
    for near in (["three", "four"], ["two", "three"], []):
        assert not find_placement(first, NET1, near, 2)
    silent = replace(first, agents=first.agents.set("one", replace(first.agents["one"], heard=False)))
    assert [port.host for port in find_placement(silent, NET1, ["three"], 2).go] == ["one"]
    assert find_placement(silent, NET1, ["three"], 2).come == ("three",)
    after_a_start = replace(first, agents=first.agents.delete("one").delete("two"))
    assert not find_placement(after_a_start, NET1, ["three", "four"], 2)

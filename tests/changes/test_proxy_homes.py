"""Placement of proxies whose VIPs are outside the project's networks: on shared networks there, on gateways inside."""

from collections.abc import Collection

from fairlead.changes.proxy_placement import ProxyLimits, find_placement
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.proxy_place import ProxyPlace
from fairlead.model.queries.proxies import proxy_ports
from fairlead.model.queries.proxy_homes import find_proxy_network
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from harness.changes.proxy_places import NAMES, placed, world

SHARED = """network square shared project=city 10.5.0.0/24
port vm-one square 10.5.0.70
port vm-two square 10.5.0.71
own vip=10.5.0.20 on=square project=city provider=fairlead http:80{proxy=2000}=-
web vip=10.5.0.10 on=square project=bob provider=fairlead http:80{proxy=2000}=-
"""
OUTSIDE = """network public external wire=physnet project=admin 203.0.113.0/24 2001:db8::/64
network other 10.9.0.0/24 project=bob
network net1 10.0.0.0/24
network net2 10.1.0.0/24 10.2.0.0/24 fd00:2::/64
router r1 net1=10.0.0.1 net2=10.2.0.1,fd00:2::1 other=10.9.0.1 gateway:public=203.0.113.10,2001:db8::10
port vm-one net1 10.0.0.20
port vm-two net2 10.1.0.20
"""
FOUR = "web vip=203.0.113.80 on=public at=r1 provider=fairlead http:80{proxy=2000}=-\n"
BOTH = FOUR.replace("203.0.113.80", "203.0.113.80,2001:db8::80")
CITY, BOB, GATE = ProxyPlace("square", "city"), ProxyPlace("square", "bob"), ProxyPlace("r1", "demo")


def hosts(snapshot: Snapshot, place: ProxyPlace) -> list[str]:
    return [port.host for port in proxy_ports(snapshot, place)]


def home(snapshot: Snapshot, place: ProxyPlace) -> str:
    found = find_proxy_network(snapshot, place)
    return "" if found is None else found.id


def without(snapshot: Snapshot, *gone: Owner) -> Snapshot:
    return apply_changes(snapshot, Changes(deletes=gone), snapshot.revision + 1)


def test_guest_project_gets_separate_proxies_on_a_shared_network():
    snapshot = placed(placed(world(SHARED), ["one", "two"], 8, CITY), ["one", "two"], 8, BOB)
    assert hosts(snapshot, CITY) == hosts(snapshot, BOB) == ["one", "two"]
    ports = [*proxy_ports(snapshot, CITY), *proxy_ports(snapshot, BOB)]
    assert len({port.id for port in ports}) == len({port.mac_address for port in ports}) == 4
    assert {port.project_id for port in proxy_ports(snapshot, BOB)} == {"bob"}
    left = placed(without(snapshot, Owner(Kind.LOAD_BALANCER, "web")), ["one", "two"], 8, BOB)
    assert (hosts(left, BOB), hosts(left, CITY)) == ([], ["one", "two"])


def test_guest_projects_have_a_lower_proxy_limit():
    bounds, snapshot = ProxyLimits(own=8, guests=1), world(SHARED)
    assert (bounds.of(snapshot, CITY), bounds.of(snapshot, BOB)) == (8, 1)
    assert bounds.of(world(OUTSIDE + FOUR), GATE) == 8
    assert len(hosts(placed(snapshot, NAMES, 1, BOB), BOB)) == 1


def test_chosen_chassis_do_not_depend_on_the_order_of_candidates():
    def chosen(near: Collection[str]) -> tuple[str, ...]:
        return find_placement(world(SHARED), BOB, near, 2).create_on

    assert len(chosen(NAMES)) == 2
    assert chosen(NAMES) == chosen(list(reversed(NAMES)))


def test_gateway_proxies_use_the_project_network_with_the_most_ip_versions():
    assert home(world(OUTSIDE + FOUR), GATE) == "net1"
    snapshot = placed(world(OUTSIDE + BOTH), ["two"], 8, GATE)
    assert home(snapshot, GATE) == "net2"
    [port] = proxy_ports(snapshot, GATE)
    assert [fixed.subnet_id for fixed in port.fixed_ips] == [
        each.id for each in snapshot.networks["net2"].subnets if str(each.cidr) != "10.1.0.0/24"
    ]


def test_gateway_proxies_move_when_the_router_leaves_their_network():
    snapshot = placed(world(OUTSIDE + FOUR), ["one"], 8, GATE)
    snapshot = without(snapshot, Owner(Kind.PORT, "r1-net1"))
    [gone] = find_placement(snapshot, GATE, ["two"], 8).delete
    assert gone.network_id == "net1"
    snapshot = placed(placed(snapshot, ["two"], 8, GATE), ["two"], 8, GATE)
    assert [(port.host, port.network_id) for port in proxy_ports(snapshot, GATE)] == [("two", "net2")]
    nowhere = without(snapshot, Owner(Kind.PORT, "r1-net2"))
    assert home(nowhere, GATE) == ""
    assert find_placement(nowhere, GATE, ["two"], 8).create_on == ()
    assert hosts(placed(nowhere, ["two"], 8, GATE), GATE) == []


def test_gateway_proxies_stay_while_another_network_is_only_as_good():
    snapshot = placed(world(OUTSIDE + FOUR), ["one"], 8, GATE)
    older = OUTSIDE.replace("network net1", "network a 10.7.0.0/24\nnetwork net1").replace(
        "r1 net1", "r1 a=10.7.0.1 net1"
    )
    assert home(world(older + FOUR), GATE) == "a"
    later = world(older + FOUR)
    with_port = apply_changes(later, Changes(puts=tuple(proxy_ports(snapshot, GATE))), 2)
    assert home(with_port, GATE) == "net1"

"""The slice of one chassis: the datapaths that it reaches, and nothing else."""

from dataclasses import replace

from immutables import Map

from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.quota import Quota
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.kinds import KINDS
from fairlead.model.registry.slices import PLACES, owners_at, places_of, reached_places, slice_of
from fairlead.model.snapshot import Snapshot
from harness.language import parse_model
from harness.probes import snapshot_of

MODEL = """
network net1 10.0.0.0/24
network net2 10.0.1.0/24
network far 10.0.0.0/24 project=other
network out 192.0.2.0/24 external
router r1 net1=10.0.0.1 net2=10.0.1.1 gateway:out=192.0.2.9
port vm1 net1 10.0.0.11
port vm2 net2 10.0.1.11
port vm3 far 10.0.0.11 project=other
web vip=10.0.0.10 on=net1 tcp:80{monitor=TCP}=a/10.0.0.11:80
theirs vip=10.0.0.10 on=far project=other tcp:80{monitor=TCP}=a/10.0.0.11:80
"""


def site() -> Snapshot:
    snapshot = snapshot_of(MODEL)
    snapshot = apply_changes(snapshot, Changes(puts=(Quota(project_id="other"),)), 2)
    chassis = {
        "one": Chassis(name="one", host="one", ports=Map({"vm2": True, "elsewhere": True})),
        "two": Chassis(name="two", host="two", ports=Map({"vm3": True})),
    }
    return replace(
        snapshot,
        chassis=Map(chassis),
        plugged=Map({"vm2": "one", "vm3": "two"}),
        covered=Map({"vm1": "one", "vm9": "two"}),
        down=Map({"web": frozenset({"web-a"}), "theirs": frozenset({"theirs-a"})}),
    )


def documents(snapshot: Snapshot) -> set[str]:
    return {str(owner) for owner in snapshot.generations}


def test_slice_contains_the_documents_that_the_ports_of_the_chassis_reach():
    one = slice_of(site(), "one")
    named = {each for each in documents(one) if not each.startswith("port/")}
    assert named == {"network/net1", "network/net2", "network/out", "router/r1", "loadbalancer/web"}
    assert {"vm1", "vm2"} <= set(one.ports)
    assert "vm3" not in one.ports
    assert (set(one.chassis), dict(one.plugged), dict(one.covered)) == ({"one"}, {"vm2": "one"}, {"vm1": "one"})
    assert dict(one.down) == {"web": {"web-a"}}


def test_slices_of_tenants_with_equal_addresses_are_disjoint():
    two = slice_of(site(), "two")
    assert {"network/far", "loadbalancer/theirs", "port/vm3"} <= documents(two)
    assert not documents(two) & documents(slice_of(site(), "one"))
    assert dict(two.down) == {"theirs": {"theirs-a"}}


def test_slice_of_an_unknown_chassis_is_empty():
    assert documents(slice_of(site(), "nobody")) == set()


def test_slice_has_the_generations_of_the_whole_snapshot():
    whole, one = site(), slice_of(site(), "one")
    assert all(whole.generations[owner] == generation for owner, generation in one.generations.items())
    assert one.revision == whole.revision


def test_places_of_a_document_and_owners_at_a_place_are_consistent():
    whole = site()
    for kind in KINDS:
        for identity in whole.documents(kind):
            owner = Owner(kind, identity)
            places = places_of(whole, owner)
            assert bool(places) is (kind in PLACES)
            assert all(owner in set(owners_at(whole, place)) for place in places)
            assert all(owner.kind in PLACES for place in places for owner in owners_at(whole, place))


def test_reached_places_are_networks_and_routers():
    assert reached_places(site(), "one") == {"net1", "net2", "r1", "out/"}


HOSTS = """
network pool announced 203.0.113.0/24 2001:db8:5::/64 project=city
host three 3 10.20.0.23 fd00::23 10.1.0.0/24
host one 1 10.20.0.21 10.1.1.0/24=city fd00:1::/64
shop vip=203.0.113.10,2001:db8:5::10 on=pool project=city tcp:443{monitor=TCP}=a/10.1.0.11:80,b/[fd00:1::11]:80
"""


def with_hosts(more: str = HOSTS) -> Snapshot:
    known = site()
    there = apply_changes(
        known, Changes(puts=tuple(parse_model((MODEL + more).strip().replace("\n\n", "\n"), {})[0].values())), 3
    )
    return replace(there, down=known.down.set("shop", frozenset({"shop-a"})))


def test_declared_host_slice_has_announced_load_balancers_without_vip_ports():
    whole = with_hosts()
    three = slice_of(whole, "three")
    assert documents(three) == {"host/one", "host/three", "network/pool", "loadbalancer/shop"}, "and no port of a VIP"
    assert (dict(three.down), set(three.announced)) == ({"shop": {"shop-a"}}, {"pool"})
    assert (set(three.chassis), three.hosts["one"]) == ({"three"}, whole.hosts["one"])


def test_host_with_ovn_ports_also_gets_the_documents_its_ports_reach():
    one = documents(slice_of(with_hosts(), "one"))
    assert one > documents(slice_of(with_hosts(), "three"))
    assert {"network/net1", "loadbalancer/web", "port/vm1"} <= one


def test_undeclared_host_gets_no_host_documents():
    whole = with_hosts()
    assert documents(slice_of(whole, "two")) == documents(slice_of(site(), "two"))
    assert documents(slice_of(whole, "nobody")) == set()
    alone = with_hosts("host three 3 10.20.0.23 10.1.0.0/24")
    assert documents(slice_of(alone, "three")) == {"host/three"}


def test_places_of_host_documents_and_owners_there_are_consistent():
    whole = with_hosts()
    for owner in map(Owner.parse, ("host/one", "network/pool", "loadbalancer/shop", "port/shop-vip")):
        assert all(owner in set(owners_at(whole, place)) for place in places_of(whole, owner)), owner

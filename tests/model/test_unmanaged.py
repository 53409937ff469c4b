"""Unmanaged networks in the snapshot: complete or absent, for any updates in any order."""

import random
from dataclasses import replace

import pytest

from fairlead.compilers.providers import DEFAULT, dataplanes_of
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.network import FixedIP, PortUse
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.status import AppliedState, OperatingStatus
from fairlead.model.documents.unmanaged import (
    UnmanagedNetwork,
    UnmanagedObject,
    UnmanagedPort,
    UnmanagedRouter,
    is_unmanaged,
)
from fairlead.model.queries.balancer_state import derive_balancer_status
from fairlead.model.queries.domain import Topology
from fairlead.model.queries.unmanaged_updates import UnmanagedUpdate
from fairlead.model.registry.changeset import Changes, apply_changes, index_names, owners_with_rows
from fairlead.model.registry.facts import UNMANAGED, with_facts
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Snapshot
from harness.case import parse_model

MODEL = """\
network net1 by=neutron 10.0.0.0/24
network outside by=neutron 203.0.113.0/24
router r1 by=neutron net1=10.0.0.1 gateway:outside=203.0.113.2
port vm1 net1 10.0.0.11
web vip=10.0.0.10 on=net1 tcp:80=a/10.0.0.11:80
floating f1 by=neutron outside=203.0.113.50 r1=web-vip:10.0.0.10
"""
DOCUMENTS, _ = parse_model(MODEL, {})
NEWS: UnmanagedUpdate = {owner: each for owner, each in DOCUMENTS.items() if is_unmanaged(each)}
BALANCER = DOCUMENTS[Owner(Kind.LOAD_BALANCER, "web")]
(OVN,) = dataplanes_of(DEFAULT)


def told(snapshot: Snapshot, news: UnmanagedUpdate) -> Snapshot:
    return with_facts(snapshot, UNMANAGED, news)


def documents(snapshot: Snapshot) -> dict[Owner, UnmanagedObject]:
    kinds = (Kind.NETWORK, Kind.ROUTER, Kind.PORT, Kind.FLOATING_IP)
    return {owner_of(each): each for kind in kinds for each in snapshot.documents(kind).values()}


def test_unmanaged_networks_are_in_the_snapshot_without_rows_or_usage():
    snapshot = told(Snapshot(), NEWS)
    assert documents(snapshot) == NEWS
    assert owners_with_rows(snapshot) == []
    assert not snapshot.generations
    assert not snapshot.usage
    assert not snapshot.project_networks
    assert not snapshot.network_names
    assert snapshot.called["neutron-net1"] == "net1"
    nothing = told(snapshot, dict.fromkeys(NEWS))
    assert nothing == Snapshot()


def test_snapshot_has_no_dangling_references_for_any_order_of_updates():
    """References are always complete, for updates in random order and subsets, and so is the snapshot after a full
    update."""
    dice = random.Random(7)
    snapshot = Snapshot()
    for _ in range(300):
        some = dice.sample(sorted(NEWS, key=str), dice.randint(1, len(NEWS)))
        snapshot = told(snapshot, {owner: dice.choice([NEWS[owner], None]) for owner in some})
        for port in snapshot.ports.values():
            assert port.network_id in snapshot.networks
            assert port.device_id in snapshot.routers or port.use is not PortUse.ROUTER_INTERFACE
        for router in snapshot.routers.values():
            assert router.gateway is None or router.gateway.port_id in snapshot.ports
        again = told(Snapshot(), dict(documents(snapshot)))
        assert [name for name in sorted(index_names()) if getattr(again, name) != getattr(snapshot, name)] == []
    assert documents(told(snapshot, NEWS)) == NEWS


def test_duplicate_address_belongs_to_the_same_port_in_any_order_of_updates():
    """An address with two ports belongs to the same one on every server, in any order of updates, and to the other when
    that goes."""
    vm1 = DOCUMENTS[Owner(Kind.PORT, "vm1")]
    twice = {**NEWS, Owner(Kind.PORT, "vm2"): replace(vm1, id="vm2", row="vm2@2")}
    place = "net1", parse_address("10.0.0.11")
    dice = random.Random(7)
    for _ in range(20):
        whole = told(Snapshot(), dict(dice.sample(sorted(twice.items(), key=str), len(twice))))
        assert whole.addresses.get(place) == "vm1"
        for gone, left in (("vm1", "vm2"), ("vm2", "vm1")):
            half = told(whole, {Owner(Kind.PORT, gone): None})
            assert (half.addresses.get(place), place in half.addresses) == (left, True)
            assert half.addresses == told(Snapshot(), dict(documents(half))).addresses
            assert place not in told(half, {Owner(Kind.PORT, left): None}).addresses


def test_stored_document_takes_precedence_over_an_unmanaged_one():
    network = parse_model("network net1 10.9.0.0/24", {})[0]
    snapshot = apply_changes(Snapshot(), Changes(puts=tuple(network.values())), 1)
    assert told(snapshot, NEWS).networks["net1"] == network[Owner(Kind.NETWORK, "net1")]
    assert told(snapshot, dict.fromkeys(NEWS)) == snapshot


def test_gateway_is_removed_with_its_port():
    snapshot = told(Snapshot(), NEWS)
    snapshot = told(snapshot, {Owner(Kind.PORT, "r1-outside"): None})
    router = NEWS[Owner(Kind.ROUTER, "r1")]
    assert isinstance(router, UnmanagedRouter)
    assert snapshot.routers["r1"] == replace(router, gateway=None)


def test_load_balancer_on_a_vanished_network_keeps_its_rows():
    """A load balancer whose network disappears keeps its rows, because the network may be reported again."""
    snapshot = apply_changes(told(Snapshot(), NEWS), Changes(puts=(BALANCER,)), 1)
    balancer, shared = owner_of(BALANCER), Owner(Kind.VIP_NETWORK, "net1")
    assert OVN.compile(snapshot, balancer)
    assert OVN.compile(snapshot, shared)
    gone = dict.fromkeys(NEWS)
    assert {balancer, shared} <= {*UNMANAGED.affected_owners(snapshot, told(snapshot, gone), gone)}
    without = told(snapshot, gone)
    for owner in owners_with_rows(without):
        with pytest.raises(Unsupported, match="VIPs on network net1, which OVN does not have"):
            OVN.compile(without, owner)
    back = UNMANAGED.affected_owners(without, told(without, NEWS), NEWS)
    assert {balancer, shared} <= {*back}


def test_unmanaged_update_affects_only_stored_owners():
    snapshot = apply_changes(told(Snapshot(), NEWS), Changes(puts=(BALANCER,)), 1)
    floating = {Owner(Kind.FLOATING_IP, "f1"): None}
    assert list(UNMANAGED.affected_owners(snapshot, told(snapshot, floating), floating)) == [owner_of(BALANCER)]
    interface = {Owner(Kind.PORT, "r1-net1"): None}
    assert Owner(Kind.VIP_NETWORK, "net1") in UNMANAGED.affected_owners(snapshot, told(snapshot, interface), interface)


# Unmanaged addresses, allocated and reassigned by the network's owner

PORT = Owner(Kind.PORT, "web-vip")
ADDRESS = "10.0.0.10"


def rows_with_address(snapshot: Snapshot) -> list[str]:
    return [
        str(row)
        for owner in owners_with_rows(snapshot)
        for row in OVN.compile(snapshot, owner).values()
        if ADDRESS in str(row)
    ]


def balanced() -> Snapshot:
    return apply_changes(told(Snapshot(), NEWS), Changes(puts=(BALANCER,)), 1)


def of_another(port: UnmanagedPort) -> UnmanagedPort:
    return replace(port, id="next", project_id="stranger", device_owner="compute:nova", device_id="vm")


@pytest.mark.parametrize("moved", [False, True])
def test_vip_has_rows_only_while_its_neutron_port_has_the_address(moved: bool):
    """A VIP has no rows once its port in Neutron is deleted or has another address, because another project's machine
    may get the address."""
    snapshot, port = balanced(), NEWS[PORT]
    assert isinstance(port, UnmanagedPort)
    before = {owner: OVN.compile(snapshot, owner) for owner in owners_with_rows(snapshot)}
    elsewhere = FixedIP(subnet_id=port.fixed_ips[0].subnet_id, address=parse_address("10.0.0.77"))
    news: UnmanagedUpdate = {PORT: replace(port, fixed_ips=(elsewhere,)) if moved else None}
    gone = told(snapshot, news)
    assert owner_of(BALANCER) in UNMANAGED.affected_owners(snapshot, gone, news)
    other: UnmanagedUpdate = {Owner(Kind.PORT, "next"): of_another(port)}
    for each in (gone, told(gone, other)):
        assert rows_with_address(each) == []
        assert isinstance(BALANCER, LoadBalancer)
        status = derive_balancer_status(each, BALANCER, AppliedState(generation=1))
        (member,) = BALANCER.pools[0].members
        assert status.of_member(BALANCER.pools[0], member) is OperatingStatus.ERROR
    back: UnmanagedUpdate = {PORT: port}
    assert owner_of(BALANCER) in UNMANAGED.affected_owners(gone, told(gone, back), back)
    again = told(gone, back)
    assert {owner: OVN.compile(again, owner) for owner in owners_with_rows(again)} == before


def test_subnet_id_change_keeps_the_rows_of_a_load_balancer():
    """A subnet's id may change, because OVN has the id of a subnet without DHCP only in a router port, which may be
    removed."""
    snapshot, network, port = balanced(), NEWS[Owner(Kind.NETWORK, "net1")], NEWS[PORT]
    assert isinstance(network, UnmanagedNetwork)
    assert isinstance(port, UnmanagedPort)
    other = replace(network, subnets=tuple(replace(subnet, id="another") for subnet in network.subnets))
    renamed = replace(port, fixed_ips=tuple(replace(fixed, subnet_id="another") for fixed in port.fixed_ips))
    before = OVN.compile(snapshot, owner_of(BALANCER))
    half = told(snapshot, {owner_of(network): other})
    assert OVN.compile(half, owner_of(BALANCER)) == before
    assert OVN.compile(told(half, {PORT: renamed}), owner_of(BALANCER)) == before
    bare = told(half, {owner_of(network): replace(network, subnets=())})
    assert OVN.compile(bare, owner_of(BALANCER)) == {}


def test_tenant_port_claiming_to_be_a_probe_source_affects_no_owner():
    """A tenant's port that claims to be a probe source affects no owner, because each would cause a pass over the
    network."""
    watching, _ = parse_model(f"{MODEL}api vip=10.0.0.9 on=net1 tcp:80{{monitor=TCP}}=a/10.0.0.11:80", {})
    snapshot = told(Snapshot(), {owner: each for owner, each in watching.items() if is_unmanaged(each)})
    stored = tuple(each for each in watching.values() if not is_unmanaged(each))
    snapshot = apply_changes(snapshot, Changes(puts=stored), 1)
    machine = NEWS[Owner(Kind.PORT, "vm1")]
    assert isinstance(machine, UnmanagedPort)
    one = {Owner(Kind.PORT, "vm1"): replace(machine, admin_state_up=False)}
    assert Owner(Kind.LOAD_BALANCER, "api") in UNMANAGED.affected_owners(snapshot, told(snapshot, one), one)
    there = (FixedIP(subnet_id=machine.fixed_ips[0].subnet_id, address=parse_address("10.0.0.99")),)
    owner = Owner(Kind.PORT, "odd")
    odd: UnmanagedUpdate = {owner: replace(machine, id="odd", device_owner=PortUse.PROBE.value, fixed_ips=there)}
    assert list(UNMANAGED.affected_owners(snapshot, told(snapshot, odd), odd)) == []


def test_update_of_many_routers_evaluates_each_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch):
    """An update of a hundred routers on one shared network evaluates each of them a bounded number of times."""
    joins = "\n".join(
        f"network own{number} by=neutron 10.2.{number}.0/24 project=p{number}\n"
        f"router many{number} by=neutron net1=10.0.0.{number} own{number}=10.2.{number}.1 project=p{number}"
        for number in range(20, 120)
    )
    cloud, _ = parse_model(f"{MODEL}{joins}", {})
    theirs: UnmanagedUpdate = {owner: each for owner, each in cloud.items() if is_unmanaged(each)}
    ports: UnmanagedUpdate = {owner: theirs[owner] for owner in theirs if owner.kind is Kind.PORT}
    without = told(Snapshot(), {owner: each for owner, each in theirs.items() if owner not in ports})
    old = apply_changes(without, Changes(puts=(BALANCER,)), 1)
    looked: list[str] = []
    look = Topology.projects_crossing
    monkeypatch.setattr(
        Topology, "projects_crossing", lambda self, router: [looked.append(router), look(self, router)][1]
    )
    assert Owner(Kind.VIP_NETWORK, "net1") in UNMANAGED.affected_owners(old, told(old, ports), ports)
    assert len(looked) < 1000  # one call per router and network, and one per port

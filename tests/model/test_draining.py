"""Draining: removed members are recorded for their drain timeout, within a bound."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from fairlead.model.documents.loadbalancer import (
    Algorithm,
    LoadBalancer,
    Member,
    Pool,
    PoolProtocol,
    Vip,
    replace_pool,
)
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.draining import MAX_REMOVED_MEMBERS, expire_removed_members, record_removed_members
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from harness.pools import with_members

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
COMMON = {"project_id": "p", "created_at": NOON}


def make(*numbers: int, protocol: PoolProtocol = PoolProtocol.TCP) -> LoadBalancer:
    members = tuple(
        Member(id=f"m{each}", ordinal=each, address=ip_address("10.0.0.1"), port=1 + each, **COMMON) for each in numbers
    )
    pool = Pool(id="pool", protocol=protocol, algorithm=Algorithm.SOURCE_IP_PORT, **COMMON)
    vip = Vip(address=ip_address("10.0.0.9"), port_id="p", subnet_id="s", network_id="n")
    return LoadBalancer(id="lb", provider="ovn", vip=vip, pools=(with_members(pool, members),), **COMMON)


def change(old: LoadBalancer, new: LoadBalancer, seconds: float = 0) -> LoadBalancer:
    return run_to_completion(
        record_removed_members(old, replace(new, parted=old.parted), NOON + timedelta(seconds=seconds), 60)
    )


def ports(balancer: LoadBalancer) -> list[int]:
    return [each.port - 1 for each in balancer.parted]


def test_removed_member_is_recorded_for_its_drain_timeout():
    balancer = change(make(1, 2, 3), make(1, 3))
    balancer = change(balancer, make(3), 30)
    assert ports(balancer) == [2, 1]
    assert ports(change(balancer, make(3), 60)) == [1]
    assert ports(change(balancer, make(3), 90)) == []


def test_readded_member_is_no_longer_recorded_as_draining():
    assert ports(change(change(make(1, 2), make(1)), make(1, 2))) == []


def test_members_of_a_removed_pool_drain():
    old = make(1, 2)
    assert ports(change(old, replace(old, pools=()))) == [1, 2]


def test_same_endpoint_with_another_protocol_drains_separately():
    gone = change(make(1, protocol=PoolProtocol.UDP), replace_pool(make(1), make(1).pools[0]))
    assert [(each.transport.value, each.port) for each in gone.parted] == [("udp", 2)]


def test_draining_records_are_bounded_and_the_newest_are_kept():
    balancer = change(make(*range(MAX_REMOVED_MEMBERS)), make())
    balancer = change(change(balancer, make(300)), make(), 1)
    assert len(balancer.parted) == MAX_REMOVED_MEMBERS
    assert 300 in ports(balancer)


def test_zero_drain_timeout_records_no_removed_member():
    assert run_to_completion(record_removed_members(make(1, 2), make(1), NOON, 0)).parted == ()


def test_draining_members_are_forgotten_after_the_drain_timeout():
    parted = change(make(1, 2), make(1))
    snapshot = apply_changes(Snapshot(), Changes(puts=(parted,)), 1)
    assert set(snapshot.parting) == {"lb"}
    assert expire_removed_members(snapshot, "lb", NOON + timedelta(seconds=59)) == Changes()
    assert expire_removed_members(snapshot, "gone", NOON) == Changes()
    changes = expire_removed_members(snapshot, "lb", NOON + timedelta(seconds=60))
    assert set(apply_changes(snapshot, changes, 2).parting) == set()

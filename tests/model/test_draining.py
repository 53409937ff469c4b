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
from fairlead.model.registry.draining import MOST_PARTED, forget_removed, remember_removed
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import at_once
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
    return at_once(remember_removed(old, replace(new, parted=old.parted), NOON + timedelta(seconds=seconds), 60))


def ports(balancer: LoadBalancer) -> list[int]:
    return [each.port - 1 for each in balancer.parted]


def test_who_is_removed_is_remembered_for_its_time():
    balancer = change(make(1, 2, 3), make(1, 3))
    balancer = change(balancer, make(3), 30)
    assert ports(balancer) == [2, 1]
    assert ports(change(balancer, make(3), 60)) == [1]
    assert ports(change(balancer, make(3), 90)) == []


def test_who_comes_back_is_no_more_remembered():
    assert ports(change(change(make(1, 2), make(1)), make(1, 2))) == []


def test_a_pool_that_goes_leaves_its_members_behind():
    old = make(1, 2)
    assert ports(change(old, replace(old, pools=()))) == [1, 2]


def test_the_same_endpoint_of_another_protocol_is_another():
    gone = change(make(1, protocol=PoolProtocol.UDP), replace_pool(make(1), make(1).pools[0]))
    assert [(each.transport.value, each.port) for each in gone.parted] == [("udp", 2)]


def test_a_load_balancer_remembers_a_bounded_number_the_newest():
    balancer = change(make(*range(MOST_PARTED)), make())
    balancer = change(change(balancer, make(300)), make(), 1)
    assert len(balancer.parted) == MOST_PARTED
    assert 300 in ports(balancer)


def test_no_time_is_no_memory():
    assert at_once(remember_removed(make(1, 2), make(1), NOON, 0)).parted == ()


def test_they_are_forgotten_when_their_time_is_over():
    parted = change(make(1, 2), make(1))
    snapshot = apply_changes(Snapshot(), Changes(puts=(parted,)), 1)
    assert set(snapshot.parting) == {"lb"}
    assert forget_removed(snapshot, "lb", NOON + timedelta(seconds=59)) == Changes()
    assert forget_removed(snapshot, "gone", NOON) == Changes()
    changes = forget_removed(snapshot, "lb", NOON + timedelta(seconds=60))
    assert set(apply_changes(snapshot, changes, 2).parting) == set()

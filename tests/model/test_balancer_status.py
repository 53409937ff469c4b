"""Affected parts of a change and their status: cases that no single request can produce."""

from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_network
from typing import Any

import pytest
from immutables import Map

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.agent import Agent, ApplyFailure
from fairlead.model.documents.balancer_status import BalancerStatus, PartHistory, update_histories
from fairlead.model.documents.hosts import Host, HostPrefix
from fairlead.model.documents.loadbalancer import (
    Algorithm,
    Listener,
    ListenerProtocol,
    LoadBalancer,
    Member,
    MonitorType,
    PlainMonitor,
    Pool,
    PoolProtocol,
    Vip,
)
from fairlead.model.documents.network import Network, Subnet
from fairlead.model.documents.port_ranges import one_port
from fairlead.model.documents.status import AppliedState, OperatingStatus, ProvisioningStatus
from fairlead.model.queries.balancer_state import derive_balancer_status
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.facts import AGENTS, with_facts
from fairlead.model.snapshot import Snapshot

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
COMMON: dict[str, Any] = {"project_id": "demo", "created_at": NOON}
MEMBER = Member(id="member", ordinal=0, address=parse_address("10.0.0.11"), port=80, **COMMON)
POOL = Pool(id="pool", protocol=PoolProtocol.TCP, algorithm=Algorithm.SOURCE_IP, members=(MEMBER,), **COMMON)
FRONT, OTHER = (
    Listener(id=name, protocol=ListenerProtocol.TCP, ports=one_port(port), default_pool_id=pool, **COMMON)
    for name, port, pool in (("front", 80, "pool"), ("other", 81, None))
)
WEB = LoadBalancer(
    id="web",
    provider="ovn",
    vip=Vip(address=parse_address("10.0.0.10"), port_id="p", subnet_id="s", network_id="n"),
    listeners=(FRONT, OTHER),
    pools=(POOL,),
    **COMMON,
)


def stand(applied: AppliedState, **more: Any) -> BalancerStatus:
    return BalancerStatus(balancer=WEB, generation=5, applied=applied, **more)


def test_part_histories_cover_changed_parts_only_and_drop_removed_parts():
    heavy = replace(POOL, members=(replace(MEMBER, weight=9),))
    histories = update_histories(WEB, replace(WEB, pools=(heavy,)), Map(), 7)
    assert dict(histories) == {name: PartHistory(0, 7) for name in ("member", "pool", "front")}
    empty = replace(WEB, pools=(replace(POOL, members=()),))
    histories = update_histories(replace(WEB, pools=(heavy,)), empty, histories, 8)
    assert dict(histories) == {name: PartHistory(0, 8) for name in ("pool", "front")}
    back = update_histories(empty, WEB, histories, 9)
    assert back["member"] == PartHistory(9, 9)


@pytest.mark.parametrize(
    ("applied", "touched", "expected"),
    [
        (AppliedState(), 0, ProvisioningStatus.PENDING_CREATE),
        (AppliedState(error="x"), 0, ProvisioningStatus.ERROR),
        (AppliedState(generation=4), 0, ProvisioningStatus.ACTIVE),
        (AppliedState(generation=4), 4, ProvisioningStatus.ACTIVE),
        (AppliedState(generation=4), 5, ProvisioningStatus.PENDING_UPDATE),
        (AppliedState(generation=4, error="x"), 4, ProvisioningStatus.ACTIVE),
        (AppliedState(generation=4, error="x"), 5, ProvisioningStatus.ERROR),
    ],
)
def test_part_status_follows_the_generation_that_last_changed_the_part(
    applied: AppliedState, touched: int, expected: ProvisioningStatus
):
    assert stand(applied, histories=Map({"front": PartHistory(0, touched)})).provisioning_status(FRONT) is expected


def test_load_balancer_is_in_error_while_any_apply_attempt_fails():
    assert stand(AppliedState(generation=5, error="gone")).provisioning_status(WEB) is ProvisioningStatus.ERROR
    assert stand(AppliedState(generation=5)).provisioning_status(WEB) is ProvisioningStatus.ACTIVE


def test_part_changed_before_a_server_start_is_pending_update_until_applied():
    old = replace(FRONT, updated_at=NOON)
    assert stand(AppliedState()).provisioning_status(old) is ProvisioningStatus.PENDING_UPDATE


def test_load_balancer_is_mutable_after_a_stalled_or_failed_apply():
    assert stand(AppliedState()).is_immutable(WEB)
    assert not stand(AppliedState(stalled=True)).is_immutable(WEB)
    assert not stand(AppliedState(error="x")).is_immutable(WEB)


def test_pending_member_does_not_change_the_pool_status():
    new = Map({"member": PartHistory(5, 5), "pool": PartHistory(0, 5)})
    assert stand(AppliedState(generation=4), histories=new).of_pool(POOL) is OperatingStatus.ONLINE


@pytest.mark.parametrize(
    ("unprobed", "drains", "down", "expected"),
    [
        (1, 0, 0, OperatingStatus.ONLINE),
        (1, 1, 0, OperatingStatus.ONLINE),
        (1, 0, 1, OperatingStatus.DEGRADED),
        (0, 1, 1, OperatingStatus.ERROR),
        (0, 0, 1, OperatingStatus.ERROR),
    ],
)
def test_pool_with_an_unprobed_member_is_not_in_error(unprobed: int, drains: int, down: int, expected: OperatingStatus):
    """Unprobed members receive connections, so the pool is working, whatever the states of other members."""
    kinds = [("new", 1)] * unprobed + [("old", 0)] * drains + [("dead", 1)] * down
    members = tuple(replace(MEMBER, id=name, weight=weight) for name, weight in kinds)
    monitor = PlainMonitor(id="m", type=MonitorType.TCP, delay=1, timeout=1, max_retries=1, **COMMON)
    pool = replace(POOL, members=members, health_monitor=monitor)
    web = replace(WEB, pools=(pool,))
    standing = BalancerStatus(balancer=web, generation=5, applied=AppliedState(generation=5), down=frozenset({"dead"}))
    assert (standing.of_pool(pool), standing.of_balancer()) == (expected, expected)


# Load balancers with announced VIPs


VIPS = Subnet(id="s", cidr=ip_network("10.0.0.0/28"), gateway=None, allocation_pools=(), **COMMON)
POOL_OF_VIPS = Network(id="n", mtu=1500, announced=True, subnets=(VIPS,), **COMMON)


def host(name: str, number: int) -> Host:
    prefix = HostPrefix(cidr=ip_network(f"10.{number}.0.0/24"))
    return Host(name=name, number=number, addresses=(parse_address(f"192.0.2.{number}"),), prefixes=(prefix,))


def announced(*heard: tuple[str, bool], monitor: bool = False, unapplied: str = "") -> tuple[BalancerStatus, Pool]:
    """Return a load balancer with one member on each of two hosts, whose agents are responsive or stale. The first
    agent may have failed to apply an owner."""
    members = tuple(replace(MEMBER, id=f"m{n}", ordinal=n, address=parse_address(f"10.{n}.0.7")) for n in (1, 2))
    asks = PlainMonitor(id="mon", type=MonitorType.TCP, delay=1, timeout=1, max_retries=1, **COMMON)
    pool = replace(POOL, members=members, health_monitor=asks if monitor else None)
    web = replace(WEB, provider="native", pools=(pool,))
    there = apply_changes(Snapshot(), Changes(puts=(POOL_OF_VIPS, host("h1", 1), host("h2", 2), web)), 1)
    agents = {name: Agent(name=name, since=NOON, heartbeat=1, is_responsive=still) for name, still in heard}
    if unapplied:
        first = heard[0][0]
        refused = ApplyFailure(dataplane="native", owner=unapplied, error="no")
        agents[first] = replace(agents[first], apply_failures=(refused,))
    return derive_balancer_status(with_facts(there, AGENTS, agents), web, AppliedState(generation=1)), pool


ERROR, DEGRADED, ONLINE = OperatingStatus.ERROR, OperatingStatus.DEGRADED, OperatingStatus.ONLINE


@pytest.mark.parametrize("monitor", [False, True])
@pytest.mark.parametrize(
    ("heard", "of_members", "of_pool", "whole"),
    [
        ([], {ERROR}, ERROR, ERROR),
        ([("h3", True)], {ERROR}, ERROR, ERROR),
        ([("h1", True)], {ERROR, None}, DEGRADED, DEGRADED),
        ([("h1", True), ("h2", True)], {None}, ONLINE, ONLINE),
        ([("h1", True), ("h2", False)], {None}, ONLINE, DEGRADED),
        ([("h1", False), ("h2", False)], {None}, ONLINE, DEGRADED),
    ],
    ids=["nobody came", "another came", "one came", "both serve", "one is silent", "both are silent"],
)
def test_members_without_a_host_agent_are_in_error_and_provisioning_is_active(
    heard: list[tuple[str, bool]],
    of_members: set[OperatingStatus | None],
    of_pool: OperatingStatus,
    whole: OperatingStatus,
    monitor: bool,
):
    """A stale agent has left its rows in the kernel, so its members are served; the load balancer is DEGRADED."""
    where, pool = announced(*heard, monitor=monitor)
    usual = OperatingStatus.OFFLINE if monitor else OperatingStatus.NO_MONITOR
    assert {where.of_member(pool, each) for each in pool.members} == {each or usual for each in of_members}
    assert (where.of_pool(pool), where.of_balancer()) == (of_pool, whole)
    assert where.provisioning_status(where.balancer) is ProvisioningStatus.ACTIVE


@pytest.mark.parametrize("name", ["h1", "h3"], ids=["where a member is", "where none is"])
@pytest.mark.parametrize(("owner", "whole"), [("loadbalancer/web", DEGRADED), ("loadbalancer/other", ONLINE)])
def test_apply_error_on_one_host_degrades_only_its_load_balancer(name: str, owner: str, whole: OperatingStatus):
    heard = dict.fromkeys((name, "h1", "h2"), True)
    where, pool = announced(*heard.items(), unapplied=owner)
    assert (where.of_pool(pool), where.of_balancer()) == (ONLINE, whole)
    assert where.provisioning_status(where.balancer) is ProvisioningStatus.ACTIVE

"""Ids given by an API front end: a new object never replaces an existing one, of any project."""

from dataclasses import replace

import pytest

from fairlead.changes.catalog import create_offer, create_profile
from fairlead.changes.floatingips import create_floating_ip
from fairlead.changes.ids import IdInUse
from fairlead.changes.l7 import create_policy, create_rule
from fairlead.changes.members import create_member, replace_members
from fairlead.changes.networks import SegmentRequest, create_network
from fairlead.changes.ports import NewPort, create_port
from fairlead.changes.routers import RouterChange, add_interface, create_router, update_router
from fairlead.changes.subnets import create_subnet
from fairlead.compilers.providers import DEFAULT
from fairlead.model.documents.l7 import L7Policy, L7Rule, Reject
from fairlead.model.documents.loadbalancer import MonitorType, PlainMonitor
from fairlead.model.documents.network import Network
from harness.api import NOON
from harness.changes.balancing import ASKER, balancer_request, listener, member, pool, refusal_of
from harness.changes.catalog import GOLD, NORTH, OFFERED, SMALL
from harness.changes.parts import rule, with_policy
from harness.changes.routers import FOUR, ROUTER, WORLD, floating, routed_snapshot, routed_with_floating_ip
from harness.changes.world import (
    ADMIN,
    GUEST,
    GUESTS,
    NETWORK,
    OWNER,
    OWNERS,
    PORT,
    STRANGER,
    refusal,
    snapshot_with,
    subnet,
)

GUESTS_NETWORK = Network(id="theirs", mtu=1442, **GUESTS)


def test_network_id_in_use_is_refused():
    wanted = Network(id="net", mtu=1442, **GUESTS)
    assert refusal(create_network, snapshot_with(NETWORK), GUEST, wanted, SegmentRequest()) == IdInUse(id="net")


def test_subnet_id_in_use_on_any_network_is_refused():
    there = snapshot_with(NETWORK, GUESTS_NETWORK)
    again = subnet("four", "10.9.0.0/24", **GUESTS)
    assert refusal(create_subnet, there, GUEST, "theirs", again) == IdInUse(id="four")
    assert refusal(create_subnet, there, OWNER, "net", subnet("four", "10.9.0.0/24")) == IdInUse(id="four")


def test_port_id_in_use_is_refused():
    wanted = NewPort(id="port", project_id="owner", created_at=NOON, network_id="net")
    assert refusal(create_port, snapshot_with(NETWORK, PORT), OWNER, wanted) == IdInUse(id="port")


def test_ids_in_use_are_refused_for_a_router_and_its_ports():
    theirs = replace(ROUTER, project_id="other")
    assert refusal(create_router, routed_snapshot(), STRANGER, RouterChange(router=theirs)) == IdInUse(id="router")
    other = replace(ROUTER, id="new")
    gateway = RouterChange(router=other, gateway=WORLD, gateway_port_id="port")
    assert refusal(create_router, routed_snapshot(), OWNER, gateway) == IdInUse(id="port")
    snapshot = snapshot_with(*routed_snapshot().networks.values(), PORT, other)
    changed = replace(gateway, router=other)
    assert refusal(update_router, snapshot, OWNER, other, changed, NOON) == IdInUse(id="port")
    assert refusal(add_interface, snapshot, OWNER, other, FOUR, "port", NOON) == IdInUse(id="port")


def test_ids_in_use_are_refused_for_a_floating_ip_and_its_port():
    assert refusal(
        create_floating_ip, routed_with_floating_ip(), OWNER, floating("f", address_port_id="new")
    ) == IdInUse(id="f")
    assert refusal(
        create_floating_ip, routed_with_floating_ip(), OWNER, floating("g", address_port_id="port")
    ) == IdInUse(id="port")


def test_catalog_ids_in_use_are_refused():
    flavor = replace(GOLD, name="other")
    assert refusal(create_offer, OFFERED, ADMIN, flavor) == IdInUse(id="gold")
    for profile in (SMALL, NORTH):
        assert refusal(create_profile, OFFERED, ADMIN, DEFAULT, profile) == IdInUse(id=profile.id)


def test_vip_port_id_in_use_is_refused():
    taken = replace(PORT, id="vip-other")
    snapshot = snapshot_with(NETWORK, taken)
    assert refusal_of(balancer_request, snapshot, "other") == IdInUse(id="vip-other")


def policy(identity: str, *rules: L7Rule) -> L7Policy:
    return L7Policy(id=identity, action=Reject(), rules=rules, **OWNERS)


def monitor(identity: str) -> PlainMonitor:
    return PlainMonitor(id=identity, type=MonitorType.TCP, delay=5, timeout=3, max_retries=2, **OWNERS)


@pytest.mark.parametrize(
    "fields",
    [
        {"pools": (pool("p", member("x", 11), member("x", 12)),)},
        {"pools": (pool("p", member("x", 11)), pool("q", member("x", 11)))},
        {"pools": (pool("p", health_monitor=monitor("x")), pool("q", health_monitor=monitor("x")))},
        {"listeners": (listener("l", 80, l7policies=(policy("x"), policy("x"))),)},
        {"listeners": (listener("l", 80, l7policies=(policy("m", rule("x")), policy("n", rule("x")))),)},
        {"listeners": (listener("x", 80),), "pools": (pool("x"),)},
    ],
)
def test_duplicate_ids_within_a_load_balancer_are_refused(fields: dict[str, object]):
    assert refusal_of(balancer_request, snapshot_with(NETWORK), **fields) == IdInUse(id="x")


def test_id_in_use_is_refused_for_a_new_part():
    before = with_policy()
    assert refusal_of(create_member, before, ASKER, "app", member("a", 13)) == IdInUse(id="a")
    batch = [member("c", 13), member("c", 14)]
    assert refusal_of(replace_members, before, ASKER, "app", batch) == IdInUse(id="c")
    assert refusal_of(create_policy, before, ASKER, "front", policy("no")) == IdInUse(id="no")
    assert refusal_of(create_rule, before, ASKER, "no", rule("a")) == IdInUse(id="a")

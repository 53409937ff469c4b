"""Ids given by an API front end: a new object never replaces an existing one, of any project."""

from dataclasses import replace

import pytest

from fairlead.changes.catalog import create_offer, create_profile
from fairlead.changes.floatingips import create_floating_ip
from fairlead.changes.ids import IdTaken
from fairlead.changes.l7 import create_policy, create_rule
from fairlead.changes.members import create_member, replace_members
from fairlead.changes.networks import AskedSegment, create_network
from fairlead.changes.ports import NewPort, create_port
from fairlead.changes.routers import RouterChange, add_interface, create_router, update_router
from fairlead.changes.subnets import create_subnet
from fairlead.compilers.providers import DEFAULT
from fairlead.model.documents.l7 import L7Policy, L7Rule, Reject
from fairlead.model.documents.loadbalancer import MonitorType, PlainMonitor
from fairlead.model.documents.network import Network
from harness.api import NOON
from harness.changes.balancing import ASKER, built, listener, member, pool, refusal_of
from harness.changes.catalog import GOLD, NORTH, OFFERED, SMALL
from harness.changes.parts import rule, with_policy
from harness.changes.routers import FOUR, ROUTER, WORLD, floating, joined, led
from harness.changes.world import ADMIN, GUEST, GUESTS, NETWORK, OWNER, OWNERS, PORT, STRANGER, having, refusal, subnet

GUESTS_NETWORK = Network(id="theirs", mtu=1442, **GUESTS)


def test_a_new_network_takes_no_place():
    wanted = Network(id="net", mtu=1442, **GUESTS)
    assert refusal(create_network, having(NETWORK), GUEST, wanted, AskedSegment()) == IdTaken(id="net")


def test_a_new_subnet_takes_no_place_on_any_network():
    there = having(NETWORK, GUESTS_NETWORK)
    again = subnet("four", "10.9.0.0/24", **GUESTS)
    assert refusal(create_subnet, there, GUEST, "theirs", again) == IdTaken(id="four")
    assert refusal(create_subnet, there, OWNER, "net", subnet("four", "10.9.0.0/24")) == IdTaken(id="four")


def test_a_new_port_takes_no_place():
    wanted = NewPort(id="port", project_id="owner", created_at=NOON, network_id="net")
    assert refusal(create_port, having(NETWORK, PORT), OWNER, wanted) == IdTaken(id="port")


def test_a_new_router_takes_no_place_nor_do_its_ports():
    theirs = replace(ROUTER, project_id="other")
    assert refusal(create_router, joined(), STRANGER, RouterChange(router=theirs)) == IdTaken(id="router")
    other = replace(ROUTER, id="new")
    gateway = RouterChange(router=other, gateway=WORLD, gateway_port_id="port")
    assert refusal(create_router, joined(), OWNER, gateway) == IdTaken(id="port")
    snapshot = having(*joined().networks.values(), PORT, other)
    changed = replace(gateway, router=other)
    assert refusal(update_router, snapshot, OWNER, other, changed, NOON) == IdTaken(id="port")
    assert refusal(add_interface, snapshot, OWNER, other, FOUR, "port", NOON) == IdTaken(id="port")


def test_a_new_floating_ip_takes_no_place_nor_does_its_port():
    assert refusal(create_floating_ip, led(), OWNER, floating("f", address_port_id="new")) == IdTaken(id="f")
    assert refusal(create_floating_ip, led(), OWNER, floating("g", address_port_id="port")) == IdTaken(id="port")


def test_what_is_new_in_the_catalog_takes_no_place():
    flavor = replace(GOLD, name="other")
    assert refusal(create_offer, OFFERED, ADMIN, flavor) == IdTaken(id="gold")
    for profile in (SMALL, NORTH):
        assert refusal(create_profile, OFFERED, ADMIN, DEFAULT, profile) == IdTaken(id=profile.id)


def test_the_port_of_a_new_vip_takes_no_place():
    taken = replace(PORT, id="vip-other")
    snapshot = having(NETWORK, taken)
    assert refusal_of(built, snapshot, "other") == IdTaken(id="vip-other")


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
def test_each_part_of_a_load_balancer_has_its_own_id(fields: dict[str, object]):
    assert refusal_of(built, having(NETWORK), **fields) == IdTaken(id="x")


def test_a_new_part_takes_no_place_beside_others():
    before = with_policy()
    assert refusal_of(create_member, before, ASKER, "app", member("a", 13)) == IdTaken(id="a")
    batch = [member("c", 13), member("c", 14)]
    assert refusal_of(replace_members, before, ASKER, "app", batch) == IdTaken(id="c")
    assert refusal_of(create_policy, before, ASKER, "front", policy("no")) == IdTaken(id="no")
    assert refusal_of(create_rule, before, ASKER, "no", rule("a")) == IdTaken(id="a")

"""Connections to cut, by both endpoints: of members that are down, and of pools that reset connections."""

from dataclasses import replace

import pytest
from immutables import Map

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.health import HealthKey
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.queries import conntrack_flush
from fairlead.model.queries.connection_resets import reset_address, reset_networks
from fairlead.model.queries.conntrack_flush import (
    TrackedConnection,
    UnansweredAttempts,
    find_lost_connections,
    find_unanswered_attempts,
    is_still_served,
    is_unanswered,
    list_flows_to_flush,
)
from fairlead.model.queries.probes import subnets_without_probe_source
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot, with_health
from harness.case import parse_model

MODEL = """
network net1 10.0.0.0/24 fd00::/64
network public external wire=physnet 203.0.113.0/24
router r1 net1=10.0.0.1 gateway:public=203.0.113.10
floating f1 public=203.0.113.50 r1=web-vip:10.0.0.10
port vm1 net1 10.0.0.11 fd00::11
probes net1 10.0.0.2
web vip=10.0.0.10,fd00::10 on=net1 {listeners}
"""
TWO = "tcp:80{monitor=TCP,reset}=a/10.0.0.11:8080,b/10.0.0.12:8080,c/[fd00::11]:8080 tcp:81{monitor=TCP}=d/10.0.0.11:80"
FOUR, FLOATING, SIX = "10.0.0.10", "203.0.113.50", "fd00::10"


def snapshot_of(listeners: str, *down: HealthKey, agents: bool = True) -> Snapshot:
    documents, _ = parse_model(MODEL.replace("{listeners}", listeners).strip(), {})
    snapshot = apply_changes(Snapshot(agents_probe=agents), Changes(puts=tuple(documents.values())), 1)
    members = {
        each.id.rpartition("-")[2]: each.id for pool in snapshot.load_balancers["web"].pools for each in pool.members
    }
    keys = (members[key] if isinstance(key, str) else (members[key[0]], key[1]) for key in down)
    return with_health(snapshot, "web", frozenset(keys))


def cuts_of(snapshot: Snapshot, balancer_id: str) -> set[TrackedConnection]:
    return {
        cut
        for lost in find_lost_connections(snapshot, balancer_id)
        for cut in conntrack_flush.list_connections_to_flush(snapshot, balancer_id, lost)
    }


def left_of(before: Snapshot, after: Snapshot, balancer_id: str) -> set[TrackedConnection]:
    """Return connections whose member no longer serves them."""
    found = {
        cut
        for flows in conntrack_flush.find_ended_flows(before, after, balancer_id)
        for cut in list_flows_to_flush(flows)
    }
    now = after.load_balancers.get(balancer_id)
    detached = {FLOATING} if not after.port_floating_ips else set[str]()
    return {cut for cut in found if now is None or str(cut.address) in detached or not is_still_served(now, cut)}


def cut(
    address: str, port: int, member: str, member_port: int, transport: Transport = Transport.TCP
) -> TrackedConnection:
    return TrackedConnection(transport, parse_address(address), port, parse_address(member), member_port)


def test_no_connections_are_cut_without_a_down_member_in_a_resetting_pool():
    assert cuts_of(snapshot_of(TWO), "web") == set()
    assert cuts_of(snapshot_of(TWO, "d"), "web") == set(), "of streams"
    assert cuts_of(snapshot_of(TWO), "nobody") == set()


def test_cuts_of_a_down_member_cover_each_vip_and_floating_ip_of_its_family():
    wanted = {cut(FOUR, 80, "10.0.0.11", 8080), cut(FLOATING, 80, "10.0.0.11", 8080)}
    assert cuts_of(snapshot_of(TWO, "a", "d"), "web") == wanted
    assert cuts_of(snapshot_of(TWO, "c"), "web") == {cut(SIX, 80, "fd00::11", 8080)}


def test_cuts_of_a_member_down_at_one_port_cover_only_that_port():
    ports = "tcp:80+81{monitor=TCP,reset}=a/10.0.0.11 udp:53{monitor=UDP-CONNECT,reset}=e/10.0.0.11:5353"
    assert cuts_of(snapshot_of(ports, ("a", 81)), "web") == {
        cut(address, 81, "10.0.0.11", 81) for address in (FOUR, FLOATING)
    }
    assert cuts_of(snapshot_of(ports, "a", "e"), "web") == {
        found
        for address in (FOUR, FLOATING)
        for found in (
            cut(address, 80, "10.0.0.11", 80),
            cut(address, 81, "10.0.0.11", 81),
            cut(address, 53, "10.0.0.11", 5353, Transport.UDP),
        )
    }


BOTH = (
    "tcp:53{monitor=TCP}=a/10.0.0.11:5300 "
    "udp:53{monitor=UDP-CONNECT}=e/10.0.0.11:5300,f/10.0.0.12:5300,g/[fd00::11]:5300"
)
E = {cut(address, 53, "10.0.0.11", 5300, Transport.UDP) for address in (FOUR, FLOATING)}
F = {cut(address, 53, "10.0.0.12", 5300, Transport.UDP) for address in (FOUR, FLOATING)}
G = {cut(SIX, 53, "fd00::11", 5300, Transport.UDP)}


@pytest.mark.parametrize(
    ("listeners", "down", "wanted"),
    [
        (BOTH, ("e",), E),
        (BOTH, ("g",), G),
        (BOTH.replace("UDP-CONNECT", "UDP-CONNECT+off"), (), set()),
        (BOTH.replace("12:5300", "12:5300*0"), (), set()),  # it drains
        (BOTH.replace("12:5300", "12:5300!").replace("fd00::11]:5300", "fd00::11]:5300!"), (), F | G),
        (
            BOTH.replace("tcp:53{monitor=TCP}=a/10.0.0.11:5300", "tcp:53{monitor=TCP,reset}=a/10.0.0.11:5300!"),
            (),
            set(),
        ),
        (
            BOTH.replace("udp", "sctp").replace("UDP-CONNECT", "SCTP"),
            ("e",),
            {each._replace(transport=Transport.SCTP) for each in E},
        ),
    ],
)
def test_datagram_flows_of_down_or_disabled_members_are_cut_without_reset(
    listeners: str, down: tuple[str, ...], wanted: set[TrackedConnection]
):
    assert cuts_of(snapshot_of(listeners, *down), "web") == wanted


FEWER = BOTH.replace("f/10.0.0.12:5300,", "")


@pytest.mark.parametrize(
    ("then", "wanted"),
    [
        (BOTH, set()),
        (BOTH.replace("12:5300", "12:5300*0"), set()),
        (BOTH.replace("12:5300", "12:5300!"), set()),  # from the slice
        (FEWER, F),
        (BOTH.replace("12:5300", "12:5301"), F),
        (BOTH.replace("udp:53", "udp:54"), E | F | G),
        ("tcp:53{monitor=TCP}=a/10.0.0.11:5300", E | F | G),
        (BOTH.replace("udp:53{", "udp:53+54{").replace(":5300", ""), E | F | G),
        (BOTH.replace("udp:53{monitor=UDP-CONNECT}", "udp:53{monitor=UDP-CONNECT+delay=9}"), set()),
    ],
)
def test_datagram_flows_of_removed_members_ports_and_listeners_are_cut(then: str, wanted: set[TrackedConnection]):
    assert left_of(snapshot_of(BOTH), snapshot_of(then), "web") == wanted


def test_datagram_flows_of_removed_or_disabled_balancers_are_cut():
    before, empty = snapshot_of(BOTH), Snapshot()
    assert left_of(before, empty, "web") == E | F | G
    assert left_of(empty, before, "web") == set()
    assert left_of(before, before, "web") == set()
    web = before.load_balancers["web"]
    off = replace(web, admin_state_up=False)
    assert left_of(before, replace(before, load_balancers=Map(web=off)), "web") == E | F | G
    assert left_of(replace(before, load_balancers=Map(web=off)), before, "web") == set()
    detached = replace(before, port_floating_ips=Map())
    assert left_of(before, detached, "web") == {each for each in E | F if str(each.address) == FLOATING}


def test_unanswered_attempts_to_a_down_member_match_both_endpoints():
    kept = "tcp:80+81{monitor=TCP}=a/10.0.0.11,b/10.0.0.12 udp:53{monitor=UDP-CONNECT}=e/10.0.0.11:5300"
    assert find_unanswered_attempts(snapshot_of(kept), "web") == set()
    assert find_unanswered_attempts(snapshot_of(TWO, "a"), "web") == set(), "all of that pool is cut"
    snapshot = snapshot_of(kept, ("a", 81), "e")
    (asked,) = find_unanswered_attempts(snapshot, "web")
    assert isinstance(asked, UnansweredAttempts)
    found = {
        each
        for address in (FOUR, FLOATING, SIX, "10.0.0.99")
        for port in (80, 81, 82)
        for member in ("10.0.0.11", "10.0.0.12")
        for each in (cut(address, port, member, port), cut(address, port, member, port, Transport.UDP))
        if is_unanswered(snapshot, "web", {asked}, each)
    }
    assert found == {cut(FOUR, 81, "10.0.0.11", 81), cut(FLOATING, 81, "10.0.0.11", 81)}
    assert not is_unanswered(snapshot, "nobody", {asked}, min(found))
    six = snapshot_of("tcp:80{monitor=TCP}=c/[fd00::11]:8080", "c")
    assert is_unanswered(six, "web", find_unanswered_attempts(six, "web"), cut(SIX, 80, "fd00::11", 8080))


def test_load_balancer_awaiting_migration_has_no_connections_cut():
    documents, _ = parse_model(MODEL.replace("{listeners}", TWO).replace("on=net1", "on=net1 prepared").strip(), {})
    snapshot = apply_changes(Snapshot(), Changes(puts=tuple(documents.values())), 1)
    found = [each.id for each in snapshot.load_balancers["web"].pools[0].members]
    assert cuts_of(with_health(snapshot, "web", frozenset(found)), "web") == set()


@pytest.mark.parametrize(
    ("listeners", "down", "version", "wanted"),
    [
        (TWO, ("a", "b"), 4, ("net1", "10.0.0.2")),
        (TWO, ("c",), 4, None),  # the down member has the other IP version
        (TWO, ("c",), 6, None),  # there is no IPv6 address
        (TWO.replace(",reset", ""), ("a", "b"), 4, None),
        (TWO.replace("monitor=TCP,reset", "monitor=TCP+off,reset"), ("a", "b"), 4, None),
        ("udp:53{monitor=UDP-CONNECT,reset}=a/10.0.0.11:53", ("a",), 4, None),
    ],
)
def test_reset_address_of_a_pool_with_all_members_down_is_the_probe_address(
    listeners: str, down: tuple[str, ...], version: int, wanted: tuple[str, str] | None
):
    snapshot = snapshot_of(listeners, *down)
    balancer = snapshot.load_balancers["web"]
    found = reset_address(snapshot, balancer, balancer.pools[0], version)
    assert found == (None if wanted is None else (wanted[0], parse_address(wanted[1])))
    resets = "reset" in listeners and "off" not in listeners and "tcp" in listeners
    assert reset_networks(snapshot, balancer) == ({"net1"} if resets else frozenset())
    assert reset_address(snapshot_of(listeners, *down, agents=False), balancer, balancer.pools[0], version) is None


@pytest.mark.parametrize(
    ("listeners", "agents", "wanted"),
    [(TWO, True, 1), (TWO, False, 0), (TWO.replace(",reset", ""), True, 0), (TWO.replace("TCP,", "TCP+off,"), True, 0)],
)
def test_ipv6_probe_address_is_allocated_only_where_resets_may_be_sent(listeners: str, agents: bool, wanted: int):
    snapshot = snapshot_of(listeners, agents=agents)
    found = subnets_without_probe_source(snapshot, snapshot.load_balancers["web"])
    (six,) = (each.id for each in snapshot.networks["net1"].subnets if each.cidr.version == 6)
    assert found == ({six: "net1"} if wanted else {})

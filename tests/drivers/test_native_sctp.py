"""SCTP through three plain hosts, with both ends in user space: associations behave as flows of TCP and UDP."""

import contextlib
import socket
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_network
from itertools import product
from typing import Any

import pytest

from fairlead.dataplane.flow_slot import flow_slot, source_slot
from fairlead.dataplane.native import Service
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.queries.statistics import AnnouncedPlace, CountedService
from fairlead.node.prober import IPPROTO_SCTP
from harness.associations import HEARTBEAT, Association, SctpMember, answering, chunk, create_association
from harness.fabric import HOSTS, MEMBER_PORT, NO_REPLY_TIMEOUT, PORT, VIPS, Fabric, fabric, member_address, rows_of
from harness.fabric_counters import active, read, values
from harness.net_namespace import NetNamespace, require_root
from harness.sctp_servers import can_emulate_sctp
from harness.waiting import DEADLINE, wait_equal, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not can_emulate_sctp(), reason="raw sockets are for root, and this kernel may have SCTP of its own"
    ),
]

EVEN = bytes(slot % 3 for slot in range(256))
DRAINED = bytes(slot % 2 if place == 2 else place for slot, place in enumerate(EVEN))
"""Slot table without the third host."""
MOVED = {slot: 3 for slot, place in enumerate(EVEN) if place == 2}


@pytest.fixture
def site() -> Iterator[Fabric]:
    require_root("/usr/sbin/nft")
    with fabric() as made:
        yield made


@pytest.fixture
def members(site: Fabric) -> Iterator[dict[int, SctpMember]]:
    """Yield members, and check that every received packet has their own port and a valid checksum."""
    with ExitStack() as stack:
        made = {each: stack.enter_context(answering(site.members[each], f"m{each}")) for each in HOSTS}
        yield made
        assert {each.name: (0, 0) for each in made.values()} == {
            each.name: (each.bad_checksums, each.other_port_packets) for each in made.values()
        }


def serve(site: Fabric, number: int, slots: bytes, **known: Any) -> None:
    rows = (
        replace(row, transport=Transport.SCTP) if isinstance(row, Service) and row.transport is Transport.UDP else row
        for row in rows_of(number, slots, **known)
    )
    site.put(number, rows)


def opened(site: Fabric, vip: IPAddress, where: NetNamespace | None = None) -> Association:
    made = create_association(where or site.client, vip)
    site.flows.append(made)
    made.open()
    return made


def expected(flow: Association, slots: bytes = EVEN) -> str:
    return f"m{slots[flow_slot(flow.client, (flow.vip, PORT), flow.transport)] + 1}"


def test_association_reaches_the_member_of_its_slot_from_any_host(site: Fabric, members: dict[int, SctpMember]) -> None:
    site.open()
    for number in HOSTS:
        serve(site, number, EVEN)
    for entry, vip in product(HOSTS, VIPS):
        site.route_to(entry)
        for _ in range(12):
            flow = opened(site, vip)
            assert [flow.request(), flow.request(), flow.request(bytes(1200))] == [expected(flow)] * 3, (entry, vip)
            flow.check_heartbeat()
            flow.close()
    wait_equal(lambda: [each.tags_by_peer for each in members.values() if each.tags_by_peer], [])


def test_source_affinity_selects_one_member_over_ipv6_tunnels(site: Fabric, members: dict[int, SctpMember]) -> None:
    site.open(6)
    for number in HOSTS:
        serve(site, number, EVEN, by_source=True)
    for entry, vip in product(HOSTS, VIPS):
        site.route_to(entry)
        flows = [opened(site, vip) for _ in range(4)]
        assert {flow.request() for flow in flows} == {f"m{EVEN[source_slot(flows[0].client[0], vip)] + 1}"}


def test_clients_on_and_behind_hosts_use_the_same_slot_table(site: Fabric, members: dict[int, SctpMember]) -> None:
    """One client is the selected member itself, which is reached from its host's address."""
    site.open()
    for number in HOSTS:
        serve(site, number, EVEN)
    site.route_to(1)
    for vip, where in product(VIPS, (site.hosts[2], site.members[2])):
        flows = [opened(site, vip, where) for _ in range(24)]
        answers = [flow.request() for flow in flows]
        assert answers == [expected(flow) for flow in flows]
        assert set(answers) == {"m1", "m2", "m3"}


def test_associations_survive_moved_slots_on_any_host(site: Fabric, members: dict[int, SctpMember]) -> None:
    """Associations survive moved slots on any host, while hosts are updated one by one and the router moves their
    packets."""
    site.open()
    places = site.client, site.hosts[1], site.hosts[3], site.members[1], site.members[3]
    for number in HOSTS:
        serve(site, number, EVEN)
    site.route_to(1)
    old = [opened(site, vip, where) for vip in VIPS for where in places for _ in range(8)]
    names = [flow.request() for flow in old]
    assert names == [expected(flow) for flow in old]
    for number in HOSTS:
        mine = {slot: host for slot, host in MOVED.items() if DRAINED[slot] == number - 1}
        serve(site, number, DRAINED, before=mine)
        assert [flow.request() for flow in old] == names, f"host {number} was told"
    new = [opened(site, vip, where) for vip in VIPS for where in places for _ in range(8)]
    begun = [flow.request() for flow in new]
    assert begun == [expected(flow, DRAINED) for flow in new]
    for entry in HOSTS:
        site.route_to(entry)
        assert [flow.request() for flow in old] == names, f"by host {entry}"
        assert [flow.request() for flow in new] == begun, f"by host {entry}"
        for flow in (*old, *new):
            flow.check_heartbeat()
    for number in HOSTS:
        serve(site, number, DRAINED)
    assert [flow.request() for flow in new] == begun, "the transition is over"


@pytest.mark.parametrize("order", [HOSTS, HOSTS[::-1]], ids=str)
@pytest.mark.parametrize("entry", HOSTS)
def test_associations_stay_with_their_members_when_a_drained_host_returns(
    site: Fabric, members: dict[int, SctpMember], entry: int, order: tuple[int, ...]
) -> None:
    """Associations stay where they are when a drained host returns. While hosts disagree a packet may be lost, never
    misdelivered."""
    site.open()
    for number in HOSTS:
        serve(site, number, EVEN)
    site.route_to(entry)
    flows = [opened(site, vip) for vip in VIPS for _ in range(12)]
    names = [flow.request() for flow in flows]
    moved = {slot: DRAINED[slot] + 1 for slot in MOVED}
    for number in HOSTS:
        serve(site, number, DRAINED, before={slot: 3 for slot, to in moved.items() if to == number})
    meanwhile = [opened(site, vip) for vip in VIPS for _ in range(12)]
    begun = [flow.request() for flow in meanwhile]
    assert (set(names), set(begun)) == ({"m1", "m2", "m3"}, {"m1", "m2"})
    flows, names = flows + meanwhile, names + begun
    for number in order:
        serve(site, number, EVEN, before=moved if number == 3 else {})
        for flow, name in zip(flows, names, strict=True):
            assert _replying_member(flow) <= {name}, (number, flow)
    for other in HOSTS:
        site.route_to(other)
        assert [flow.request() for flow in flows] == names, f"by host {other}"
    fresh = [opened(site, vip) for vip in VIPS for _ in range(12)]
    assert [flow.request() for flow in fresh] == [expected(flow) for flow in fresh]


def _replying_member(flow: Association) -> set[str]:
    """Return the name of the replying member, or nothing if the packet was lost."""
    flow.socket.settimeout(0.1)
    try:
        return {flow.request()}
    except TimeoutError:
        return set()
    finally:
        flow.socket.settimeout(DEADLINE)


def begun_with(site: Fabric, vip: IPAddress, member: int, slots: bytes = EVEN) -> Association:
    """Return an association, not yet opened, from a port whose slot belongs to this member."""
    while True:
        made = create_association(site.client, vip)
        if expected(made, slots) == f"m{member}":
            site.flows.append(made)
            return made
        made.socket.close()


def test_packets_without_an_association_end_at_the_slot_owner(site: Fabric, members: dict[int, SctpMember]) -> None:
    """Packets without an association end at the slot's owner, to which the previous owner returns them. DATA does not
    create a conntrack entry, so the host itself rejects it, by ICMP, as it has no SCTP. A HEARTBEAT may belong to an
    association that conntrack has lost, so the member receives it."""
    site.open()
    for number in HOSTS:
        mine = {slot: host for slot, host in MOVED.items() if DRAINED[slot] == number - 1}
        serve(site, number, DRAINED, before=mine)
    for entry, vip, member in product(HOSTS, VIPS, (1, 2)):
        site.route_to(entry)
        for slot_moved in (False, True):
            flow = begun_with(site, vip, member, DRAINED)
            while (expected(flow) == "m3") is not slot_moved:
                flow = begun_with(site, vip, member, DRAINED)
            flow.peer_tag = 99
            for each in members.values():
                each.received_chunks.clear()
            with pytest.raises(OSError, match=r"Errno (92|71)"):  # from ICMP and from ICMPv6
                flow.request()
            assert not any(each.received_chunks for each in members.values())
            flow.send(chunk(HEARTBEAT, b"\0\1\0\10beat"))
            wait_until(
                lambda: {number: each.received_chunks for number, each in members.items() if each.received_chunks}
            )
            assert {number for number, each in members.items() if each.received_chunks} == {member}


def test_untracked_association_continues_after_a_heartbeat(site: Fabric, members: dict[int, SctpMember]) -> None:
    """A HEARTBEAT, which idle endpoints send, restores an association that conntrack has lost, as after a host's
    restart."""
    site.open()
    for number in HOSTS:
        serve(site, number, EVEN)
        site.hosts[number].set_sysctl("net/netfilter/nf_conntrack_sctp_timeout_established", 1)
    site.route_to(1)
    flows = [opened(site, vip) for vip in VIPS for _ in range(12)]
    names = [flow.request() for flow in flows]
    wait_equal(lambda: active(site, Transport.SCTP), 0)
    for number in HOSTS:
        site.hosts[number].set_sysctl("net/netfilter/nf_conntrack_sctp_timeout_established", 210)
    for flow in flows:
        flow.check_heartbeat()
    assert [flow.request() for flow in flows] == names == [expected(flow) for flow in flows]


def test_client_outside_the_allowed_cidrs_gets_no_association(site: Fabric, members: dict[int, SctpMember]) -> None:
    site.open()
    others = tuple(sorted((ip_network("198.51.100.64/26"), ip_network("fd52::/64")), key=str))
    for number in HOSTS:
        serve(site, number, EVEN, clients=others)
    for entry, vip in product(HOSTS, VIPS):
        site.route_to(entry)
        flow = begun_with(site, vip, 1)
        flow.socket.settimeout(NO_REPLY_TIMEOUT)
        with pytest.raises(TimeoutError):
            flow.open()


def test_listener_without_members_rejects_associations(site: Fabric) -> None:
    """A listener without members rejects associations by ICMP: protocol unreachable over IPv4, with which clients fail
    immediately, and port unreachable over IPv6, for which nftables has no such code."""
    site.open()
    for number in HOSTS:
        serve(site, number, b"")
    site.route_to(1)
    for vip, where in product(VIPS, (site.client, site.members[3])):
        with pytest.raises(OSError, match="Protocol not available" if vip.version == 4 else "Connection refused"):
            opened(site, vip, where)
    refused = {service_of(vip): 1 for vip in VIPS}
    assert {number: values(read(site, number), "errors") for number in HOSTS} == {1: refused, 2: {}, 3: refused}


def test_associations_and_bytes_are_counted_once_on_the_host_of_the_member(
    site: Fabric, members: dict[int, SctpMember]
) -> None:
    site.open()
    for number in HOSTS:
        serve(site, number, EVEN)
    count: dict[int, Counter[CountedService]] = {number: Counter() for number in HOSTS}
    for entry, vip, where in product(HOSTS, VIPS, (site.client, site.hosts[2], site.members[2])):
        site.route_to(entry)
        for _ in range(6):
            flow = opened(site, vip, where)
            count[int(flow.request(bytes(1000))[1:])][service_of(vip)] += 1
    assert active(site, Transport.SCTP) == sum(each.total() for each in count.values())
    for number in HOSTS:
        found = read(site, number)
        assert values(found, "connections") == dict(count[number])
        for service, many in count[number].items():
            header = 20 if service.address.version == 4 else 40
            said, answered = (32, 24, 28 + 1000, 28), (44, 16, 28 + 20)
            assert found[service].counts["bytes_in"].value == many * (sum(said) + 4 * header)
            assert found[service].counts["bytes_out"].value == many * (sum(answered) + 3 * header)


def service_of(vip: IPAddress) -> CountedService:
    return CountedService(place=AnnouncedPlace(), transport=Transport.SCTP, address=vip, port=PORT)


def test_path_mtu_errors_reach_the_member_of_the_association(site: Fabric, members: dict[int, SctpMember]) -> None:
    """A path MTU error that the router sends to a VIP reaches the member, whichever host receives it."""
    site.open()
    for number in HOSTS:
        serve(site, number, EVEN)
    site.router.ip("link set c0 mtu 1300")
    for each in members.values():
        each.reply_repeats = 700
    for entry, vip, member in product(HOSTS, VIPS, HOSTS):
        site.route_to(entry)
        site.members[member].run("ip", "route", "flush", "cache")  # forget an earlier path MTU
        flow = begun_with(site, vip, member)
        flow.open()
        with ExitStack() as stack:
            told = {each: stack.enter_context(_reported_errors(site.members[each], vip.version)) for each in HOSTS}
            flow.socket.settimeout(NO_REPLY_TIMEOUT)
            with pytest.raises(TimeoutError):
                flow.request()
            wanted = (member_address(member, vip.version), flow.client[0], MEMBER_PORT, flow.client[1])
            found: dict[int, list[object]] = {each: [] for each in HOSTS}
            wait_until(partial(_collect, told, vip.version, found), "a member is told")
            assert found == {each: [wanted] if each == member else [] for each in HOSTS}


def _collect(told: Mapping[int, socket.socket], version: int, found: Mapping[int, list[object]]) -> bool:
    """Return whether any of these sockets has received an error."""
    for each, heard in told.items():
        found[each].extend(_too_long(heard, version))
    return any(found.values())


def _reported_errors(where: NetNamespace, version: int) -> socket.socket:
    """Open a raw socket that receives ICMP."""
    with where.inside():
        if version == 4:
            return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        return socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)


def _too_long(told: socket.socket, version: int) -> list[tuple[IPAddress, IPAddress, int, int]]:
    """Return addresses and ports of SCTP packets that exceeded a path MTU."""
    found = []
    told.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while octets := told.recv(2000):
            its = octets[20:] if version == 4 else octets
            if (its[0], its[1]) == ((3, 4) if version == 4 else (2, 0)):
                packet = its[8:]
                kind, ends, ports = (9, (12, 16, 20), 20) if version == 4 else (6, (8, 24, 40), 40)
                assert packet[kind] == IPPROTO_SCTP
                source, destination = (ip_address(packet[ends[each] : ends[each + 1]]) for each in (0, 1))
                found.append((source, destination, *struct.unpack_from("!HH", packet, ports)))
    return found

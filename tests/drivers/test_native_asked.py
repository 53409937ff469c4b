"""Conntrack entries of flows sent to another host: deleted when their slots return, and no other entries are."""

import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from fairlead.dataplane.native import TUNNEL_PORTS, Service
from fairlead.dataplane.rows import diff
from fairlead.drivers.native.driver import Native
from fairlead.drivers.native.netlink import NETFILTER, Message, Netlink, attributes
from fairlead.drivers.native.nftables import connections
from fairlead.drivers.native.nftables.connections import DESTINATION_TRANSLATED, FIRST_PACKET, GET
from fairlead.drivers.native.nftables.ruleset import SECOND_MARK
from fairlead.drivers.native.prerequisites import Prerequisites
from fairlead.drivers.native.row_writer import _ends_queries
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.queries.conntrack_flush import TrackedConnection
from harness.fabric import HOSTS, NO_REPLY_TIMEOUT, OWNER, PORT, VIPS, Fabric, fabric, member_address, rows_of
from harness.net_namespace import NetNamespace, require_root
from harness.waiting import DEADLINE

pytestmark = pytest.mark.slow

BOTH = Transport.TCP, Transport.UDP
EVEN = bytes(slot % 3 for slot in range(256))
MOVED = bytes(0 if place == 2 else place for place in EVEN)
BEFORE = {slot: 3 for slot, place in enumerate(EVEN) if place == 2}
THEIRS = f"""
table inet theirs {{
    chain forward {{
        type filter hook forward priority filter; policy accept;
        th dport 8080 ct mark set ct mark | {SECOND_MARK:#x}
    }}
}}
"""
"""Operator's rule that sets, in connection marks, a bit that Fairlead uses for VIPs."""


@pytest.fixture
def site() -> Iterator[Fabric]:
    require_root("/usr/sbin/nft")
    with fabric() as made:
        yield made


def tracked(host: NetNamespace) -> set[tuple[bytes, int, int, bool]]:
    """Return the destinations of connections with the mark, and whether they are translated."""
    return {
        (to, number, port, bool(status & DESTINATION_TRANSLATED))
        for to, number, port, status in entries(host, SECOND_MARK)
    }


def entries(host: NetNamespace, mark: int = 0) -> set[tuple[bytes, int, int, int]]:
    """Return destination and status of all connections, or of those whose mark has one of these bits."""
    found = set()
    with host.inside(), closing(Netlink(NETFILTER)) as netlink:
        for family, first in FIRST_PACKET.items():
            for _, body in netlink.dump(Message(GET, struct.pack(">BBH", family, 0, 0))):
                its = attributes(body[4:])
                if not mark or int.from_bytes(its.get(8, b"")) & mark:
                    found.add((*first.unpack_from(body), int.from_bytes(its[3])))
    return found


@pytest.mark.parametrize("version", [4, 6])
def test_tunnel_packets_bypass_conntrack(site: Fabric, version: int) -> None:
    """Tunnels bypass conntrack, where each flow would take an entry on both hosts; other senders' packets to the port
    do not."""
    site.open(version)
    site.route_to(1)
    for number in HOSTS:
        site.serve(number, bytes([1] * 256))
    flows = [site.flow(each, vip, where) for each in BOTH for vip in VIPS for where in (site.client, site.hosts[1])]
    assert {flow.request() for flow in flows} == {"m2"}
    with site.client.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.sendto(b"x", (str(member_address(1, 4)), min(TUNNEL_PORTS)))
    found = {(host, to) for host in HOSTS for to, _, port, _ in entries(site.hosts[host]) if port in TUNNEL_PORTS}
    assert found == {(1, member_address(1, 4).packed)}


def test_entries_of_services_with_returning_slots_are_deleted_and_no_others(site: Fabric) -> None:
    site.open()
    site.hosts[1].nft(THEIRS)
    for number in HOSTS:
        site.serve(number, EVEN)
    site.route_to(3)
    mine = [
        flow for flow in (site.flow(Transport.TCP, vip) for vip in VIPS for _ in range(40)) if flow.request() == "m1"
    ]
    old = [
        flow for flow in (site.flow(Transport.TCP, vip) for vip in VIPS for _ in range(40)) if flow.request() == "m3"
    ]
    site.serve(1, MOVED, before=BEFORE)
    site.serve(2, MOVED)
    site.serve(3, MOVED)
    site.route_to(1)
    assert {flow.request() for flow in old} == {"m3"}
    others = [_direct(site.client, member_address(1, version)) for version in (4, 6)]
    asked = {(vip.packed, socket.IPPROTO_TCP, PORT, False) for vip in VIPS}
    direct = {(member_address(1, version).packed, socket.IPPROTO_TCP, 8080, False) for version in (4, 6)}
    here = {(vip.packed, socket.IPPROTO_TCP, PORT, True) for vip in VIPS}
    assert tracked(site.hosts[1]) == asked | direct | here
    for flow in old:  # otherwise late packets arrive after the slots have moved again, and create new entries
        flow.acknowledge()
    noted = site.hosts[1].run("nft", "list", "set", "inet", "fairlead", "asked4")
    assert f"{VIPS[0]} . tcp . {PORT}" in noted
    for number in (3, 2, 1):
        site.serve(number, EVEN)
    site.serve(1, MOVED, before=BEFORE)
    assert tracked(site.hosts[1]) == direct | here
    assert "elements" not in site.hosts[1].run("nft", "list", "set", "inet", "fairlead", "asked4")
    assert ({flow.request() for flow in old}, {flow.request() for flow in mine}) == ({"m3"}, {"m1"})
    for each in others:
        each.close()


def _direct(client: NetNamespace, to: IPAddress) -> socket.socket:
    with client.inside():
        return socket.create_connection((str(to), 8080), timeout=DEADLINE)


def test_service_that_loses_all_slots_ends_forwarding() -> None:
    [there] = [row for row in rows_of(1, EVEN) if isinstance(row, Service) and row.transport is Transport.UDP][:1]
    nobody = replace(there, slots=b"", targets=())
    assert _ends_queries(there, nobody)
    assert not _ends_queries(there, there)
    assert not _ends_queries(nobody, there)


@pytest.mark.parametrize("version", [4, 6])
def test_datagrams_of_a_host_follow_the_slot_and_its_previous_owner(site: Fabric, version: int) -> None:
    """A sender that never pauses, such as a log forwarder, stays tracked when the slot becomes the host's own. Its flow
    stays with the previous owner exactly as long as that owner is in the slot's record."""
    site.open(version)
    for number in HOSTS:
        site.serve(number, EVEN)
    flows = [site.flow(Transport.UDP, vip, site.hosts[1]) for vip in VIPS for _ in range(40)]
    first = [flow.request() for flow in flows]
    assert set(first) == {"m1", "m2", "m3"}
    for number in HOSTS:
        site.serve(number, MOVED, before=BEFORE if number == 1 else {})
    assert [flow.request() for flow in flows] == first
    site.serve(1, MOVED)
    moved = [each if each != "m3" else "m1" for each in first]
    assert [flow.request() for flow in flows] == moved
    for number in HOSTS:
        site.serve(number, EVEN)
    assert [flow.request() for flow in flows] == moved, "the host's own member knows them"


def test_datagrams_of_a_host_never_reach_its_own_sockets(site: Fabric) -> None:
    """Datagrams of a host never reach its own sockets between a slot's change and the deletion of their conntrack
    entry."""
    site.open()
    for number in HOSTS:
        site.serve(number, bytes([1] * 256))
    with site.hosts[1].inside():
        own = [socket.create_server(("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True)]
        own.append(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
        own[1].bind(("::", PORT))
        own[1].setblocking(False)
    flows = [site.flow(Transport.UDP, vip, site.hosts[1]) for vip in VIPS]
    assert [flow.request() for flow in flows] == ["m2", "m2"]
    with closing(own[0]), closing(own[1]), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Prerequisites, "flush_queried", lambda *_: None)
        site.serve(1, bytes(256))
        for flow in flows:
            flow.socket.settimeout(NO_REPLY_TIMEOUT)
            with pytest.raises(TimeoutError):
                flow.request()
        with pytest.raises(BlockingIOError):
            own[1].recv(1)


def test_conntrack_is_not_dumped_where_no_flow_was_forwarded(site: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    monkeypatch.setattr(connections, "GET", looked)
    dump = Netlink.dump

    def count(netlink: Netlink, message: Message) -> Iterator[tuple[int, bytes]]:
        if message.kind is looked:
            looked.append(message)
            message = message._replace(kind=GET)
        return dump(netlink, message)

    monkeypatch.setattr(Netlink, "dump", count)
    site.open()
    for number in HOSTS:
        site.serve(number, EVEN)
    for number in HOSTS:
        site.serve(number, bytes(256))
    for number in HOSTS:
        site.serve(number, EVEN)
    assert not looked


def test_forwarding_records_of_removed_services_are_deleted(site: Fabric) -> None:
    site.open()
    site.serve(1, EVEN)
    site.hosts[1].nft(
        f"add element inet fairlead asked4 {{ {VIPS[0]} . tcp . {PORT}, 203.0.113.99 . tcp . 80 }}\n"
        f"add element inet fairlead asked6 {{ {VIPS[1]} . udp . {PORT}, {VIPS[1]} . tcp . 81 }}"
    )
    site.run_on_host(1, site.drivers[1].close())
    site.drivers[1] = Native()
    site.run_on_host(1, site.drivers[1].read_all())
    four, six = (site.hosts[1].run("nft", "list", "set", "inet", "fairlead", f"asked{each}") for each in (4, 6))
    assert (four.count(" tcp "), four.count("203.0.113.99")) == (1, 0)
    assert (six.count(" udp "), six.count(" tcp ")) == (1, 0)
    site.run_on_host(1, site.drivers[1].apply(OWNER, diff({}, site.applied[1, OWNER])))
    for version in (4, 6):
        assert "elements" not in site.hosts[1].run("nft", "list", "set", "inet", "fairlead", f"asked{version}")


@pytest.mark.parametrize("version", [4, 6])
def test_entries_of_removed_members_are_deleted_and_no_others(site: Fabric, version: int) -> None:
    """Flows whose senders never pause: another member gets them; without a service, no member does."""
    site.open(version)
    site.route_to(1)
    site.serve(1, bytes(256))
    vip = next(each for each in VIPS if each.version == version)
    udp, tcp = (site.flow(each, vip) for each in (Transport.UDP, Transport.TCP))
    assert (udp.request(), tcp.request()) == ("m1", "m1")
    ends = [TrackedConnection(each, vip, PORT, member_address(1, version), 8080) for each in BOTH]
    other = ends[0]._replace(member_port=8081)
    assert site.run_on_host(1, site.drivers[1].flush_connections([*ends, other])) == (0, frozenset(ends)), (
        "rows lead there"
    )
    here = {(vip.packed, number, PORT, True) for number in (socket.IPPROTO_TCP, socket.IPPROTO_UDP)}
    assert translated(site.hosts[1]) == here
    site.run_on_host(1, site.drivers[1].apply(OWNER, diff({}, site.applied[1, OWNER])))
    assert site.run_on_host(1, site.drivers[1].flush_connections([other])) == (0, frozenset())
    assert translated(site.hosts[1]) == here
    assert site.run_on_host(1, site.drivers[1].flush_connections([ends[1]])) == (1, frozenset())
    assert {(to, number) for to, number, _, _ in translated(site.hosts[1])} == {(vip.packed, socket.IPPROTO_TCP)}
    assert tcp.request() == "m1"


def translated(host: NetNamespace) -> set[tuple[bytes, int, int, bool]]:
    return {(to, number, port, True) for to, number, port, status in entries(host) if status & DESTINATION_TRANSLATED}

"""Packets to tunnel ports from senders that are not hosts: an outside host, or a tenant's machine behind a host."""

import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address

import pytest

from fairlead.drivers.native.driver import Native
from fairlead.drivers.native.routing import PORTS
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import Transport
from harness.fabric import (
    CLIENT,
    HOSTS,
    NO_REPLY_TIMEOUT,
    PORT,
    VIPS,
    Fabric,
    answering,
    fabric,
    host_address,
    member_address,
)
from harness.net_namespace import NetNamespace, require_root
from harness.waiting import DEADLINE

pytestmark = pytest.mark.slow

SERVED = bytes(256)
"""Slot table in which the first host owns all slots."""
PRIVATE = 9000
"""Port of a member that no load balancer uses."""
UDP = 17


@pytest.fixture
def site() -> Iterator[Fabric]:
    require_root("/usr/sbin/nft")
    with fabric() as made:
        yield made


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("where", ["a stranger outside", "a tenant's machine"])
def test_forged_tunnel_packets_reach_no_member_or_host(site: Fabric, port: int, where: str) -> None:
    """Tunnelled packets reach VIPs only, because forged ones would bypass firewalls to members or to the host
    itself."""
    site.open()
    for number in HOSTS:
        site.serve(number, SERVED)
    sender = site.client if where == "a stranger outside" else site.members[2]
    for version in (4, 6):
        secret = host_address(3, version)
        for place, at in (site.members[1], member_address(1, version)), (site.hosts[1], host_address(1, version)):
            with _listening(place, at) as heard:
                _tunnelled(sender, port, _datagram(secret, at, PRIVATE, b"forged"))
                _plainly(site.client, at, b"plain")
                assert heard.recvfrom(100)[0] == b"plain", f"{at} by {port}"


@pytest.mark.parametrize("version", [4, 6])
def test_tunnel_packets_for_vips_are_accepted(site: Fabric, version: int) -> None:
    """Tunnelled packets for VIPs are accepted, which shows that the other tests use a valid format."""
    site.open()
    for number in HOSTS:
        site.serve(number, SERVED)
    vip = next(each for each in VIPS if each.version == version)
    with _listening(site.client, CLIENT[version]) as heard:
        _tunnelled(site.client, PORTS[0], _datagram(CLIENT[version], vip, PORT, b"who"))
        assert heard.recvfrom(100)[0] == b"m1"


def _listening(where: NetNamespace, at: IPAddress) -> socket.socket:
    with where.inside():
        made = socket.socket(_family(at), socket.SOCK_DGRAM)
        made.bind((str(at), PRIVATE))
    made.settimeout(DEADLINE)
    return made


def _plainly(sender: NetNamespace, to: IPAddress, text: bytes) -> None:
    with sender.inside(), socket.socket(_family(to), socket.SOCK_DGRAM) as made:
        made.sendto(text, (str(to), PRIVATE))


def _tunnelled(sender: NetNamespace, port: int, packet: bytes) -> None:
    """Send a packet to the first host as another host would: VXLAN-GPE, network 1."""
    kind = 1 if packet[0] >> 4 == 4 else 2
    header = struct.pack(">BxxBI", 0x0C, kind, 1 << 8)
    with sender.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.sendto(header + packet, (str(host_address(1)), port))


def _datagram(source: IPAddress, to: IPAddress, port: int, text: bytes) -> bytes:
    """Build a datagram from the port on which the test listens."""
    length = 8 + len(text)
    ends = source.packed + to.packed
    pseudo = ends + struct.pack(">HHHHHH", length, UDP, PRIVATE, port, length, 0) + text
    body = struct.pack(">HHHH", PRIVATE, port, length, _checksum(pseudo)) + text
    match source:
        case IPv4Address():
            head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + length, 0, 0, 64, UDP, 0)
            sum_of_head = struct.pack(">H", _checksum(head + ends))
            return head[:10] + sum_of_head + ends + body
        case IPv6Address():
            return struct.pack(">IHBB", 6 << 28, length, UDP, 64) + ends + body


def _checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    words = struct.unpack(f">{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2))
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _family(address: IPAddress) -> socket.AddressFamily:
    return socket.AF_INET if address.version == 4 else socket.AF_INET6


TABLE = "add element inet fairlead"
ODD = (
    f"{TABLE} vips4 {{ 203.0.113.77 }}",
    f'{TABLE} vips6 {{ 2001:db8::77 comment "somebody" }}',
    f"{TABLE} ways {{ 77 }}",
    f'{TABLE} own4 {{ 10.77.0.1 comment "x" }}',
    f"{TABLE} service4 {{ {VIPS[0]} . 77 . 80 : 1 }}",
    f"{TABLE} owner {{ 0:77 . 0x1 : 0x1001 }}",
    f'{TABLE} served4 {{ {VIPS[0]} . 0:6 . 81 comment "somebody" : 0:77 }}',
    f'{TABLE} sourced6 {{ {VIPS[1]} . 0:6 . 81 comment "some" }}',
    f"{TABLE} member6 {{ 0:77 . 0x2 : 2001:db8::77 . 80 }}",
    f"{TABLE} before {{ 0:77 . 0xff : 0x2001, 0:78 . 0x0 : 0x2001 }}",
)
"""Manually added elements: without an owner, with an unknown protocol, or with unassigned numbers."""


def test_unknown_elements_are_removed(site: Fabric) -> None:
    site.open()
    site.serve(1, SERVED)
    rows = site.run_on_host(1, site.drivers[1].read_all())
    site.hosts[1].nft("\n".join(ODD))
    site.run_on_host(1, site.drivers[1].close())
    site.drivers[1] = Native()
    assert site.run_on_host(1, site.drivers[1].read_all()) == rows
    left = site.hosts[1].run("nft", "list", "table", "inet", "fairlead")
    assert [each for each in ("203.0.113.77", "2001:db8::77", "10.77.0.1") if each in left] == []


FLUSHED = "; ".join(f"ip {each} rule flush; ip {each} rule add pref 32766 table main" for each in ("-4", "-6"))


@pytest.mark.parametrize("lost", ["ip link set fl-table down", "ip link del fl-table", FLUSHED])
@pytest.mark.parametrize("transport", [Transport.TCP, Transport.UDP])
def test_host_sockets_get_no_packets_after_the_route_to_a_host_is_lost(
    site: Fabric, lost: str, transport: Transport
) -> None:
    """A host's own sockets get no packets for a slot of another host while the route to it is missing, even without an
    agent."""
    site.open()
    for number in HOSTS:
        site.serve(number, bytes([1]) * 256)
    site.route_to(1)
    for vip in VIPS:
        assert site.flow(transport, vip).request() == "m2"
    site.hosts[1].run("sh", "-c", lost)
    with answering(site.hosts[1], "the host", PORT):
        for vip in VIPS:
            with pytest.raises(OSError):
                site.flow(transport, vip, timeout=NO_REPLY_TIMEOUT).request()

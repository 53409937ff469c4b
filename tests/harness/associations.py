"""Both ends of SCTP associations in user space (RFC 9260), for kernels without SCTP sockets.

Each end has one address and one stream, and does not retransmit. A member answers each DATA chunk with its name, and a
packet of an unknown association with an ABORT, so a test notices a packet that reaches another member.
"""

import contextlib
import itertools
import random
import select
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import Transport
from fairlead.node import sctp
from fairlead.node.prober import IPPROTO_SCTP
from harness.fabric import MEMBER_PORT, PORT, ClientFlow
from harness.net_namespace import NetNamespace
from harness.waiting import DEADLINE

DATA, INIT, INIT_ACK, SACK, HEARTBEAT, HEARTBEAT_ACK, ABORT, SHUTDOWN, SHUTDOWN_ACK = range(9)
COOKIE_ECHO, COOKIE_ACK, SHUTDOWN_COMPLETE = 10, 11, 14
"""Chunk types (RFC 9260, section 3.2)."""
_T_BIT = 1
"""T bit of an ABORT: the verification tag is that of the packet it answers (section 8.5.1)."""
_UNFRAGMENTED = 3
"""Flags of a DATA chunk that is not fragmented (B and E bits)."""
_STATE_COOKIE = 7
"""Parameter type of the State Cookie in an INIT ACK."""
_TSN_BASE = 1000
"""Transmission sequence number (TSN) of an end's first DATA chunk, minus one."""
_PORTS = itertools.cycle(range(20_000, 30_000))


@dataclass(frozen=True)
class ReceivedPacket:
    source: int
    destination: int
    tag: int
    chunks: list[tuple[int, bytes]]
    """Type and value of each chunk."""
    is_checksum_valid: bool
    """Whether the checksum is correct."""

    def first_chunk(self, kind: int) -> bytes | None:
        """Value of the first chunk of this type, or None."""
        return next((value for its, value in self.chunks if its == kind), None)


def parse_packet(octets: bytes) -> ReceivedPacket:
    """Parse an SCTP packet, without its IP header."""
    source, destination, tag, said = struct.unpack_from("!HHII", octets)
    chunks, place = [], 12
    while place + 4 <= len(octets):
        kind, _, length = struct.unpack_from("!BBH", octets, place)
        chunks.append((kind, octets[place + 4 : place + length]))
        place += (length + 3) // 4 * 4
    right = said == sctp.checksum(octets[:8] + bytes(4) + octets[12:])
    return ReceivedPacket(source, destination, tag, chunks, right)


def chunk(kind: int, value: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack("!BBH", kind, flags, 4 + len(value)) + value + bytes(-len(value) % 4)


def _init_value(tag: int) -> bytes:
    """Value of an INIT or INIT ACK chunk."""
    return struct.pack("!IIHHI", tag, sctp.WINDOW, 1, 1, _TSN_BASE + 1)


def _data_chunk(number: int, text: bytes) -> bytes:
    return chunk(DATA, struct.pack("!IHHI", _TSN_BASE + number, 0, number & 0xFFFF, 0) + text, _UNFRAGMENTED)


def _sack_chunk(number: int) -> bytes:
    """SACK chunk that acknowledges all chunks up to this TSN."""
    return chunk(SACK, struct.pack("!IIHH", number, sctp.WINDOW, 0, 0))


def raw_socket(version: int) -> socket.socket:
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    return socket.socket(family, socket.SOCK_RAW, IPPROTO_SCTP)


def _strip_ip_header(octets: bytes, version: int) -> bytes:
    """Payload of a received packet. Raw IPv4 sockets deliver the IP header too (raw(7))."""
    return octets[(octets[0] & 15) * 4 :] if version == 4 else octets


@dataclass
class Association(ClientFlow):
    """A client's end of an association with a VIP. Its socket is connected, so it receives packets of the VIP only."""

    tag: int = 0
    peer_tag: int = 0
    sent: int = 0

    def send(self, *chunks: bytes, tag: int | None = None) -> None:
        its = self.peer_tag if tag is None else tag
        self.socket.send(sctp.packet(self.client[1], PORT, its, b"".join(chunks)))

    def receive(self, *kinds: int) -> ReceivedPacket:
        """Next packet with a chunk of one of these types.

        Raises OSError if the packet is lost (timeout) or the association is aborted.
        """
        while select.select([self.socket], [], [], self.socket.gettimeout())[0]:
            heard = parse_packet(_strip_ip_header(self.socket.recv(65536), self.vip.version))
            if heard.destination != self.client[1]:
                continue
            assert (heard.source, heard.is_checksum_valid) == (PORT, True)
            if heard.first_chunk(ABORT) is not None:
                raise ConnectionResetError
            assert heard.tag == self.tag
            if any(heard.first_chunk(kind) is not None for kind in kinds):
                return heard
        raise TimeoutError

    def open(self) -> None:
        """Open the association: the four packets of section 5.1."""
        self.send(chunk(INIT, _init_value(self.tag)), tag=0)
        answer = self.receive(INIT_ACK).first_chunk(INIT_ACK)
        assert answer is not None
        self.peer_tag = int.from_bytes(answer[:4])
        kind, length = struct.unpack_from("!HH", answer, 16)
        assert kind == _STATE_COOKIE
        self.send(chunk(COOKIE_ECHO, answer[20 : 16 + length]))
        self.receive(COOKIE_ACK)

    def request(self, text: bytes = b"who") -> str:
        """Name of the member that answers. Raises OSError, also after a timeout."""
        self._discard_received()
        self.sent += 1
        self.send(_data_chunk(self.sent, text))
        while True:
            heard = self.receive(DATA)
            data, sack = heard.first_chunk(DATA), heard.first_chunk(SACK)
            assert data is not None
            assert sack is not None
            taken = int.from_bytes(sack[:4]) - _TSN_BASE
            assert taken <= self.sent
            if taken == self.sent:  # otherwise this answers an earlier request, which timed out
                self.send(_sack_chunk(int.from_bytes(data[:4])))
                return data[12:].decode()

    def check_heartbeat(self) -> None:
        """Assert that the other end answers a HEARTBEAT."""
        self._discard_received()
        self.send(chunk(HEARTBEAT, b"\0\1\0\10beat"))
        assert self.receive(HEARTBEAT_ACK).first_chunk(HEARTBEAT_ACK) == b"\0\1\0\10beat"

    def close(self) -> None:
        """Shut the association down (section 9.2)."""
        self._discard_received()
        self.send(chunk(SHUTDOWN, (_TSN_BASE + self.sent).to_bytes(4)))
        self.receive(SHUTDOWN_ACK)
        self.send(chunk(SHUTDOWN_COMPLETE))

    def _discard_received(self) -> None:
        """Discard packets of other associations of this machine: a raw socket receives them too."""
        while select.select([self.socket], [], [], 0)[0]:
            self.socket.recv(65536)


def create_association(where: NetNamespace, vip: IPAddress, timeout: float = DEADLINE) -> Association:
    """Client's end of an association that is not yet open."""
    with where.inside():
        made = raw_socket(vip.version)
        made.connect((str(vip), 0))
    made.settimeout(timeout)
    client = ip_address(made.getsockname()[0]), next(_PORTS)
    return Association(made, Transport.SCTP, client, vip, random.randrange(1, 1 << 32))


@dataclass
class SctpMember:
    """A server that answers on all addresses of a machine."""

    name: str
    reply_repeats: int = 1
    """Number of repetitions of the name in an answer."""
    tags_by_peer: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """Verification tags of each association: the peer's and the own."""
    received_chunks: Counter[int] = field(default_factory=Counter)
    """Number of received packets, by type of the first chunk."""
    bad_checksums: int = 0
    """Number of packets with a wrong checksum."""
    other_port_packets: int = 0
    """Number of packets to another port, except answers to clients on the same machine."""

    def answer(self, address: str, heard: ReceivedPacket) -> tuple[int, bytes] | None:
        """Verification tag and chunks of the answer, or None."""
        self.bad_checksums += not heard.is_checksum_valid
        self.other_port_packets += heard.destination != MEMBER_PORT and heard.source != PORT
        if heard.destination != MEMBER_PORT or not heard.is_checksum_valid:
            return None
        kind, value = heard.chunks[0]
        self.received_chunks[kind] += 1
        if kind == INIT:
            tags = value[:4] + random.randrange(1, 1 << 32).to_bytes(4)
            cookie = struct.pack("!HH", _STATE_COOKIE, 12) + tags
            return int.from_bytes(tags[:4]), chunk(INIT_ACK, _init_value(int.from_bytes(tags[4:])) + cookie)
        if kind == COOKIE_ECHO:
            theirs, own = struct.unpack("!II", value)
            self.tags_by_peer[address, heard.source] = theirs, own
            return theirs, chunk(COOKIE_ACK)
        theirs, own = self.tags_by_peer.get((address, heard.source), (0, 0))
        if heard.tag != own or not own:
            return None if kind == ABORT else (heard.tag, chunk(ABORT, flags=_T_BIT))
        return self._answer_known(theirs, address, heard)

    def _answer_known(self, theirs: int, address: str, heard: ReceivedPacket) -> tuple[int, bytes] | None:
        kind, value = heard.chunks[0]
        if kind == DATA:
            number = int.from_bytes(value[:4])
            return theirs, _sack_chunk(number) + _data_chunk(
                number - _TSN_BASE, self.name.encode() * self.reply_repeats
            )
        if kind == SHUTDOWN_COMPLETE:
            del self.tags_by_peer[address, heard.source]
        return {HEARTBEAT: (theirs, chunk(HEARTBEAT_ACK, value)), SHUTDOWN: (theirs, chunk(SHUTDOWN_ACK))}.get(kind)


@contextmanager
def answering(where: NetNamespace, name: str) -> Iterator[SctpMember]:
    member, ended = SctpMember(name), threading.Event()
    with where.inside():
        sockets = {version: raw_socket(version) for version in (4, 6)}
    threads = [
        threading.Thread(target=_serve, args=(member, made, version, ended), daemon=True)
        for version, made in sockets.items()
    ]
    for each in threads:
        each.start()
    try:
        yield member
    finally:
        ended.set()
        for each in threads:
            each.join()
        for made in sockets.values():
            made.close()


def _serve(member: SctpMember, made: socket.socket, version: int, ended: threading.Event) -> None:
    while not ended.is_set():
        if not select.select([made], [], [], 0.1)[0]:
            continue
        octets, who = made.recvfrom(65536)
        heard = parse_packet(_strip_ip_header(octets, version))
        if answer := member.answer(who[0], heard):
            with contextlib.suppress(OSError):  # the kernel returns a late EMSGSIZE or ICMP error
                made.sendto(sctp.packet(MEMBER_PORT, heard.source, *answer), (who[0], 0))

"""TCP resets as a host sends them for a connection that does not exist (RFC 9293, section 3.5.2). Pure: bytes to bytes.

The answer to a frame is a frame to the MAC that sent it. No route is needed, so networks may have overlapping
addresses.
"""

import struct

from fairlead.node.packets import IPV6, checksum

IPV4 = b"\x08\x00"
TCP = 6
HOPS = 64
FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
_ETHERNET, _MIN_HEADER = 14, 20
"""Octets of an Ethernet header, and of a TCP or IPv4 header without options."""
_IPV6 = 40


def reset_of(frame: bytes) -> bytes | None:
    """Build the reset of a segment; None for an incomplete header and for a reset."""
    kind, packet = frame[12:_ETHERNET], frame[_ETHERNET:]
    found = _ipv4(packet) if kind == IPV4 else _ipv6(packet) if kind == IPV6 else None
    if found is None:
        return None
    source, target, segment = found
    if len(segment) < _MIN_HEADER or segment[13] & RST:
        return None
    answer = _reset(segment)
    pseudo = target + source + struct.pack("!II", TCP, len(answer))
    answer = answer[:16] + checksum(pseudo + answer).to_bytes(2, "big") + answer[18:]
    return frame[6:12] + frame[:6] + kind + _header(kind, target, source) + answer


def _ipv4(packet: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Return source, destination and segment; None for a fragment or another protocol."""
    if len(packet) < _MIN_HEADER or packet[9] != TCP or int.from_bytes(packet[6:8], "big") & 0x3FFF:
        return None
    begin, end = 4 * (packet[0] & 0x0F), int.from_bytes(packet[2:4], "big")
    return packet[12:16], packet[16:20], packet[begin:end]


def _ipv6(packet: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Return source, destination and segment; None with extension headers."""
    if len(packet) < _IPV6 or packet[6] != TCP:
        return None
    return packet[8:24], packet[24:40], packet[_IPV6 : _IPV6 + int.from_bytes(packet[4:6], "big")]


def _reset(segment: bytes) -> bytes:
    """Build the segment without checksum. The reset of a segment with ACK uses its acknowledgement number as sequence
    number; otherwise the reset acknowledges the segment."""
    source, target, number, acknowledged, offset, flags = struct.unpack("!HHIIBB", segment[:14])
    if flags & ACK:
        return struct.pack("!HHIIBBHHH", target, source, acknowledged, 0, 5 << 4, RST, 0, 0, 0)
    length = len(segment) - 4 * (offset >> 4) + bool(flags & SYN) + bool(flags & FIN)
    return struct.pack("!HHIIBBHHH", target, source, 0, (number + length) & 0xFFFFFFFF, 5 << 4, RST | ACK, 0, 0, 0)


def _header(kind: bytes, source: bytes, target: bytes) -> bytes:
    if kind == IPV6:
        return struct.pack("!IHBB", 6 << 28, _MIN_HEADER, TCP, HOPS) + source + target
    header = struct.pack("!BBHHHBBH", 0x45, 0, 2 * _MIN_HEADER, 0, 0x4000, HOPS, TCP, 0) + source + target
    return header[:10] + checksum(header).to_bytes(2, "big") + header[12:]

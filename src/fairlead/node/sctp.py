"""SCTP packets of a probe (RFC 9260). Pure.

The probe sends an INIT; a listening server answers with an INIT ACK and keeps no state (section 5.1). One packet in
each direction thus suffices for Octavia's monitor type, and the node's kernel needs no SCTP.
"""

import struct
from dataclasses import dataclass

INIT, INIT_ACK, ABORT = 1, 2, 6
"""Chunk types (section 3.2)."""
_HEADER = struct.Struct("!HHII")
"""Source port, destination port, verification tag, checksum (section 3.1)."""
_INIT = struct.Struct("!BBHIIHHI")
"""Type, flags, length; initiate tag, receiver window, outbound and inbound streams, initial TSN (section 3.3.2)."""
WINDOW = 65_536
_POLYNOMIAL = 0x82F63B78
"""Polynomial of CRC32c, reflected (RFC 9260, appendix A)."""


def _table() -> tuple[int, ...]:
    found = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)  # noqa: PLW2901
        found.append(value)
    return tuple(found)


_TABLE = _table()


def checksum(octets: bytes) -> int:
    """Compute CRC32c in the byte order of the header."""
    value = 0xFFFFFFFF
    for octet in octets:
        value = value >> 8 ^ _TABLE[(value ^ octet) & 0xFF]
    return int.from_bytes((value ^ 0xFFFFFFFF).to_bytes(4, "little"), "big")


def packet(source: int, destination: int, tag: int, chunks: bytes) -> bytes:
    """Build a packet with its checksum. `tag` is the verification tag chosen by the receiver."""
    said = _HEADER.pack(source, destination, tag, 0) + chunks
    return _HEADER.pack(source, destination, tag, checksum(said)) + chunks


def init(source: int, destination: int, tag: int) -> bytes:
    """Build an INIT packet. `tag` is the verification tag for the answer, and must not be 0."""
    return packet(source, destination, 0, _INIT.pack(INIT, 0, _INIT.size, tag, WINDOW, 1, 1, tag))


@dataclass(frozen=True, slots=True)
class SctpPacket:
    source: int
    destination: int
    tag: int
    chunk: int
    """Type of the first chunk."""


def read(octets: bytes) -> SctpPacket | None:
    """Parse a packet; None if it is invalid. The checksum is not verified, because on virtual devices it may have been
    left to an offload that does not exist."""
    if len(octets) < _HEADER.size + 4:
        return None
    source, destination, tag, _ = _HEADER.unpack_from(octets)
    return SctpPacket(source, destination, tag, octets[_HEADER.size])

"""What a probe says to a server of SCTP, and what it makes of the answer (RFC 9260). Pure.

An INIT asks, and whoever listens answers with an INIT ACK; the server remembers nothing of it (section 5.1). So one
packet each way says what Octavia's own monitor asks for, and no kernel of a node has to have the protocol.
"""

import struct
from dataclasses import dataclass

INIT, INIT_ACK, ABORT = 1, 2, 6
"""Types of chunks (section 3.2)."""
_HEADER = struct.Struct("!HHII")
"""Source port, destination port, verification tag, checksum (section 3.1)."""
_INIT = struct.Struct("!BBHIIHHI")
"""Type, flags, length; initiate tag, window, streams out and in, the first number of a chunk (section 3.3.2)."""
WINDOW = 65_536
_POLYNOMIAL = 0x82F63B78
"""Of CRC32c, reflected (RFC 9260, appendix A)."""


def _table() -> tuple[int, ...]:
    found = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)  # noqa: PLW2901
        found.append(value)
    return tuple(found)


_TABLE = _table()


def checksum(octets: bytes) -> int:
    """CRC32c, as it stands in the header."""
    value = 0xFFFFFFFF
    for octet in octets:
        value = value >> 8 ^ _TABLE[(value ^ octet) & 0xFF]
    return int.from_bytes((value ^ 0xFFFFFFFF).to_bytes(4, "little"), "big")


def packet(source: int, destination: int, tag: int, chunks: bytes) -> bytes:
    """With its checksum. `tag` is the one that the other end has asked for."""
    said = _HEADER.pack(source, destination, tag, 0) + chunks
    return _HEADER.pack(source, destination, tag, checksum(said)) + chunks


def init(source: int, destination: int, tag: int) -> bytes:
    """A packet that asks for an association; `tag` is for the answer, and not 0."""
    return packet(source, destination, 0, _INIT.pack(INIT, 0, _INIT.size, tag, WINDOW, 1, 1, tag))


@dataclass(frozen=True, slots=True)
class Heard:
    source: int
    destination: int
    tag: int
    chunk: int
    """The type of its first chunk."""


def read(octets: bytes) -> Heard | None:
    """None for what is no packet. Its checksum is not looked at: on a virtual wire it may be left to a device that is
    not there."""
    if len(octets) < _HEADER.size + 4:
        return None
    source, destination, tag, _ = _HEADER.unpack_from(octets)
    return Heard(source, destination, tag, octets[_HEADER.size])

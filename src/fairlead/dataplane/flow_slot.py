"""Which slot of an announced VIP a flow has, as the kernel of each host computes it.

The kernel's `jhash` (Bob Jenkins' lookup3, include/linux/jhash.h) of what identifies the flow, each field padded to
four bytes, and of its value the high bits (nft(8), hash expressions): a table of half as many slots would have each one
twice in place. Hosts are little-endian.
"""

import struct

from fairlead.model.addresses import IPAddress
from fairlead.model.loadbalancer import Transport
from fairlead.model.shares import LARGEST

SEED = 0x5EED
"""The same on each host, for ever: another one moves every flow there is."""
PROTOCOLS = {Transport.TCP: 6, Transport.UDP: 17, Transport.SCTP: 132}
"""Numbers of those that have ports (IANA, Assigned Internet Protocol Numbers)."""
_START = 0xDEADBEEF
_WORD = 0xFFFFFFFF


def flow_slot(client: tuple[IPAddress, int], vip: tuple[IPAddress, int], transport: Transport) -> int:
    """Of a flow from this address and port to that one, of the same IP version."""
    (source, source_port), (destination, port) = client, vip
    rest = struct.pack(">BxxxHxxHxx", PROTOCOLS[transport], source_port, port)
    return _slot(source.packed + destination.packed + rest)


def source_slot(client: IPAddress, vip: IPAddress) -> int:
    """Of all flows of this client, where its address alone decides."""
    return _slot(client.packed + vip.packed)


def _slot(key: bytes) -> int:
    return jhash(key, SEED) * LARGEST >> 32


def jhash(key: bytes, seed: int) -> int:
    """Of whole words: of as many bytes as a multiple of four, and some."""
    words = struct.unpack(f"<{len(key) // 4}I", key)
    a = b = c = (_START + len(key) + seed) & _WORD
    last = (len(words) - 1) // 3 * 3
    for place in range(0, last, 3):
        a, b, c = (a + words[place]) & _WORD, (b + words[place + 1]) & _WORD, (c + words[place + 2]) & _WORD
        a, b, c = _mix(a, b, c)
    rest = (*words[last:], 0, 0)
    return _final((a + rest[0]) & _WORD, (b + rest[1]) & _WORD, (c + rest[2]) & _WORD)


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    a = (a - c & _WORD) ^ _rotated(c, 4)
    c = c + b & _WORD
    b = (b - a & _WORD) ^ _rotated(a, 6)
    a = a + c & _WORD
    c = (c - b & _WORD) ^ _rotated(b, 8)
    b = b + a & _WORD
    a = (a - c & _WORD) ^ _rotated(c, 16)
    c = c + b & _WORD
    b = (b - a & _WORD) ^ _rotated(a, 19)
    a = a + c & _WORD
    c = (c - b & _WORD) ^ _rotated(b, 4)
    b = b + a & _WORD
    return a, b, c


def _final(a: int, b: int, c: int) -> int:
    c = (c ^ b) - _rotated(b, 14) & _WORD
    a = (a ^ c) - _rotated(c, 11) & _WORD
    b = (b ^ a) - _rotated(a, 25) & _WORD
    c = (c ^ b) - _rotated(b, 16) & _WORD
    a = (a ^ c) - _rotated(c, 4) & _WORD
    b = (b ^ a) - _rotated(a, 14) & _WORD
    return (c ^ b) - _rotated(b, 24) & _WORD


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _WORD

"""Slot of a flow to an announced VIP, as the kernel of each host computes it.

The kernel's `jhash` (Bob Jenkins' lookup3, include/linux/jhash.h) over the fields that identify the flow, each padded
to four bytes. The slot is the high bits of the hash (nft(8), hash expressions), so a table of half as many slots would
have each slot twice in sequence. Hosts are assumed little-endian.
"""

import struct

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.apportionment import MAX_SLOTS
from fairlead.model.documents.loadbalancer import Transport

SEED = 0x5EED
"""Hash seed, the same on each host and permanent: another seed would move every existing flow."""
PROTOCOLS = {Transport.TCP: 6, Transport.UDP: 17, Transport.SCTP: 132}
"""Numbers of the protocols with ports (IANA, Assigned Internet Protocol Numbers)."""
_START = 0xDEADBEEF
_WORD = 0xFFFFFFFF


def flow_slot(client: tuple[IPAddress, int], vip: tuple[IPAddress, int], transport: Transport) -> int:
    """Slot of the flow from `client` to `vip`, address and port each, of the same IP version."""
    (source, source_port), (destination, port) = client, vip
    rest = struct.pack(">BxxxHxxHxx", PROTOCOLS[transport], source_port, port)
    return _slot(source.packed + destination.packed + rest)


def source_slot(client: IPAddress, vip: IPAddress) -> int:
    """Slot of all flows of this client, for listeners that hash only the source address."""
    return _slot(client.packed + vip.packed)


def _slot(key: bytes) -> int:
    return jhash(key, SEED) * MAX_SLOTS >> 32


def jhash(key: bytes, seed: int) -> int:
    """jhash of a key with a length that is a positive multiple of four bytes."""
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

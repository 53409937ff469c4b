"""Tracked connections of the kernel (nfnetlink_conntrack): found by their original destination, and deleted."""

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Mapping, Set
from typing import NamedTuple

from fairlead.dataplane.flow_slot import PROTOCOLS, flow_slot, source_slot
from fairlead.drivers.native.netlink import Interrupted, Message, Netlink, attribute, attributes, be32, nested
from fairlead.drivers.native.nftables.encoding import address
from fairlead.drivers.native.nftables.ruleset import OWNER_MARK, SECOND_MARK

GET, _DELETE = 1 << 8 | 1, 1 << 8 | 2
DESTINATION_TRANSLATED = 1 << 5
_STATUS, _STATUS_MASK = 3, 26
_ANSWER, _TUPLE, _MARK, _ID, _ZONE, _MARK_MASK = 2, 1, 8, 12, 18, 21
FIRST_PACKET = {socket.AF_INET: struct.Struct(">24x4s8xB15xH"), socket.AF_INET6: struct.Struct(">36x16s8xB15xH")}
"""Destination, protocol and port of the original tuple, which comes first and at a fixed offset."""
_CLIENT = {socket.AF_INET: struct.Struct(">16x4s24xH"), socket.AF_INET6: struct.Struct(">16x16s36xH")}
"""Source and port of the original tuple."""
_ANSWERING = {socket.AF_INET: struct.Struct(">8x4s24xH"), socket.AF_INET6: struct.Struct(">8x16s36xH")}
"""Source and port of the reply tuple, at an offset within the tuple attribute."""
_TRANSPORTS = {number: transport for transport, number in PROTOCOLS.items()}


class RetainedSlots(NamedTuple):
    """Slots of a service with own datagrams of this host that continue to another host, the owner or previous owner."""

    by_source: bool
    slots: frozenset[int]


def flush_queried(netlink: Netlink, family: socket.AddressFamily, ending: Mapping[bytes, RetainedSlots]) -> set[bytes]:
    """Delete connections to these services that other hosts were queried about, and own ones to other hosts.

    Connections that are translated here stay, even if another program has set the same mark bits. Returns the services
    with connections that were kept. The kernel scans all tracked connections. Raises OSError.
    """
    found, kept = list[Message](), set[bytes]()
    head = struct.pack(">BBH", family, 0, 0)
    with contextlib.suppress(Interrupted):  # connections change during the dump
        for _, body in netlink.dump(Message(GET, head + be32(_MARK, SECOND_MARK) + be32(_MARK_MASK, SECOND_MARK))):
            its = attributes(body[4:])
            key = _key(*FIRST_PACKET[family].unpack_from(body))
            staying = ending.get(key)
            if staying is None or int.from_bytes(its[_STATUS]) & DESTINATION_TRANSLATED:
                continue
            if int.from_bytes(its[_MARK]) & OWNER_MARK and _slot(body, family, staying) in staying.slots:
                kept.add(key)
            else:
                found.append(Message(_DELETE, head + _naming(its)))
    for number in netlink.request_all(found):
        if number not in (0, errno.ENOENT):
            raise OSError(number, os.strerror(number))
    return kept


def flush_translated(
    netlink: Netlink, family: socket.AddressFamily, ending: Mapping[bytes, Set[tuple[bytes, int]]]
) -> int:
    """Delete connections to these services that are translated here to one of these members (address and port).

    The kernel scans all tracked connections and filters by status; before 5.19 it returns all. Returns the number of
    deleted connections. Raises OSError.
    """
    found = list[Message]()
    head, translated = struct.pack(">BBH", family, 0, 0), DESTINATION_TRANSLATED
    which = be32(_STATUS, translated) + be32(_STATUS_MASK, translated)
    with contextlib.suppress(Interrupted):  # connections change during the dump
        for _, body in netlink.dump(Message(GET, head + which)):
            members = ending.get(_key(*FIRST_PACKET[family].unpack_from(body)))
            if members is None:
                continue
            its = attributes(body[4:])
            is_translated = int.from_bytes(its[_STATUS]) & translated
            if is_translated and _ANSWERING[family].unpack_from(its[_ANSWER]) in members:
                found.append(Message(_DELETE, head + _naming(its)))
    for number in netlink.request_all(found):
        if number not in (0, errno.ENOENT):
            raise OSError(number, os.strerror(number))
    return len(found)


def _slot(body: bytes, family: socket.AddressFamily, staying: RetainedSlots) -> int | None:
    """Return the slot of a connection; None if no slots are needed, which saves computing the hash."""
    if not staying.slots:
        return None
    source, source_port = _CLIENT[family].unpack_from(body)
    to, number, port = FIRST_PACKET[family].unpack_from(body)
    if staying.by_source:
        return source_slot(address(source), address(to))
    return flow_slot((address(source), source_port), (address(to), port), _TRANSPORTS[number])


def _key(to: bytes, number: int, port: int) -> bytes:
    """Key of a service as rules record it."""
    return to + struct.pack(">B3xHxx", number, port)


def _naming(its: dict[int, bytes]) -> bytes:
    """Attributes that identify this connection, and not a later one with the same tuple."""
    named = nested(_TUPLE, its[_TUPLE]) + attribute(_ID, its[_ID])
    return named + (attribute(_ZONE, its[_ZONE]) if _ZONE in its else b"")

"""Connections that the kernel tracks (nfnetlink_conntrack): found by where they went first, and forgotten."""

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Container

from fairlead.drivers.native.netlink import Interrupted, Message, Netlink, attribute, attributes, be32, nested
from fairlead.drivers.native.ruleset import SECOND

GET, _DELETE = 1 << 8 | 1, 1 << 8 | 2
DESTINATION_TRANSLATED = 1 << 5
_STATUS = 3
_TUPLE, _MARK, _ID, _ZONE, _MARK_MASK = 1, 8, 12, 18, 21
FIRST_PACKET = {socket.AF_INET: struct.Struct(">24x4s8xB15xH"), socket.AF_INET6: struct.Struct(">36x16s8xB15xH")}
"""Where to, which protocol, which port: the kernel says them first, and all that is before them has one length."""


def forget_asked(netlink: Netlink, family: socket.AddressFamily, keys: Container[bytes]) -> None:
    """Connections to these that others were asked about: none that is translated here, though others may have marked it
    so. The kernel looks through all that it tracks. Raises OSError."""
    found = list[Message]()
    head = struct.pack(">BBH", family, 0, 0)
    with contextlib.suppress(Interrupted):  # connections come and go while they are listed
        for _, body in netlink.dump(Message(GET, head + be32(_MARK, SECOND) + be32(_MARK_MASK, SECOND))):
            its = attributes(body[4:])
            is_translated = int.from_bytes(its[_STATUS]) & DESTINATION_TRANSLATED
            if not is_translated and _key(*FIRST_PACKET[family].unpack_from(body)) in keys:
                found.append(Message(_DELETE, head + _naming(its)))
    for number in netlink.ask_all(found):
        if number not in (0, errno.ENOENT):
            raise OSError(number, os.strerror(number))


def _key(to: bytes, number: int, port: int) -> bytes:
    """As rules note it."""
    return to + struct.pack(">B3xHxx", number, port)


def _naming(its: dict[int, bytes]) -> bytes:
    """This one alone, and not another one that has come since."""
    named = nested(_TUPLE, its[_TUPLE]) + attribute(_ID, its[_ID])
    return named + (attribute(_ZONE, its[_ZONE]) if _ZONE in its else b"")

"""Which addresses this host has besides VIPs, on whichever device (rtnetlink(7))."""

import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path

from fairlead.drivers.native.netlink import ROUTE, Message, Netlink, attributes, steadily
from fairlead.drivers.native.routing import OURS
from fairlead.model.addresses import IPAddress

_GETADDR, _GETANYCAST = 22, 62
_ADDRESS = struct.Struct("=BBBBI")
_PEERS, _LOCAL, _ANYCAST, _PROTOCOL = 1, 2, 5, 11
"""Attributes. Of a link between two the second one is the host's; elsewhere there may be the first one alone. The last
one says who made the address: VIPs are ours, and may be ten thousand."""


def read_addresses() -> frozenset[IPAddress]:
    """All at one moment. It holds its thread until the kernel has answered. Raises Unavailable, and OSError."""
    with closing(Netlink(ROUTE)) as netlink:
        return steadily(lambda: frozenset(_dumped(netlink)))


def _dumped(netlink: Netlink) -> Iterator[IPAddress]:
    """With those that every router has in IPv6, one in each prefix of its links (RFC 4291, 2.6.1): datagrams come to
    its sockets there too. Raises Interrupted."""
    asked = [(_GETADDR, socket.AF_INET)]
    if Path("/proc/sys/net/ipv6").exists():
        asked += [(_GETADDR, socket.AF_INET6), (_GETANYCAST, socket.AF_INET6)]
    for kind, family in asked:
        for _, body in netlink.dump(Message(kind, _ADDRESS.pack(family, 0, 0, 0, 0))):
            found = attributes(body[_ADDRESS.size :])
            if found.get(_PROTOCOL) != bytes([OURS]):
                yield ip_address(found.get(_LOCAL) or found.get(_PEERS) or found[_ANYCAST])

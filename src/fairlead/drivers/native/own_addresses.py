"""Addresses of this host other than VIPs, on all devices (rtnetlink(7))."""

import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path

from fairlead.drivers.native.netlink import ROUTE, Message, Netlink, attributes, retry_interrupted
from fairlead.drivers.native.routing import MANAGED_PROTOCOL
from fairlead.model.documents.addresses import IPAddress

_GETADDR, _GETANYCAST = 22, 62
_ADDRESS = struct.Struct("=BBBBI")
_PEERS, _LOCAL, _ANYCAST, _PROTOCOL = 1, 2, 5, 11
"""Attributes. On a point-to-point link the local address is the host's; elsewhere only the first may exist. The
protocol identifies VIPs, possibly ten thousand."""


def read_addresses() -> frozenset[IPAddress]:
    """Return all addresses from one consistent dump. Blocks the thread. Raises Unavailable and OSError."""
    with closing(Netlink(ROUTE)) as netlink:
        return retry_interrupted(lambda: frozenset(_dumped(netlink)))


def _dumped(netlink: Netlink) -> Iterator[IPAddress]:
    """Yield the addresses, including subnet-router anycast addresses of IPv6 (RFC 4291, 2.6.1).

    The host's sockets receive datagrams to those too. Raises Interrupted.
    """
    asked = [(_GETADDR, socket.AF_INET)]
    if Path("/proc/sys/net/ipv6").exists():
        asked += [(_GETADDR, socket.AF_INET6), (_GETANYCAST, socket.AF_INET6)]
    for kind, family in asked:
        for _, body in netlink.dump(Message(kind, _ADDRESS.pack(family, 0, 0, 0, 0))):
            found = attributes(body[_ADDRESS.size :])
            if found.get(_PROTOCOL) != bytes([MANAGED_PROTOCOL]):
                yield ip_address(found.get(_LOCAL) or found.get(_PEERS) or found[_ANYCAST])

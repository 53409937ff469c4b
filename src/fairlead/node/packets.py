"""Ethernet frames that announce the MAC of an address. Pure.

Receivers with a neighbour entry for the address update it immediately; others ignore the frame.
"""

from ipaddress import IPv4Address, IPv6Address

from fairlead.model.documents.addresses import IPAddress

BROADCAST_MAC = b"\xff" * 6
ALL_NODES = IPv6Address("ff02::1")
ALL_NODES_MAC = bytes.fromhex("333300000001")
"""Multicast MAC of all nodes (RFC 2464, section 7)."""
ARP, IPV6 = b"\x08\x06", b"\x86\xdd"
"""EtherTypes."""
ICMPV6 = 58
HOP_LIMIT = 255
"""Required hop limit (RFC 4861, section 7.1.2): a lower one shows that a router forwarded the packet, and it is
discarded."""
NEIGHBOUR_ADVERTISEMENT = 136
OVERRIDE = 0x20000000
"""Flags of an unsolicited advertisement of a host that overrides cache entries (RFC 4861, section 4.4)."""
TARGET_LINK_ADDRESS = 2


def announcement(address: IPAddress, mac: str) -> bytes:
    octets = bytes.fromhex(mac.replace(":", ""))
    return _arp(address, octets) if isinstance(address, IPv4Address) else _advertisement(address, octets)


def _arp(address: IPv4Address, mac: bytes) -> bytes:
    """Build an ARP announcement: a request of the address for itself (RFC 826; RFC 5227, section 2.3)."""
    request = bytes.fromhex("0001 0800 06 04 0001")
    return BROADCAST_MAC + mac + ARP + request + mac + address.packed + bytes(6) + address.packed


def _advertisement(address: IPv6Address, mac: bytes) -> bytes:
    """Build an unsolicited neighbour advertisement (RFC 4861, sections 4.4 and 7.2.6)."""
    option = bytes([TARGET_LINK_ADDRESS, 1]) + mac
    rest = OVERRIDE.to_bytes(4, "big") + address.packed + option
    message = bytes([NEIGHBOUR_ADVERTISEMENT, 0])
    length = len(message) + 2 + len(rest)
    pseudo = address.packed + ALL_NODES.packed + length.to_bytes(4, "big") + bytes([0, 0, 0, ICMPV6])
    message += checksum(pseudo + message + rest).to_bytes(2, "big") + rest
    header = bytes.fromhex("60000000") + length.to_bytes(2, "big") + bytes([ICMPV6, HOP_LIMIT])
    return ALL_NODES_MAC + mac + IPV6 + header + address.packed + ALL_NODES.packed + message


def checksum(data: bytes) -> int:
    """Compute the checksum of RFC 1071 over an even number of octets."""
    total = sum(int.from_bytes(data[first : first + 2], "big") for first in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF

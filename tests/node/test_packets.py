"""Announcements, byte by byte."""

from ipaddress import ip_address

import pytest

from fairlead.node.packets import announcement

ARP = """
    ffffffffffff 02000000ff0a 0806
    0001 0800 06 04 0001
    02000000ff0a 0a0000c8
    000000000000 0a0000c8
"""
"""Ethernet, IPv4, request; the address is both sender and target."""
ADVERTISEMENT = """
    333300000001 02000000ff0a 86dd
    60000000 0020 3a ff
    fd00000a000000000000000000000200
    ff020000000000000000000000000001
    88 00 577f 20000000
    fd00000a000000000000000000000200
    02 01 02000000ff0a
"""
"""Hop limit 255, only the override flag, and the option with the MAC."""


@pytest.mark.parametrize(("address", "frame"), [("10.0.0.200", ARP), ("fd00:a::200", ADVERTISEMENT)])
def test_announcement_matches_the_frame_of_the_rfcs(address: str, frame: str):
    assert announcement(ip_address(address), "02:00:00:00:ff:0a") == bytes.fromhex(frame)


@pytest.mark.parametrize("address", ["fd00:a::200", "fd00::", "2001:db8:ffff:ffff:ffff:ffff:ffff:fffe"])
@pytest.mark.parametrize("mac", ["02:00:00:00:00:00", "0e:ff:ff:ff:ff:ff"])
def test_icmpv6_checksum_covers_pseudo_header_and_message(address: str, mac: str):
    """The one's complement sum of pseudo header and message with its checksum is all ones (RFC 4443, section 2.3)."""
    frame = announcement(ip_address(address), mac)
    packet, message = frame[14:], frame[54:]
    summed = packet[8:40] + len(message).to_bytes(4, "big") + bytes([0, 0, 0, packet[6]]) + message
    total = sum(int.from_bytes(summed[first : first + 2], "big") for first in range(0, len(summed), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    assert total == 0xFFFF

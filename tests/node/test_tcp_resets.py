"""Resets as a host sends them: sequence numbers, addresses and checksums, read by an independent parser."""

import struct

import pytest

from fairlead.model.documents.addresses import parse_address
from fairlead.node.packets import checksum
from fairlead.node.tcp_resets import ACK, FIN, RST, SYN, reset_of
from harness.segments import CLIENT_MAC, ENDS, OWN_MAC, frame


def read(version: int, answer: bytes) -> tuple[int, int, int]:
    """Sequence number, acknowledgement and flags of a frame. Asserts correct addresses and checksums."""
    assert answer[:12] == CLIENT_MAC + OWN_MAC
    target, source = (parse_address(each).packed for each in ENDS[version])
    packet = answer[14:]
    if version == 4:
        assert (checksum(packet[:20]), packet[12:20], len(packet)) == (0, source + target, 40)
        segment = packet[20:]
    else:
        assert (packet[6:7], packet[8:40], len(packet)) == (b"\x06", source + target, 60)
        segment = packet[40:]
    assert checksum(source + target + struct.pack("!II", 6, len(segment)) + segment) == 0
    ports, number, acknowledged, _, flags = struct.unpack("!IIIBB", segment[:14])
    assert ports == (9 << 16) + 40000
    return number, acknowledged, flags


@pytest.mark.parametrize("version", [4, 6])
def test_reset_of_a_segment_with_ack_has_the_acknowledged_sequence_number(version: int):
    answer = reset_of(frame(version, ACK, b"hello"))
    assert answer is not None
    assert read(version, answer) == (7000, 0, RST)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize(("flags", "data", "next_"), [(SYN, b"", 1001), (FIN, b"odd", 1004), (0, b"", 1000)])
def test_reset_of_a_segment_without_ack_acknowledges_the_segment(version: int, flags: int, data: bytes, next_: int):
    answer = reset_of(frame(version, flags, data))
    assert answer is not None
    assert read(version, answer) == (0, next_, RST | ACK)


def test_acknowledgement_numbers_wrap_around():
    answer = reset_of(frame(4, SYN, number=2**32 - 1))
    assert answer is not None
    assert read(4, answer) == (0, 0, RST | ACK)


@pytest.mark.parametrize("version", [4, 6])
def test_truncated_segments_fragments_and_resets_get_no_answer(version: int):
    whole = frame(version, ACK)
    begin = 14 + (20 if version == 4 else 40)
    assert reset_of(frame(version, RST | ACK)) is None
    assert all(reset_of(whole[:length]) is None for length in range(begin + 19))
    assert reset_of(whole[:12] + b"\x08\x06" + whole[14:]) is None
    assert reset_of(frame(4, ACK)[:20] + b"\x20\x00" + frame(4, ACK)[22:]) is None, "a fragment"

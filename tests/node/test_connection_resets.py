"""Rate of resets of a network, over a pair of sockets that carry frames as a device would."""

import asyncio
import socket
from pathlib import Path

import pytest

from fairlead.node import connection_resets
from fairlead.node.connection_resets import FILTERS, MOST, NOTHING, PERIOD, Resetter
from fairlead.node.tcp_resets import ACK
from harness.segments import frame


@pytest.mark.virtual_clock
async def test_so_many_are_answered_at_once_and_the_others_later():
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with own, other:
        own.setblocking(False)
        other.setblocking(False)
        for _ in range(2 * MOST + 1):
            other.send(frame(4, ACK))
        resetter = Resetter(Path("/nowhere"))
        asyncio.get_running_loop().add_reader(own, resetter._answer, own)
        await asyncio.sleep(PERIOD / 2)
        assert heard(other) == MOST
        await asyncio.sleep(PERIOD)
        assert heard(other) == MOST
        await asyncio.sleep(PERIOD)
        assert heard(other) == 1
        asyncio.get_running_loop().remove_reader(own)


def heard(by: socket.socket) -> int:
    count = 0
    try:
        while by.recv(2048):
            count += 1
    except BlockingIOError:
        return count
    return count


@pytest.mark.parametrize("program", [*FILTERS.values(), NOTHING])
def test_each_jump_of_a_filter_ends_at_a_line_of_it(program: connection_resets._Program):
    ends = [line + 1 + jump for line, (_, *jumps, _) in enumerate(program) for jump in jumps if jump]
    assert all(end < len(program) for end in ends)
    assert program[-1] == (0x06, 0, 0, 0), "what is not taken is not taken"


async def test_where_nobody_is_to_be_reset_no_namespace_is_needed():
    await Resetter(Path("/nowhere")).apply([], ["fl1"])

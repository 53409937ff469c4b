"""Rate of resets of a network, over a pair of sockets that carry frames as a device would."""

import asyncio
import socket
from pathlib import Path

import pytest

from fairlead.node import connection_resets
from fairlead.node.connection_resets import DROP_ALL, FILTERS, MAX_RESETS, RATE_PERIOD, Resetter
from fairlead.node.tcp_resets import ACK
from harness.segments import frame


@pytest.mark.virtual_clock
async def test_resets_per_period_are_limited():
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with own, other:
        own.setblocking(False)
        other.setblocking(False)
        for _ in range(2 * MAX_RESETS + 1):
            other.send(frame(4, ACK))
        resetter = Resetter(Path("/nowhere"))
        asyncio.get_running_loop().add_reader(own, resetter._send_resets, own)
        await asyncio.sleep(RATE_PERIOD / 2)
        assert heard(other) == MAX_RESETS
        await asyncio.sleep(RATE_PERIOD)
        assert heard(other) == MAX_RESETS
        await asyncio.sleep(RATE_PERIOD)
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


@pytest.mark.parametrize("program", [*FILTERS.values(), DROP_ALL])
def test_every_jump_of_a_bpf_filter_ends_inside_the_program(program: connection_resets._Program):
    ends = [line + 1 + jump for line, (_, *jumps, _) in enumerate(program) for jump in jumps if jump]
    assert all(end < len(program) for end in ends)
    assert program[-1] == (0x06, 0, 0, 0), "what is not taken is not taken"


async def test_apply_without_resets_needs_no_namespace():
    await Resetter(Path("/nowhere")).apply([], ["fl1"])

"""What a silence means while the node is busy, was asleep, or is another one than the member's."""

import asyncio
import socket
from dataclasses import replace
from math import inf

import pytest

from fairlead.model.checks import Rhythm, Verdict
from fairlead.node.prober import OVERSLEPT
from harness.probed import HOSTS, HTTP, TCP, UDP, answering, full, nothing, probe_all, probing, serving, target
from harness.virtual_clock import advance
from harness.waiting import eventually

pytestmark = pytest.mark.virtual_clock


async def test_silence_says_nothing_while_those_who_answer_take_longer_than_usual_but_not_for_ever():
    """Others see to it that they have no time; the prober has all the time that there is."""
    how = Rhythm(delay=0.4, timeout=0.2, max_retries=1, max_retries_down=1)
    slow = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.12 if slow.is_set() else 0.0)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await writer.drain()

    async with serving(serve) as port, serving(nothing) as other:
        lively = target(HTTP, port, rhythm=how)
        many = [replace(lively, endpoint=lively.endpoint._replace(port_id=f"vm{each}")) for each in range(20)]
        async with probing(*many) as prober:
            standings = prober.tracker.standings
            await eventually(lambda: sum(each.verdict is Verdict.UP for each in standings.values()) == 20)
            slow.set()
            await eventually(lambda: prober._slowness(asyncio.get_running_loop().time()) > 0.05)
            silent = target(HTTP, other, rhythm=how)
            prober.change((), [silent])
            await eventually(lambda: silent.endpoint in standings and standings[silent.endpoint].doubts == 2)
            assert standings[silent.endpoint].verdict is Verdict.PENDING
            await eventually(lambda: standings[silent.endpoint].verdict is Verdict.DOWN)
            assert prober.probes > 20


async def test_who_overslept_knows_nothing_of_anybody_any_more():
    how = Rhythm(delay=0.1, timeout=0.1, max_retries=1, max_retries_down=1)

    slept = list[bool]()
    async with serving(nothing) as port:
        asked = target(TCP, port, rhythm=how)
        async with probing(asked, overslept=lambda: slept.append(asked.endpoint in standings)) as prober:
            standings = prober.tracker.standings
            await eventually(lambda: asked.endpoint in standings)
            advance(OVERSLEPT)
            await asyncio.sleep(0.05)
            assert slept == []
            advance(OVERSLEPT + 0.1)
            await eventually(lambda: slept == [False])
            await eventually(lambda: asked.endpoint in standings and standings[asked.endpoint].verdict is Verdict.UP)


async def test_silence_to_a_datagram_from_another_node_says_nothing():
    how = Rhythm(delay=0.2, timeout=0.1, max_retries=1, max_retries_down=1)

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind((HOSTS[4], 0))
        here = target(UDP, silent.getsockname()[1], rhythm=how)
        there = replace(here, endpoint=here.endpoint._replace(port_id="elsewhere"), covers=True)
        found = await probe_all({"here": here, "there": there})
    assert (found["here"].verdict, found["there"].verdict) == (Verdict.UP, Verdict.PENDING)
    assert "its node is silent" in found["there"].missed


async def test_a_wrong_answer_by_a_new_device_counts_at_once_and_silence_does_not():
    """Whoever answers has been reached by it: a node without a pod, say, whose kube-proxy says 503."""
    how = Rhythm(delay=0.1, timeout=0.1, max_retries=1, max_retries_down=1)

    async def verdict(port: int) -> Verdict:
        asked = target(HTTP, port, rhythm=how)
        async with probing(asked, new_devices={"lo": inf}) as prober:
            await eventually(lambda: asked.endpoint in prober.tracker.standings and prober.probes > 1)
            return prober.tracker.standings[asked.endpoint].verdict

    async with serving(answering(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")) as port:
        assert await verdict(port) is Verdict.DOWN
    assert await verdict(port) is Verdict.DOWN  # the connection is refused
    with full(4) as port:
        assert await verdict(port) is Verdict.PENDING

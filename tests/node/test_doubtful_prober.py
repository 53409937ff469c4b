"""Missed probes on a node that is busy or was suspended, or through a new device."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from math import inf

import pytest

from fairlead.model.documents.checks import Rhythm, Target, Verdict
from fairlead.model.documents.health import Endpoint, Health
from fairlead.node.prober import BUSY, MOST_DOUBTS, OVERSLEPT, STARVED
from fairlead.node.prober_thread import _log_starved, sighting
from fairlead.node.tracker import Standing
from harness.probed import HOSTS, HTTP, TCP, UDP, answering, full, nothing, probe_all, probing, serving, target
from harness.virtual_clock import advance
from harness.waiting import eventually, turns

pytestmark = pytest.mark.virtual_clock


async def test_silence_says_nothing_while_those_who_answer_take_longer_than_usual_but_not_for_ever():
    """Only the members are slow; the prober gets all the CPU time it needs."""
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
    """An answer proves that the device works, for example the 503 of kube-proxy on a node without a pod."""
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


@contextlib.asynccontextmanager
async def falling_silent() -> AsyncIterator[tuple[int, asyncio.Event]]:
    """A member that answers until the event is set."""
    silent = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if silent.is_set():
            await reader.read()
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await writer.drain()

    async with serving(serve) as port:
        yield port, silent
        await turns()  # connections closed by the prober end here too


async def starve(seconds: float, every: float, times: int, look: Callable[[], None] = lambda: None) -> None:
    """Suspend the process repeatedly for this time."""
    for _ in range(times):
        await asyncio.sleep(every - seconds)
        look()
        advance(seconds)


async def test_a_starved_agent_calls_nobody_down_and_says_so_until_it_is_not_starved_any_more():
    how = Rhythm(delay=0.4, timeout=0.3, max_retries=1, max_retries_down=1)
    told, starved = list[Verdict](), list[bool]()

    def tell(changed: Collection[Endpoint]) -> None:
        told.extend(prober.tracker.standings[each].verdict for each in changed)

    async with falling_silent() as (port, silent):
        asked = target(HTTP, port, rhythm=how)
        async with probing(asked, told=tell, starved=starved.append) as prober:
            await eventually(lambda: told == [Verdict.UP])
            silent.set()
            before = prober.probes
            given = set[float]()
            await starve(0.08, 0.1, 300, lambda: given.update(each.patience for each in prober._flights.values()))
            assert sorted(given) == pytest.approx([0.3, 0.6, 1.2, 2.4]), "each attempt has twice the time"
            standing = prober.tracker.standings[asked.endpoint]
            assert (told, starved, prober.is_starved) == ([Verdict.UP], [True], True)
            discarded = prober.discarded[STARVED]
            assert 2 * MOST_DOUBTS < discarded <= prober.probes - before
            assert (standing.verdict, standing.missed) == (Verdict.UP, STARVED)
            assert 2 * MOST_DOUBTS < prober.probes - before < 60, "and it is not asked without a rest"
            await eventually(lambda: told == [Verdict.UP, Verdict.DOWN])
            assert (starved, prober.is_starved) == ([True, False], False)
            assert prober.discarded.keys() <= {STARVED, BUSY}, "of other silences nothing is discarded"


async def test_what_was_probed_by_a_starved_agent_is_forgotten_with_it():
    how = Rhythm(delay=0.4, timeout=0.3, max_retries=1, max_retries_down=1)
    starved = list[bool]()
    async with serving(nothing) as port:
        asked = target(HTTP, port, rhythm=how)
        async with probing(asked, starved=starved.append) as prober:
            await starve(0.08, every=0.1, times=300)
            assert starved == [True]
            prober.change([asked.endpoint], ())
            assert starved == [True, False]


@pytest.mark.parametrize("busy_seconds", [0.03, 0.06])
async def test_a_dead_member_is_found_by_a_node_that_is_busy_and_not_starved(busy_seconds: float):
    """The lost time is more than a quarter of a short timeout, and less than a quarter of a longer one; or more than a
    quarter of each, and less than half of the time."""
    how = Rhythm(delay=0.1, timeout=0.1, max_retries=1, max_retries_down=1)
    starved = list[bool]()
    async with falling_silent() as (port, silent):
        asked = target(HTTP, port, rhythm=how)
        async with probing(asked, starved=starved.append) as prober:
            standings = prober.tracker.standings
            await eventually(lambda: asked.endpoint in standings)
            silent.set()
            busy = asyncio.create_task(starve(busy_seconds, every=0.15, times=1000))
            await eventually(lambda: standings[asked.endpoint].verdict is Verdict.DOWN)
            assert (busy.done(), starved) == (False, [])
            busy.cancel()


async def test_time_that_is_lost_between_two_looks_is_held_against_nobody():
    """The thread may be suspended anywhere, not only where it waits."""
    how = Rhythm(delay=0.2, timeout=0.1, max_retries=1, max_retries_down=1)
    stops = [0.0]

    def device(_: Target) -> str:
        advance(stops[0])
        return "lo"

    async with serving(nothing) as port:
        silent = target(HTTP, port, rhythm=how)
        async with probing(silent) as prober:
            prober.device = device
            stops[0] = 0.3
            await eventually(lambda: prober._flights)
            [flight] = prober._flights.values()
            assert asyncio.get_running_loop().time() - flight.began < 0.1, "it begins when the member is asked"
            lost = await eventually(lambda: prober.lost)
            assert lost == pytest.approx(0.3)


def test_a_starved_agent_is_in_its_log_and_in_the_report_of_each_member(caplog: pytest.LogCaptureFixture):
    for is_starved in (True, False):
        _log_starved(is_starved)
    first, last = caplog.messages
    assert ("members keep their last status" in first, "not starved any more" in last) == (True, True)
    standing = Standing(verdict=Verdict.UP, since=1.0, missed=STARVED)
    seen = sighting(standing, "one", datetime(2026, 1, 1, tzinfo=UTC), 2.0)
    assert (seen.health, seen.error) == (Health.ONLINE, STARVED)

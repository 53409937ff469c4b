"""Missed probes on a node that is busy or was suspended, or through a new device."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from math import inf

import pytest

from fairlead.model.documents.checks import ProbeSchedule, Target, Verdict
from fairlead.model.documents.health import Endpoint, Health
from fairlead.node.prober import BUSY_REASON, MAX_CPU_STALL, MAX_RETRIES, STARVED_REASON
from fairlead.node.prober_thread import _log_starved, make_probe_result
from fairlead.node.tracker import MemberState
from harness.probed import (
    HOSTS,
    HTTP,
    TCP,
    UDP,
    answering,
    full_backlog,
    keep_silent,
    probe_all,
    probing,
    serving,
    target,
)
from harness.virtual_clock import advance
from harness.waiting import eventually, run_ready_tasks

pytestmark = pytest.mark.virtual_clock


async def test_timeouts_are_ignored_for_a_while_when_other_members_answer_slowly():
    """Only the members are slow; the prober gets all the CPU time it needs."""
    how = ProbeSchedule(delay=0.4, timeout=0.2, max_retries=1, max_retries_down=1)
    slow = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.12 if slow.is_set() else 0.0)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await writer.drain()

    async with serving(serve) as port, serving(keep_silent) as other:
        lively = target(HTTP, port, rhythm=how)
        many = [replace(lively, endpoint=lively.endpoint._replace(port_id=f"vm{each}")) for each in range(20)]
        async with probing(*many) as prober:
            standings = prober.tracker.states
            await eventually(lambda: sum(each.verdict is Verdict.UP for each in standings.values()) == 20)
            slow.set()
            await eventually(lambda: prober._slowness(asyncio.get_running_loop().time()) > 0.05)
            silent = target(HTTP, other, rhythm=how)
            prober.change((), [silent])
            await eventually(lambda: silent.endpoint in standings and standings[silent.endpoint].void_probes == 2)
            assert standings[silent.endpoint].verdict is Verdict.PENDING
            await eventually(lambda: standings[silent.endpoint].verdict is Verdict.DOWN)
            assert prober.probes > 20


async def test_results_are_dropped_after_the_process_was_suspended():
    how = ProbeSchedule(delay=0.1, timeout=0.1, max_retries=1, max_retries_down=1)

    slept = list[bool]()
    async with serving(keep_silent) as port:
        asked = target(TCP, port, rhythm=how)
        async with probing(asked, on_cpu_stall=lambda: slept.append(asked.endpoint in standings)) as prober:
            standings = prober.tracker.states
            await eventually(lambda: asked.endpoint in standings)
            advance(MAX_CPU_STALL)
            await asyncio.sleep(0.05)
            assert slept == []
            advance(MAX_CPU_STALL + 0.1)
            await eventually(lambda: slept == [False])
            await eventually(lambda: asked.endpoint in standings and standings[asked.endpoint].verdict is Verdict.UP)


async def test_udp_silence_gives_no_verdict_for_a_delegated_probe():
    how = ProbeSchedule(delay=0.2, timeout=0.1, max_retries=1, max_retries_down=1)

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind((HOSTS[4], 0))
        here = target(UDP, silent.getsockname()[1], rhythm=how)
        there = replace(here, endpoint=here.endpoint._replace(port_id="elsewhere"), is_delegated=True)
        found = await probe_all({"here": here, "there": there})
    assert (found["here"].verdict, found["there"].verdict) == (Verdict.UP, Verdict.PENDING)
    assert "the agent of its node is unresponsive" in found["there"].void_reason


async def test_wrong_answer_through_a_new_device_counts_but_a_timeout_does_not():
    """An answer proves that the device works, for example the 503 of kube-proxy on a node without a pod."""
    how = ProbeSchedule(delay=0.1, timeout=0.1, max_retries=1, max_retries_down=1)

    async def verdict(port: int) -> Verdict:
        asked = target(HTTP, port, rhythm=how)
        async with probing(asked, new_devices={"lo": inf}) as prober:
            await eventually(lambda: asked.endpoint in prober.tracker.states and prober.probes > 1)
            return prober.tracker.states[asked.endpoint].verdict

    async with serving(answering(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")) as port:
        assert await verdict(port) is Verdict.DOWN
    assert await verdict(port) is Verdict.DOWN  # the connection is refused
    with full_backlog(4) as port:
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
        await run_ready_tasks()  # connections closed by the prober end here too


async def starve(seconds: float, every: float, times: int, look: Callable[[], None] = lambda: None) -> None:
    """Suspend the process repeatedly for this time."""
    for _ in range(times):
        await asyncio.sleep(every - seconds)
        look()
        advance(seconds)


async def test_starved_agent_marks_no_member_down_and_reports_the_starvation():
    how = ProbeSchedule(delay=0.4, timeout=0.3, max_retries=1, max_retries_down=1)
    told, starved = list[Verdict](), list[bool]()

    def tell(changed: Collection[Endpoint]) -> None:
        told.extend(prober.tracker.states[each].verdict for each in changed)

    async with falling_silent() as (port, silent):
        asked = target(HTTP, port, rhythm=how)
        async with probing(asked, on_change=tell, on_starved=starved.append) as prober:
            await eventually(lambda: told == [Verdict.UP])
            silent.set()
            before = prober.probes
            given = set[float]()
            await starve(0.08, 0.1, 300, lambda: given.update(each.timeout for each in prober._in_flight.values()))
            assert sorted(given) == pytest.approx([0.3, 0.6, 1.2, 2.4]), "each attempt has twice the time"
            standing = prober.tracker.states[asked.endpoint]
            assert (told, starved, prober.is_starved) == ([Verdict.UP], [True], True)
            discarded = prober.discarded[STARVED_REASON]
            assert 2 * MAX_RETRIES < discarded <= prober.probes - before
            assert (standing.verdict, standing.void_reason) == (Verdict.UP, STARVED_REASON)
            assert 2 * MAX_RETRIES < prober.probes - before < 60, "and it is not asked without a rest"
            await eventually(lambda: told == [Verdict.UP, Verdict.DOWN])
            assert (starved, prober.is_starved) == ([True, False], False)
            assert prober.discarded.keys() <= {STARVED_REASON, BUSY_REASON}, "of other silences nothing is discarded"


async def test_removing_the_last_target_ends_the_starvation_of_the_agent():
    how = ProbeSchedule(delay=0.4, timeout=0.3, max_retries=1, max_retries_down=1)
    starved = list[bool]()
    async with serving(keep_silent) as port:
        asked = target(HTTP, port, rhythm=how)
        async with probing(asked, on_starved=starved.append) as prober:
            await starve(0.08, every=0.1, times=300)
            assert starved == [True]
            prober.change([asked.endpoint], ())
            assert starved == [True, False]


@pytest.mark.parametrize("busy_seconds", [0.03, 0.06])
async def test_busy_but_not_starved_node_detects_a_dead_member(busy_seconds: float):
    """The lost time is more than a quarter of a short timeout, and less than a quarter of a longer one; or more than a
    quarter of each, and less than half of the time."""
    how = ProbeSchedule(delay=0.1, timeout=0.1, max_retries=1, max_retries_down=1)
    starved = list[bool]()
    async with falling_silent() as (port, silent):
        asked = target(HTTP, port, rhythm=how)
        async with probing(asked, on_starved=starved.append) as prober:
            standings = prober.tracker.states
            await eventually(lambda: asked.endpoint in standings)
            silent.set()
            busy = asyncio.create_task(starve(busy_seconds, every=0.15, times=1000))
            await eventually(lambda: standings[asked.endpoint].verdict is Verdict.DOWN)
            assert (busy.done(), starved) == (False, [])
            busy.cancel()


async def test_time_lost_before_a_probe_starts_does_not_count_against_the_member():
    """The thread may be suspended anywhere, not only where it waits."""
    how = ProbeSchedule(delay=0.2, timeout=0.1, max_retries=1, max_retries_down=1)
    stops = [0.0]

    def device(_: Target) -> str:
        advance(stops[0])
        return "lo"

    async with serving(keep_silent) as port:
        silent = target(HTTP, port, rhythm=how)
        async with probing(silent) as prober:
            prober.device = device
            stops[0] = 0.3
            await eventually(lambda: prober._in_flight)
            [flight] = prober._in_flight.values()
            assert asyncio.get_running_loop().time() - flight.began < 0.1, "it begins when the member is asked"
            lost = await eventually(lambda: prober.lost_time)
            assert lost == pytest.approx(0.3)


def test_starvation_is_logged_and_reported_with_each_member(caplog: pytest.LogCaptureFixture):
    for is_starved in (True, False):
        _log_starved(is_starved)
    first, last = caplog.messages
    assert ("members keep their last status" in first, "no longer starved" in last) == (True, True)
    standing = MemberState(verdict=Verdict.UP, since=1.0, void_reason=STARVED_REASON)
    seen = make_probe_result(standing, "one", datetime(2026, 1, 1, tzinfo=UTC), 2.0)
    assert (seen.health, seen.error) == (Health.ONLINE, STARVED_REASON)

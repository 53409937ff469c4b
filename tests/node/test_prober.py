"""Probes of real servers on loopback: correct, wrong, slow, silent, resetting, half open, and TLS with a wrong name.

The clock is virtual, so a member that answers has as much time as it needs, and a timeout takes no real time.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.model.documents.checks import ProbeSchedule, Target, Verdict
from fairlead.model.documents.health import Endpoint
from harness.probed import (
    CASES,
    HELLO,
    HOSTS,
    HTTP,
    HTTP_OK,
    HTTPS,
    PING,
    PROBE_TIMEOUT,
    SLOW,
    STARVED_OUTCOME,
    TCP,
    UDP,
    full_backlog,
    outcome,
    probe,
    probe_all,
    probing,
    serving,
    target,
    type_of,
    unanswered_port,
)
from harness.virtual_clock import advance
from harness.waiting import eventually, run_ready_tasks

pytestmark = pytest.mark.virtual_clock


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """Server context with a self-signed certificate for another name."""
    where: Path = tmp_path_factory.mktemp("tls")
    key, chain = where / "key.pem", where / "chain.pem"
    request = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    subprocess.run(
        [*request, "-keyout", key, "-out", chain, "-days", "2", "-subj", "/CN=wrong.example"],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    return context


@contextlib.asynccontextmanager
async def asked_of_all(version: int, certificate: ssl.SSLContext) -> AsyncIterator[dict[str, tuple[Target, str]]]:
    """Each type of monitor with each kind of server, and the expected error."""
    refuses = "connection refused"
    async with contextlib.AsyncExitStack() as stack:
        found: dict[str, tuple[Target, str]] = {}
        for name, case in CASES.items():
            serve = serving(case.serve, version, certificate if case.tls else None)
            found[name] = target(case.check, await stack.enter_async_context(serve), version), case.error
        closed = stack.enter_context(unanswered_port(version, socket.SOCK_STREAM))
        for check in (TCP, HTTP, HTTPS, HELLO, UDP):  # the same number is closed for UDP too
            found[f"{type_of(check)} closed"] = target(check, closed, version), refuses
        found["udp open"] = target(UDP, stack.enter_context(unanswered_port(version, socket.SOCK_DGRAM)), version), ""
        found["accepts nobody any more"] = target(TCP, stack.enter_context(full_backlog(version)), version), SLOW
        yield found


async def test_each_monitor_type_reports_the_error_of_each_server_type(certificate: ssl.SSLContext):
    """One prober probes all of them concurrently."""

    async with asked_of_all(4, certificate) as four, asked_of_all(6, certificate) as six:
        every = {
            f"{name}, {address}": each
            for found, address in ((four, "IPv4"), (six, "IPv6"))
            for name, each in found.items()
        }
        found = await probe_all({name: asked for name, (asked, _) in every.items()})
    wanted = {name: (Verdict.DOWN, error) if error else (Verdict.UP, "") for name, (_, error) in every.items()}
    assert {name: outcome(standing) for name, standing in found.items()} == wanted
    assert {name for name, each in found.items() if each.latency is None} == {
        name for name, (asked, error) in every.items() if error or asked.check is UDP
    }


async def test_silent_member_is_down_after_the_timeout():
    with full_backlog(4) as port:
        async with probing(target(TCP, port)) as prober:
            await eventually(lambda: prober._in_flight)
            [flight] = prober._in_flight.values()
            standing = await eventually(lambda: prober.tracker.states.get(flight.target.endpoint))
    assert outcome(standing) == (Verdict.DOWN, SLOW)
    assert standing.since == pytest.approx(flight.began + PROBE_TIMEOUT)


async def test_missing_probe_device_gives_no_verdict():
    how = ProbeSchedule(delay=0.2, timeout=0.15, max_retries=1, max_retries_down=1)
    found = await probe(target(TCP, 80, rhythm=how), device="nosuch")
    assert outcome(found) == (Verdict.PENDING, "this node has no probe device for the network yet")


def pings_are_allowed() -> bool:
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not pings_are_allowed(), reason="net.ipv4.ping_group_range is for nobody here; tests/lab ping")
@pytest.mark.parametrize("version", [4, 6])
async def test_member_that_answers_ping_is_up(version: int):
    found = await probe(target(PING, 0, version))
    assert outcome(found) == (Verdict.UP, "")


async def test_member_goes_down_and_up_after_the_configured_number_of_results():
    """A probe every 0.1 s: the first one within the first interval, and the last one at the end of the last."""
    how = ProbeSchedule(delay=0.1, timeout=0.1, max_retries=3, max_retries_down=2)
    loop, seen = asyncio.get_running_loop(), list[tuple[Verdict, float, int]]()

    def told(changed: Collection[Endpoint]) -> None:
        [verdict] = [prober.tracker.states[each].verdict for each in changed]
        seen.append((verdict, loop.time(), prober.probes))

    async with contextlib.AsyncExitStack() as living:
        port = await living.enter_async_context(serving(HTTP_OK))
        async with probing(target(TCP, port, rhythm=how), on_change=told) as prober:
            await eventually(lambda: len(seen) == 1)
            died, before = loop.time(), prober.probes
            await living.aclose()
            await eventually(lambda: len(seen) == 2)
            (_, down, failed), back = seen[1], loop.time()
            answered = prober.probes
            async with serving(HTTP_OK, port=port):
                await eventually(lambda: len(seen) == 3)
    assert [verdict for verdict, *_ in seen] == [Verdict.UP, Verdict.DOWN, Verdict.UP]
    assert (failed - before, seen[2][2] - answered) == (2, 3)
    assert 0.1 <= down - died <= 0.2
    assert 0.2 <= seen[2][1] - back <= 0.3


async def test_suspended_prober_marks_no_member_down():
    """The loop is suspended repeatedly for longer than the timeout, while all members answer."""
    how = ProbeSchedule(delay=0.2, timeout=0.1, max_retries=1, max_retries_down=1)

    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(socket.create_server((HOSTS[4], 0))) for _ in range(20)]  # the kernel accepts
        async with probing(*(target(TCP, each.getsockname()[1], rhythm=how) for each in ports)) as prober:
            for _ in range(10):
                await asyncio.sleep(0.01)
                advance(0.15)
    verdicts = {each.verdict for each in prober.tracker.states.values()}
    assert verdicts == {Verdict.UP}
    assert prober.lost_time > 1


async def test_timeout_gives_no_verdict_while_the_node_is_busy():
    how = ProbeSchedule(delay=0.4, timeout=0.3, max_retries=1, max_retries_down=1)

    with full_backlog(4) as port:
        asked = target(TCP, port, rhythm=how)
        async with probing(asked) as prober:
            standings = prober.tracker.states
            for _ in range(30):  # the port determines when the first probe is due
                await asyncio.sleep(0.01)
                advance(0.08)
                if asked.endpoint in standings:
                    break
            assert outcome(standings[asked.endpoint]) == STARVED_OUTCOME
            await eventually(lambda: prober.tracker.states[asked.endpoint].verdict is Verdict.DOWN)


async def test_open_sockets_are_limited_and_closed_at_the_end():
    how = ProbeSchedule(delay=0.5, timeout=0.5, max_retries=1, max_retries_down=1)

    before = len(os.listdir("/proc/self/fd"))
    with socket.create_server((HOSTS[4], 0)) as listening:  # the kernel accepts, and no answer is sent
        silent = target(HTTP, listening.getsockname()[1], rhythm=how)
        many = [replace(silent, endpoint=silent.endpoint._replace(port_id=f"vm{each}")) for each in range(50)]
        async with probing(*many, max_sockets=6) as prober:
            most = 0
            for _ in range(60):
                await asyncio.sleep(0.01)
                most = max(most, len(prober._in_flight))
            assert most == 3, "half of them, for one project"
            prober.change([each.endpoint for each in many[1:]], ())
    await run_ready_tasks()
    assert len(os.listdir("/proc/self/fd")) <= before + 1

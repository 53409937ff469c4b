"""Probes of real servers on loopback: right, wrong, slow, silent, resetting, half open, with TLS under a wrong name."""

import asyncio
import contextlib
import os
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pytest

from fairlead.model.addresses import parse_address
from fairlead.model.checks import Check, HttpCheck, PlainCheck, Rhythm, Target, Verdict
from fairlead.model.health import ASKED_OVER, Endpoint
from fairlead.model.loadbalancer import MonitorType
from fairlead.node.prober import Prober
from fairlead.node.tracker import Standing

PATIENCE = 1.0
"""Seconds. What is silent is waited for so long; a node that is busy meanwhile asks again."""
RHYTHM = Rhythm(delay=1.25, timeout=PATIENCE, max_retries=1, max_retries_down=1)
TCP, PING, HELLO, UDP = (
    PlainCheck(type=each)
    for each in (MonitorType.TCP, MonitorType.PING, MonitorType.TLS_HELLO, MonitorType.UDP_CONNECT)
)
HTTP = HttpCheck(is_tls=False, method="GET", path="/up", version="1.1", host="web.example", codes=frozenset({200}))
HTTPS = replace(HTTP, is_tls=True)
HOSTS = {4: "127.0.0.1", 6: "::1"}
Name = TypeVar("Name")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def type_of(check: Check) -> MonitorType:
    if isinstance(check, HttpCheck):
        return MonitorType.HTTPS if check.is_tls else MonitorType.HTTP
    return check.type


def target(check: Check, port: int, version: int = 4, rhythm: Rhythm = RHYTHM) -> Target:
    address = parse_address(HOSTS[version])
    endpoint = Endpoint("vm1", address, port, ASKED_OVER[type_of(check)], "net1", "monitor")
    return Target(endpoint=endpoint, check=check, rhythm=rhythm)


async def probe(asked: Target, device: str = "lo") -> Standing:
    """What the first probe comes to."""
    return (await probe_all({"": asked}, device))[""]


def is_known(standing: Standing) -> bool:
    """A busy node says nothing, and asks again."""
    return standing.verdict is not Verdict.PENDING or (bool(standing.missed) and "busy" not in standing.missed)


async def probe_all(asked: dict[Name, Target], device: str = "lo") -> dict[Name, Standing]:
    prober = Prober(device=lambda _: device, told=lambda _: None)
    prober.change((), asked.values())
    running = asyncio.create_task(prober.run())
    endpoints = {each.endpoint for each in asked.values()}
    try:
        standings = prober.tracker.standings
        with contextlib.suppress(TimeoutError):  # on a node that is always busy silence never says anything
            await until(lambda: all(each in standings and is_known(standings[each]) for each in endpoints), 15.0)
        return {name: prober.tracker.standings[each.endpoint] for name, each in asked.items()}
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@contextlib.asynccontextmanager
async def serving(
    serve: Serve, version: int = 4, tls: ssl.SSLContext | None = None, port: int = 0
) -> AsyncIterator[int]:
    at_work: set[asyncio.Task[None]] = set()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        at_work.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await serve(reader, writer)
        finally:
            writer.transport.abort() if at_work_is_over() else writer.close()
            at_work.discard(task)

    def at_work_is_over() -> bool:
        return not server.is_serving()

    server = await asyncio.start_server(serve_one, HOSTS[version], port, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in at_work:
            task.cancel()
        await asyncio.gather(*at_work, return_exceptions=True)
        await asyncio.sleep(0.02)  # until what was closed is gone


def answering(octets: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(octets)
        await writer.drain()

    return serve


async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for octet in b"HTTP/1.1 200 OK":
        writer.write(bytes([octet]))
        await writer.drain()
        await asyncio.sleep(PATIENCE / 2)


async def stammers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for part in (b"HT", b"TP/1.0 2", b"00 fine\r\n"):
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.02)


async def alerts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As one that has no TLS so old or so new."""
    await reader.read(1)
    writer.write(bytes([21, 3, 3, 0, 2, 2, 70]))
    await writer.drain()


async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


GOOD = answering(b"HTTP/1.1 200 OK\r\n\r\n")
SLOW = f"no answer in {PATIENCE:g} s"
BUSY = (Verdict.PENDING, "this node was too busy to see whether it answers")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """Nobody's that was asked for, and vouched for by itself alone."""
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


def outcome(standing: Standing) -> tuple[Verdict, str]:
    """What was missed after something was seen takes nothing away."""
    missed = standing.missed if standing.verdict is Verdict.PENDING else ""
    return standing.verdict, standing.error or missed


@dataclass(frozen=True)
class Case:
    check: Check
    serve: Serve
    error: str = ""
    tls: bool = False


CASES = {
    "tcp right": Case(TCP, nothing),
    "tcp resets later": Case(TCP, resets),
    "tcp floods": Case(TCP, floods),
    "http right": Case(HTTP, GOOD),
    "http in parts": Case(HTTP, stammers),
    "http wrong code": Case(HTTP, answering(b"HTTP/1.1 503 Service Unavailable\r\n\r\n"), "it answers 503"),
    "http expected code": Case(replace(HTTP, codes=frozenset({503})), answering(b"HTTP/1.1 503 No\r\n\r\n")),
    "http is no http": Case(HTTP, answering(b"SSH-2.0-OpenSSH_9.2p1\r\n"), "what it answers is no HTTP"),
    "http code of four digits": Case(HTTP, answering(b"HTTP/1.1 2000 OK\r\n"), "what it answers is no HTTP"),
    "http floods": Case(HTTP, floods, "what it answers is no HTTP"),
    "http silent": Case(HTTP, nothing, SLOW),
    "http drips": Case(HTTP, drips, SLOW),
    "http resets": Case(HTTP, resets, "it resets the connection"),
    "http ends": Case(HTTP, answering(b""), "it ended the connection before it answered"),
    "http ends in the middle": Case(HTTP, answering(b"HTTP/1.1"), "its answer ends too soon"),
    "https right": Case(HTTPS, GOOD, tls=True),
    "https wrong code": Case(HTTPS, answering(b"HTTP/1.1 404 Not Found\r\n\r\n"), "it answers 404", tls=True),
    "https is no tls": Case(HTTPS, floods, "TLS: wrong version number"),
    "https silent": Case(HTTPS, nothing, SLOW),
    "https silent after tls": Case(HTTPS, nothing, SLOW, tls=True),
    "https ends": Case(HTTPS, answering(b""), "it ended the connection before it answered", tls=True),
    "hello right, under a wrong name": Case(HELLO, nothing, tls=True),
    "hello to no tls": Case(HELLO, floods, "what it answers is no TLS"),
    "hello to a silent one": Case(HELLO, nothing, SLOW),
    "hello to one that ends": Case(HELLO, resets, "it resets the connection"),
    "hello gets an alert": Case(HELLO, alerts),
}


@contextlib.contextmanager
def full(version: int) -> Iterator[int]:
    """A server that accepts nobody any more: what comes is dropped when its backlog is full."""
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket(family))
        listening.bind((HOSTS[version], 0))
        listening.listen(0)
        for _ in range(2):
            waiting = stack.enter_context(socket.socket(family))
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        time.sleep(0.05)
        yield listening.getsockname()[1]


@contextlib.contextmanager
def bound(version: int, kind: socket.SocketKind) -> Iterator[int]:
    """A port with nobody who listens, but for datagrams that nobody takes."""
    with socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, kind) as held:
        held.bind((HOSTS[version], 0))
        yield held.getsockname()[1]


@contextlib.asynccontextmanager
async def asked_of_all(version: int, certificate: ssl.SSLContext) -> AsyncIterator[dict[str, tuple[Target, str]]]:
    """Each kind of monitor and each kind of server, and what is wrong with it."""
    refuses = "it refuses"
    async with contextlib.AsyncExitStack() as stack:
        found: dict[str, tuple[Target, str]] = {}
        for name, case in CASES.items():
            serve = serving(case.serve, version, certificate if case.tls else None)
            found[name] = target(case.check, await stack.enter_async_context(serve), version), case.error
        closed = stack.enter_context(bound(version, socket.SOCK_STREAM))
        for check in (TCP, HTTP, HTTPS, HELLO, UDP):  # the same number is closed for datagrams too
            found[f"{type_of(check)} closed"] = target(check, closed, version), refuses
        found["udp open"] = target(UDP, stack.enter_context(bound(version, socket.SOCK_DGRAM)), version), ""
        found["accepts nobody any more"] = target(TCP, stack.enter_context(full(version)), version), SLOW
        yield found


@pytest.mark.slow  # on a machine that is busy a prober rightly says of the silent ones that it does not know
async def test_each_kind_of_monitor_says_of_each_kind_of_server_what_is_wrong_with_it(certificate: ssl.SSLContext):
    """All of them at once, by one prober."""

    async with asked_of_all(4, certificate) as four, asked_of_all(6, certificate) as six:
        every = {
            f"{name}, {address}": each
            for found, address in ((four, "IPv4"), (six, "IPv6"))
            for name, each in found.items()
        }
        found = await probe_all({name: asked for name, (asked, _) in every.items()})
    wanted = {name: (Verdict.DOWN, error) if error else (Verdict.UP, "") for name, (_, error) in every.items()}
    outcomes = {name: outcome(standing) for name, standing in found.items()}
    unseen = {name: BUSY for name, each in outcomes.items() if each == BUSY and wanted[name][1] == SLOW}
    assert outcomes == wanted | unseen
    assert {name for name, each in found.items() if each.latency is None} == {
        name for name, (asked, error) in every.items() if error or asked.check is UDP
    }


async def test_what_this_node_cannot_do_says_nothing_of_the_member():
    how = Rhythm(delay=0.2, timeout=0.15, max_retries=1, max_retries_down=1)
    found = await probe(target(TCP, 80, rhythm=how), device="nosuch")
    assert outcome(found) == (Verdict.PENDING, "this node has no device for the network yet")


def pings_are_allowed() -> bool:
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not pings_are_allowed(), reason="net.ipv4.ping_group_range is for nobody here; tests/lab ping")
@pytest.mark.parametrize("version", [4, 6])
async def test_a_ping_is_answered(version: int):
    found = await probe(target(PING, 0, version))
    assert outcome(found) == (Verdict.UP, "")


async def test_a_member_that_dies_is_down_after_as_many_failures_as_the_monitor_says_and_back_after_as_many_answers():
    how = Rhythm(delay=0.1, timeout=0.1, max_retries=3, max_retries_down=2)
    told: list[tuple[float, Verdict]] = []

    async with serving(GOOD) as port:
        asked = target(TCP, port, rhythm=how)
        prober = Prober(device=lambda _: "lo", told=lambda _: told.append(now(prober, asked)))
        prober.change((), [asked])
        running = asyncio.create_task(prober.run())
        await until(lambda: len(told) == 1)
    died = time.monotonic()
    await until(lambda: len(told) == 2)
    async with serving(GOOD, port=port):
        back = time.monotonic()
        await until(lambda: len(told) == 3)
    running.cancel()
    assert [verdict for _, verdict in told] == [Verdict.UP, Verdict.DOWN, Verdict.UP]
    assert 0.1 <= told[1][0] - died < 0.2 + 0.1
    assert 0.2 <= told[2][0] - back < 0.3 + 0.15


def now(prober: Prober, asked: Target) -> tuple[float, Verdict]:
    return time.monotonic(), prober.tracker.standings[asked.endpoint].verdict


async def until(true: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_who_was_not_given_the_processor_holds_it_against_nobody():
    """The loop stands still for longer than the time-out, again and again; the members answer all the time."""
    how = Rhythm(delay=0.2, timeout=0.1, max_retries=1, max_retries_down=1)

    prober = Prober(device=lambda _: "lo", told=lambda _: None)
    ports: list[socket.socket] = []
    for _ in range(20):
        listening = socket.create_server((HOSTS[4], 0))  # the kernel accepts for it
        ports.append(listening)
    prober.change((), [target(TCP, each.getsockname()[1], rhythm=how) for each in ports])
    running = asyncio.create_task(prober.run())
    for _ in range(10):
        await asyncio.sleep(0.01)
        time.sleep(0.15)  # noqa: ASYNC251 - that is what is tested
    running.cancel()
    for each in ports:
        each.close()
    verdicts = {each.verdict for each in prober.tracker.standings.values()}
    assert verdicts == {Verdict.UP}
    assert prober.lost > 1


async def test_the_silence_of_a_member_says_nothing_while_its_node_is_busy():
    how = Rhythm(delay=0.4, timeout=0.3, max_retries=1, max_retries_down=1)

    prober = Prober(device=lambda _: "lo", told=lambda _: None)
    with full(4) as port:
        asked = target(TCP, port, rhythm=how)
        prober.change((), [asked])
        running = asyncio.create_task(prober.run())
        for turn in range(1000):
            if turn >= 12 and asked.endpoint in prober.tracker.standings:
                break
            await asyncio.sleep(0.01)
            time.sleep(0.08)  # noqa: ASYNC251 - that is what is tested
        busy = prober.tracker.standings[asked.endpoint]
        assert outcome(busy) == BUSY
        await until(lambda: prober.tracker.standings[asked.endpoint].verdict is Verdict.DOWN, 120.0)
        running.cancel()


async def test_open_sockets_are_bounded_and_all_are_closed_in_the_end():
    how = Rhythm(delay=0.5, timeout=0.5, max_retries=1, max_retries_down=1)

    before = len(os.listdir("/proc/self/fd"))
    prober = Prober(device=lambda _: "lo", told=lambda _: None, most_at_once=6)
    with socket.create_server((HOSTS[4], 0)) as listening:  # the kernel accepts for it, and nobody answers
        silent = target(HTTP, listening.getsockname()[1], rhythm=how)
        many = [replace(silent, endpoint=silent.endpoint._replace(port_id=f"vm{each}")) for each in range(50)]
        prober.change((), many)
        running = asyncio.create_task(prober.run())
        most = 0
        for _ in range(60):
            await asyncio.sleep(0.01)
            most = max(most, len(prober._flights))
        assert most == 3, "half of them, for one project"
        prober.change([each.endpoint for each in many[1:]], ())
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    await asyncio.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) <= before + 1

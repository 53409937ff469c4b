"""Members on loopback for probes: correct, wrong, slow, silent, resetting, half open, and TLS with a wrong name."""

import asyncio
import contextlib
import select
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.checks import Check, HttpCheck, PlainCheck, ProbeSchedule, Target, Verdict
from fairlead.model.documents.health import PROBE_TRANSPORTS, Endpoint
from fairlead.model.documents.loadbalancer import MonitorType
from fairlead.node.prober import STARVED_REASON, Prober
from fairlead.node.tracker import MemberState
from harness.waiting import eventually, pause_loop, run_ready_tasks, wait_until

PROBE_TIMEOUT = 1.0
"""seconds in which a member has to answer"""
RHYTHM = ProbeSchedule(delay=1.25, timeout=PROBE_TIMEOUT, max_retries=1, max_retries_down=1)
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


def target(check: Check, port: int, version: int = 4, rhythm: ProbeSchedule = RHYTHM) -> Target:
    address = parse_address(HOSTS[version])
    endpoint = Endpoint("vm1", address, port, PROBE_TRANSPORTS[type_of(check)], "net1", "monitor")
    return Target(endpoint=endpoint, check=check, schedule=rhythm)


async def probe(asked: Target, device: str = "lo") -> MemberState:
    """Result of the first probe of the target."""
    return (await probe_all({"": asked}, device))[""]


async def probe_all(asked: dict[Name, Target], device: str = "lo") -> dict[Name, MemberState]:
    async with probing(*asked.values(), device=device) as prober:
        standings = prober.tracker.states
        await eventually(standings.keys, is_enough={each.endpoint for each in asked.values()}.issubset)
        return {name: standings[each.endpoint] for name, each in asked.items()}


@contextlib.asynccontextmanager
async def probing(*targets: Target, device: str = "lo", **own: Any) -> AsyncIterator[Prober]:
    """Run a prober for these targets. `own` are attributes of the prober."""
    prober = Prober(device=lambda _: device, **{"on_change": lambda _: None, **own})
    prober.change((), targets)
    running = asyncio.create_task(prober.run())
    try:
        yield prober
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
        await run_ready_tasks()  # the last transports close


def answering(octets: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(octets)
        await writer.drain()

    return serve


async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def reset_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def send_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for octet in b"HTTP/1.1 200 OK":
        writer.write(bytes([octet]))
        await writer.drain()
        await pause_loop(PROBE_TIMEOUT / 2)


async def send_fragments(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for part in (b"HT", b"TP/1.0 2", b"00 fine\r\n"):
        writer.write(part)
        await writer.drain()
        await pause_loop(0.02)


async def send_tls_alert(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a TLS alert, as a server without a common version does (protocol_version, RFC 8446, section 6)."""
    await reader.read(1)
    writer.write(bytes([21, 3, 3, 0, 2, 2, 70]))
    await writer.drain()


async def send_endlessly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


HTTP_OK = answering(b"HTTP/1.1 200 OK\r\n\r\n")
SLOW = f"no answer in {PROBE_TIMEOUT:g} s"
STARVED_OUTCOME = (Verdict.PENDING, STARVED_REASON)


def outcome(standing: MemberState) -> tuple[Verdict, str]:
    """Verdict and error. The reason of a missed probe is included only while the verdict is PENDING."""
    missed = standing.void_reason if standing.verdict is Verdict.PENDING else ""
    return standing.verdict, standing.error or missed


@dataclass(frozen=True)
class ProbeCase:
    check: Check
    serve: Serve
    error: str = ""
    tls: bool = False


CASES = {
    "tcp right": ProbeCase(TCP, keep_silent),
    "tcp resets later": ProbeCase(TCP, reset_connection),
    "tcp floods": ProbeCase(TCP, send_endlessly),
    "http right": ProbeCase(HTTP, HTTP_OK),
    "http in parts": ProbeCase(HTTP, send_fragments),
    "http wrong code": ProbeCase(
        HTTP, answering(b"HTTP/1.1 503 Service Unavailable\r\n\r\n"), "unexpected HTTP status 503"
    ),
    "http expected code": ProbeCase(replace(HTTP, codes=frozenset({503})), answering(b"HTTP/1.1 503 No\r\n\r\n")),
    "http is no http": ProbeCase(HTTP, answering(b"SSH-2.0-OpenSSH_9.2p1\r\n"), "response is not HTTP"),
    "http code of four digits": ProbeCase(HTTP, answering(b"HTTP/1.1 2000 OK\r\n"), "response is not HTTP"),
    "http floods": ProbeCase(HTTP, send_endlessly, "response is not HTTP"),
    "http silent": ProbeCase(HTTP, keep_silent, SLOW),
    "http drips": ProbeCase(HTTP, send_slowly, SLOW),
    "http resets": ProbeCase(HTTP, reset_connection, "connection reset by peer"),
    "http ends": ProbeCase(HTTP, answering(b""), "connection closed before a response"),
    "http ends in the middle": ProbeCase(HTTP, answering(b"HTTP/1.1"), "incomplete response"),
    "https right": ProbeCase(HTTPS, HTTP_OK, tls=True),
    "https wrong code": ProbeCase(
        HTTPS, answering(b"HTTP/1.1 404 Not Found\r\n\r\n"), "unexpected HTTP status 404", tls=True
    ),
    "https is no tls": ProbeCase(HTTPS, send_endlessly, "TLS: wrong version number"),
    "https silent": ProbeCase(HTTPS, keep_silent, SLOW),
    "https silent after tls": ProbeCase(HTTPS, keep_silent, SLOW, tls=True),
    "https ends": ProbeCase(HTTPS, answering(b""), "connection closed before a response", tls=True),
    "hello right, under a wrong name": ProbeCase(HELLO, keep_silent, tls=True),
    "hello to no tls": ProbeCase(HELLO, send_endlessly, "response is not TLS"),
    "hello to a silent one": ProbeCase(HELLO, keep_silent, SLOW),
    "hello to one that ends": ProbeCase(HELLO, reset_connection, "connection reset by peer"),
    "hello gets an alert": ProbeCase(HELLO, send_tls_alert),
}


@contextlib.contextmanager
def full_backlog(version: int) -> Iterator[int]:
    """A server with a full backlog: the kernel drops further connections."""
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket(family))
        listening.bind((HOSTS[version], 0))
        listening.listen(0)
        waiting = stack.enter_context(socket.socket(family))
        waiting.setblocking(False)
        waiting.connect_ex(listening.getsockname())
        wait_until(lambda: select.select([], [waiting], [], 0)[1], "the only place in the backlog to be taken")
        yield listening.getsockname()[1]


@contextlib.contextmanager
def unanswered_port(version: int, kind: socket.SocketKind) -> Iterator[int]:
    """A port that refuses connections, or accepts datagrams without an answer."""
    with socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, kind) as held:
        held.bind((HOSTS[version], 0))
        yield held.getsockname()[1]

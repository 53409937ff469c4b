"""Test client in a workload: makes a bounded number of requests, and records the name of the member that answered each.

Every exchange has a source port of its own, given or not, so a comparison of two runs over the same ports shows the
keys that moved. TCP connections end with a reset (SO_LINGER 0), so the port is reusable immediately and no TIME_WAIT
state distorts the measurement.
"""

import asyncio
import errno
import socket
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from time import monotonic
from typing import Final, assert_never

RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # struct linger, socket(7)
CHUNK = 1 << 16


class Protocol(StrEnum):
    TCP = "tcp"
    UDP = "udp"


class Failure(StrEnum):
    """Kinds of errors; an HTTP response other than 200 has the kind `http-<status>`."""

    REFUSED = "refused"
    RESET = "reset"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    PORT_IN_USE = "port-in-use"
    INVALID_REPLY = "garbled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Traffic to send. With a size, this number of bytes is sent and must be echoed; otherwise TCP uses HTTP
    requests."""

    to: str
    port: int
    protocol: Protocol = Protocol.TCP
    count: int = 1
    timeout: float = 2.0
    concurrency: int = 1
    source_port_from: int | None = None
    size: int = 0

    def seconds(self) -> float:
        """Upper bound of the duration in seconds."""
        return self.timeout * -(-self.count // self.concurrency)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficResult:
    """`answers`: exchanges by answering name; `errors`: by kind; `keys`: answering name by source port."""

    answers: Mapping[str, int]
    errors: Mapping[str, int]
    seconds: float
    keys: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeReply:
    source_port: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeFailure:
    source_port: int
    kind: str


Outcome = ExchangeReply | ExchangeFailure


class InvalidReply(Exception):
    """The reply is not from a workload's server; the text is the kind of error."""


def send(traffic: Traffic) -> TrafficResult:
    """Run all exchanges, with the requested concurrency."""
    started = monotonic()
    outcomes = asyncio.run(_send_all(traffic))
    answered = [outcome for outcome in outcomes if isinstance(outcome, ExchangeReply)]
    failed = [outcome for outcome in outcomes if isinstance(outcome, ExchangeFailure)]
    return TrafficResult(
        answers=dict(sorted(Counter(outcome.name for outcome in answered).items())),
        errors=dict(sorted(Counter(outcome.kind for outcome in failed).items())),
        seconds=round(monotonic() - started, 3),
        keys={outcome.source_port: outcome.name for outcome in answered},
    )


async def _send_all(traffic: Traffic) -> list[Outcome]:
    first = traffic.source_port_from
    ports = iter([0] * traffic.count if first is None else range(first, first + traffic.count))
    outcomes: list[Outcome] = []
    await asyncio.gather(*(_send_each(traffic, ports, outcomes) for _ in range(traffic.concurrency)))
    return outcomes


async def _send_each(traffic: Traffic, ports: Iterator[int], outcomes: list[Outcome]) -> None:
    for port in ports:
        outcomes.append(await _exchange(traffic, port))  # noqa: PERF401 the list is shared


async def _exchange(traffic: Traffic, source_port: int) -> Outcome:
    try:
        with open_socket(traffic, source_port) as client:
            async with asyncio.timeout(traffic.timeout):
                await asyncio.get_running_loop().sock_connect(client, (traffic.to, traffic.port))
                bound = client.getsockname()[1]
                return ExchangeReply(source_port=bound, name=await _request_name(traffic, client, bound))
    except (OSError, InvalidReply) as error:
        return ExchangeFailure(source_port=source_port, kind=classify(error))


def open_socket(traffic: Traffic, source_port: int) -> socket.socket:
    """Open a client socket. Source port 0 lets the kernel choose one."""
    family = socket.AF_INET if ip_address(traffic.to).version == 4 else socket.AF_INET6
    kind = socket.SOCK_STREAM if traffic.protocol is Protocol.TCP else socket.SOCK_DGRAM
    client = socket.socket(family, kind)
    client.setblocking(False)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if traffic.protocol is Protocol.TCP:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    if source_port:
        try:
            client.bind(("", source_port))
        except OSError:
            client.close()
            raise
    return client


def classify(error: OSError | InvalidReply) -> str:
    """Return the kind of a network error; raises any other error again."""
    match error:
        case InvalidReply():
            return str(error)
        case TimeoutError():
            return Failure.TIMEOUT
        case ConnectionRefusedError():
            return Failure.REFUSED
        case ConnectionError():
            return Failure.RESET
    return _classify_number(error)


def _classify_number(error: OSError) -> str:
    match error.errno:
        case errno.EHOSTUNREACH | errno.ENETUNREACH | errno.EACCES | errno.EPERM:
            return Failure.UNREACHABLE
        case errno.EADDRINUSE | errno.EADDRNOTAVAIL:
            return Failure.PORT_IN_USE
        case _:
            raise error


async def _request_name(traffic: Traffic, client: socket.socket, source_port: int) -> str:
    match traffic.protocol:
        case Protocol.TCP:
            return await (exchange_line(b"x" * traffic.size, client) if traffic.size else _request_http(client))
        case Protocol.UDP:
            return await _exchange_datagram(traffic.size, client, source_port)
        case _:
            assert_never(traffic.protocol)


async def _request_http(client: socket.socket) -> str:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, b"GET / HTTP/1.0\r\n\r\n")
    answer = bytearray()
    while chunk := await loop.sock_recv(client, CHUNK):
        answer += chunk
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    match head.split(maxsplit=2):
        case [_, b"200", *_]:
            return body.decode().partition("\n")[0]
        case [_, status, *_] if status.isdigit():
            raise InvalidReply(f"http-{status.decode()}")
        case _:
            raise InvalidReply(Failure.INVALID_REPLY)


async def exchange_line(payload: bytes, client: socket.socket) -> str:
    """Run one exchange on an open TCP connection and return the name of the peer."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, payload + b"\n")
    answer = bytearray()
    while not answer.endswith(b"\n"):
        chunk = await loop.sock_recv(client, CHUNK)
        if not chunk:
            raise InvalidReply(Failure.INVALID_REPLY)
        answer += chunk
    return _strip_echo(payload, bytes(answer[:-1]))


async def _exchange_datagram(size: int, client: socket.socket, source_port: int) -> str:
    loop = asyncio.get_running_loop()
    payload = b"%d" % source_port + b"x" * size
    await loop.sock_sendall(client, payload)
    return _strip_echo(payload, await loop.sock_recv(client, CHUNK))


def _strip_echo(payload: bytes, answer: bytes) -> str:
    name, _, echoed = answer.partition(b" ")
    if echoed != payload:
        raise InvalidReply(Failure.INVALID_REPLY)
    return name.decode()

"""Limits on the input of unauthenticated clients: the real server with a small application."""

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.http import acceptor, protocol
from fairlead.api.http.acceptor import connection_key
from fairlead.api.http.protocol import MAX_HEADER_FIELDS, MAX_PIPELINED
from fairlead.runtime.logging import RateLimit, TokenBucket
from harness.front_ends.wire import GET, POST, own_tls, serve_connections
from harness.virtual_clock import time_of_loop
from harness.waiting import eventually

LARGE = 2**20
KEEP_ALIVE = 5  # seconds until uvicorn itself would close the connection


async def ask(connect: Any, request: bytes) -> bytes:
    """Send a request and return all bytes up to the server's close."""
    reader, writer = await connect()
    with contextlib.suppress(OSError):
        writer.write(request)
        await writer.drain()
    with contextlib.suppress(OSError):
        return bytes(await reader.read(-1))
    return b""


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /" + b"a" * LARGE,
        b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * LARGE,
        POST + b"transfer-encoding: chunked\r\n\r\n1;" + b"a=b;" * (LARGE // 4),
        POST + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"x: y\r\n" * (LARGE // 6),
        POST + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * (LARGE // 6),
    ],
    ids=["path", "field", "extension", "trailers", "sizes of chunks"],
)
async def test_request_bytes_outside_the_body_are_limited(request_bytes: bytes):
    async with serve_connections() as (_, connect):
        assert not (await ask(connect, request_bytes)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("ends", ["server", "client"])
async def test_long_poll_detects_server_shutdown_and_client_disconnect(ends: str):
    async with serve_connections() as (place, connect):
        reader, writer = await connect()
        writer.write(GET.replace(b"/ ", b"/news "))
        await eventually(lambda: any(each.protocol.cycle for own in place.clients.by_address.values() for each in own))
        (protocol,) = (each.protocol for own in place.clients.by_address.values() for each in own)
        assert not protocol.ending.is_set()
        if ends == "server":
            protocol.shutdown()
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
        else:
            writer.close()
        await eventually(protocol.ending.is_set)


async def test_number_of_header_fields_is_limited():
    async with serve_connections() as (_, connect):
        fields = b"".join(b"x%d: y\r\n" % number for number in range(MAX_HEADER_FIELDS - 1))
        last = b"connection: close\r\n\r\n"
        assert (await ask(connect, b"GET / HTTP/1.1\r\n" + fields + last)).startswith(b"HTTP/1.1 200")
        assert (await ask(connect, b"GET / HTTP/1.1\r\n" + fields + b"y: y\r\n" + last)).startswith(b"HTTP/1.1 400")


async def test_large_body_is_read_and_the_next_request_is_parsed():
    """Only bytes outside bodies count; trailers after a body are dropped, and the next request is parsed as new."""

    async with serve_connections() as (_, connect):
        chunks = b"".join(b"%x\r\n%s\r\n" % (2**16, b"a" * 2**16) for _ in range(64))
        chunked = POST + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\nx: y\r\n\r\n"
        plain = POST + b"content-length: %d\r\n\r\n" % (2 * LARGE) + b"a" * 2 * LARGE
        reader, writer = await connect()
        for request, size in ((chunked, 4 * LARGE), (plain, 2 * LARGE), (chunked, 4 * LARGE)):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(7) == str(size).encode()
        writer.close()


async def test_number_of_pipelined_requests_is_limited():
    async with serve_connections() as (_, connect):
        reader, writer = await connect()
        writer.write(GET * MAX_PIPELINED)
        for _ in range(MAX_PIPELINED):
            assert (await reader.readuntil(b"\r\n\r\n0")).startswith(b"HTTP/1.1 200")
        writer.close()
        assert (await ask(connect, GET * 1000)).count(b"HTTP/1.1 200") <= MAX_PIPELINED


@pytest.mark.virtual_clock
async def test_early_response_is_delivered_although_the_body_is_incomplete(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(protocol, "DISCARD_SECONDS", 0.1)
    monkeypatch.setattr(acceptor, "SWEEP", 0.01)

    async with serve_connections() as (_, connect):
        reader, writer = await connect()
        writer.write(b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n" + b"a" * 1000)
        assert (await reader.readuntil(b"\r\n\r\n0")).startswith(b"HTTP/1.1 200")
        writer.write(b"a" * 1000)
        assert await reader.read(-1) == b""
        assert 0.1 <= time_of_loop() < KEEP_ALIVE


@pytest.mark.virtual_clock
@pytest.mark.parametrize(
    ("request_bytes", "patience"),
    [
        (b"", "HEAD_TIMEOUT"),
        (b"GET / HT", "HEAD_TIMEOUT"),
        (POST + b"content-length: 9\r\n\r\na", "BODY_TIMEOUT"),
        (GET, "HEAD_TIMEOUT"),
        (GET + b"\r\n\r\n", "HEAD_TIMEOUT"),
        (GET + b"GE", "HEAD_TIMEOUT"),
    ],
    ids=["nothing", "a part of a head", "a part of a body", "an answered request", "empty lines", "half a second one"],
)
async def test_slow_client_is_disconnected_after_the_timeout(
    monkeypatch: pytest.MonkeyPatch, request_bytes: bytes, patience: str
):
    monkeypatch.setattr(protocol, patience, 0.2)
    monkeypatch.setattr(acceptor, "SWEEP", 0.01)

    async with serve_connections() as (place, connect):
        await ask(connect, request_bytes)
        assert 0.2 <= time_of_loop() < KEEP_ALIVE
        await eventually(lambda: place.clients.count == 0)


@pytest.mark.virtual_clock
async def test_trickled_bytes_do_not_extend_the_header_timeout(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT", 0.3)
    monkeypatch.setattr(acceptor, "SWEEP", 0.01)

    async with serve_connections() as (_, connect):
        reader, writer = await connect()
        for _number in range(100):
            writer.write(b"\r\n")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.05)
            if reader.at_eof():
                break
        assert reader.at_eof()
        assert time_of_loop() >= 0.3


async def test_longest_idle_connection_is_closed_for_a_new_connection():
    """The connection idle for longest is closed, among one address's connections and among all."""

    async with serve_connections() as (place, connect):
        silent = [await connect() for _ in range(20)]
        await eventually(lambda: place.clients.count == 20)
        assert b"200" in await ask(connect, GET.replace(b"host: x", b"connection: close"))
        assert await silent[0][0].read(-1) == b""
        assert not silent[1][0].at_eof()
        for number in range(2, 5):
            silent += [await connect(f"127.0.0.{number}") for _ in range(20)]
        await eventually(lambda: place.clients.dropped > 1)
        assert place.clients.count <= 50
        assert b"200" in await ask(connect, GET.replace(b"host: x", b"connection: close"))


async def test_connection_with_unread_response_is_closed_for_a_new_connection():
    async with serve_connections(most_of_one=2) as (place, connect):
        for _ in range(2):
            await connect()
        await eventually(lambda: all(each.protocol and each.protocol.transport for each in place.clients.all()))
        for client in place.clients.all():
            assert client.protocol is not None
            client.protocol.waits_since = None  # a request is in progress
            client.protocol.pause_writing()
        assert b"200" in await ask(connect, GET.replace(b"host: x", b"connection: close"))
        assert (place.clients.dropped, place.clients.rejected) == (1, 0)


async def test_invalid_requests_log_a_bounded_number_of_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Invalid requests log a bounded number of lines per minute; the clock stands still, with an allowance of the
    test's own."""
    caplog.set_level(logging.WARNING)
    limit = RateLimit(protocol.LINES_A_MINUTE)
    limit._bucket = TokenBucket(protocol.LINES_A_MINUTE, lambda: 0.0)
    monkeypatch.setattr(protocol.LOG, "filters", [limit])

    async with serve_connections() as (_, connect):
        for _ in range(protocol.LINES_A_MINUTE + 100):
            await ask(connect, b"x\r\n\r\n")
    assert len(caplog.records) == protocol.LINES_A_MINUTE


async def test_busy_connections_are_not_closed_for_a_new_connection():
    """A new connection is rejected if no idle one can be closed."""

    async with serve_connections(most_of_one=2) as (place, connect):
        busy = [await connect() for _ in range(2)]
        for _, writer in busy:
            writer.write(POST + b"content-length: 1\r\n\r\n")
        clients = place.clients.all
        await eventually(lambda: len([each for each in clients() if each.protocol and each.protocol.cycle]) == 2)
        for client in clients():
            assert client.protocol is not None
            client.protocol.waits_since = None
        assert await ask(connect, GET) == b""
        assert place.clients.rejected == 1


async def test_unix_socket_clients_are_identified_by_uid(tmp_path: Path):
    async with serve_connections(path=tmp_path / "s") as (place, connect):
        assert b"200" in await ask(connect, GET.replace(b"host: x", b"connection: close"))
        _, writer = await connect()
        await eventually(lambda: place.clients.count == 1)
        assert next(iter(place.clients.by_address)).startswith("uid ")
        (client,) = place.clients.all()
        await eventually(lambda: client.protocol is not None and client.protocol.client is not None)
        assert client.protocol is not None
        assert client.protocol.client == (f"uid {os.getuid()}", 0)
        writer.close()
        await eventually(lambda: place.clients.count == 0)


async def test_unfinished_tls_handshakes_count_against_connection_limits(tmp_path: Path):
    """Connections without a finished handshake count against the limits, although uvicorn does not know of them yet."""
    context, client = own_tls(tmp_path)

    async with serve_connections(tls=context) as (place, connect):
        silent = [await connect() for _ in range(20)]
        await eventually(lambda: place.clients.count == 20)
        reader, writer = await connect()
        await writer.start_tls(client)
        writer.write(GET.replace(b"host: x", b"connection: close"))
        assert (await reader.read(-1)).startswith(b"HTTP/1.1 200")
        assert await silent[0][0].read(-1) == b""
        assert place.clients.dropped == 1


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_client_address_is_normalized_for_connection_limits(address: str, counted: str):
    assert connection_key(address) == counted


@pytest.mark.parametrize("target", [b"/\xff", b"http://["])
async def test_invalid_request_target_returns_400_without_an_internal_error(target: bytes):
    mistakes: list[Any] = []

    async with serve_connections() as (_, connect):
        asyncio.get_running_loop().set_exception_handler(lambda _, context: mistakes.append(context))
        reader, writer = await connect()
        writer.write(b"GET " + target + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        await reader.read()
    assert not mistakes

"""Limits on the input of unauthenticated clients: the real server with a small application."""

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.http import acceptor, protocol
from fairlead.api.http.acceptor import counted_as
from fairlead.api.http.protocol import MOST_FIELDS, MOST_PIPELINED
from fairlead.runtime.logging import Allowance, RateLimit
from harness.front_ends.wire import GET, POST, entered, own_tls
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
async def test_what_is_not_body_is_bounded(request_bytes: bytes):
    async with entered() as (_, connect):
        assert not (await ask(connect, request_bytes)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("ends", ["server", "client"])
async def test_who_waits_for_news_hears_of_the_end(ends: str):
    async with entered() as (place, connect):
        reader, writer = await connect()
        writer.write(GET.replace(b"/ ", b"/news "))
        await eventually(lambda: any(each.protocol.cycle for own in place.clients.by_address.values() for each in own))
        (protocol,) = (each.protocol for own in place.clients.by_address.values() for each in own)
        assert not protocol.over.is_set()
        if ends == "server":
            protocol.shutdown()
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
        else:
            writer.close()
        await eventually(protocol.over.is_set)


async def test_fields_are_counted():
    async with entered() as (_, connect):
        fields = b"".join(b"x%d: y\r\n" % number for number in range(MOST_FIELDS - 1))
        last = b"connection: close\r\n\r\n"
        assert (await ask(connect, b"GET / HTTP/1.1\r\n" + fields + last)).startswith(b"HTTP/1.1 200")
        assert (await ask(connect, b"GET / HTTP/1.1\r\n" + fields + b"y: y\r\n" + last)).startswith(b"HTTP/1.1 400")


async def test_a_body_of_any_size_and_what_is_behind_it_are_read():
    """Only bytes outside bodies count; trailers after a body are dropped, and the next request is parsed as new."""

    async with entered() as (_, connect):
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


async def test_requests_that_do_not_wait_for_answers_are_bounded():
    async with entered() as (_, connect):
        reader, writer = await connect()
        writer.write(GET * MOST_PIPELINED)
        for _ in range(MOST_PIPELINED):
            assert (await reader.readuntil(b"\r\n\r\n0")).startswith(b"HTTP/1.1 200")
        writer.close()
        assert (await ask(connect, GET * 1000)).count(b"HTTP/1.1 200") <= MOST_PIPELINED


@pytest.mark.virtual_clock
async def test_an_answer_that_comes_before_the_body_arrives_although_the_rest_is_not_wanted(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(protocol, "LINGER", 0.1)
    monkeypatch.setattr(acceptor, "SWEEP", 0.01)

    async with entered() as (_, connect):
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
        (b"", "HEAD_PATIENCE"),
        (b"GET / HT", "HEAD_PATIENCE"),
        (POST + b"content-length: 9\r\n\r\na", "BODY_PATIENCE"),
        (GET, "HEAD_PATIENCE"),
        (GET + b"\r\n\r\n", "HEAD_PATIENCE"),
        (GET + b"GE", "HEAD_PATIENCE"),
    ],
    ids=["nothing", "a part of a head", "a part of a body", "an answered request", "empty lines", "half a second one"],
)
async def test_who_keeps_the_server_waiting_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch, request_bytes: bytes, patience: str
):
    monkeypatch.setattr(protocol, patience, 0.2)
    monkeypatch.setattr(acceptor, "SWEEP", 0.01)

    async with entered() as (place, connect):
        await ask(connect, request_bytes)
        assert 0.2 <= time_of_loop() < KEEP_ALIVE
        await eventually(lambda: place.clients.count == 0)


@pytest.mark.virtual_clock
async def test_bytes_one_by_one_gain_no_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(protocol, "HEAD_PATIENCE", 0.3)
    monkeypatch.setattr(acceptor, "SWEEP", 0.01)

    async with entered() as (_, connect):
        reader, writer = await connect()
        for _number in range(100):
            writer.write(b"\r\n")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.05)
            if reader.at_eof():
                break
        assert reader.at_eof()
        assert time_of_loop() >= 0.3


async def test_the_silent_make_room_for_who_speaks():
    """The connection idle for longest is closed, among one address's connections and among all."""

    async with entered() as (place, connect):
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


async def test_who_takes_no_answer_makes_room_too():
    async with entered(most_of_one=2) as (place, connect):
        for _ in range(2):
            await connect()
        await eventually(lambda: all(each.protocol and each.protocol.transport for each in place.clients.all()))
        for client in place.clients.all():
            assert client.protocol is not None
            client.protocol.waits_since = None  # a request is in progress
            client.protocol.pause_writing()
        assert b"200" in await ask(connect, GET.replace(b"host: x", b"connection: close"))
        assert (place.clients.dropped, place.clients.refused) == (1, 0)


async def test_bytes_that_are_no_request_fill_no_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    """Invalid requests log a bounded number of lines per minute; the clock stands still, with an allowance of the
    test's own."""
    caplog.set_level(logging.WARNING)
    limit = RateLimit(protocol.LINES_A_MINUTE)
    limit._allowance = Allowance(protocol.LINES_A_MINUTE, lambda: 0.0)
    monkeypatch.setattr(protocol.LOG, "filters", [limit])

    async with entered() as (_, connect):
        for _ in range(protocol.LINES_A_MINUTE + 100):
            await ask(connect, b"x\r\n\r\n")
    assert len(caplog.records) == protocol.LINES_A_MINUTE


async def test_who_is_served_is_not_shown_out():
    """A new connection is rejected if no idle one can be closed."""

    async with entered(most_of_one=2) as (place, connect):
        busy = [await connect() for _ in range(2)]
        for _, writer in busy:
            writer.write(POST + b"content-length: 1\r\n\r\n")
        clients = place.clients.all
        await eventually(lambda: len([each for each in clients() if each.protocol and each.protocol.cycle]) == 2)
        for client in clients():
            assert client.protocol is not None
            client.protocol.waits_since = None
        assert await ask(connect, GET) == b""
        assert place.clients.refused == 1


async def test_on_a_unix_socket_users_are_told_apart(tmp_path: Path):
    async with entered(path=tmp_path / "s") as (place, connect):
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


async def test_hands_that_are_never_shaken_count_too(tmp_path: Path):
    """Connections without a finished handshake count against the limits, although uvicorn does not know of them yet."""
    context, client = own_tls(tmp_path)

    async with entered(tls=context) as (place, connect):
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
def test_an_address_is_counted_as(address: str, counted: str):
    assert counted_as(address) == counted


@pytest.mark.parametrize("target", [b"/\xff", b"http://["])
async def test_a_target_that_is_none_is_a_bad_request_and_no_mistake_of_ours(target: bytes):
    mistakes: list[Any] = []

    async with entered() as (_, connect):
        asyncio.get_running_loop().set_exception_handler(lambda _, context: mistakes.append(context))
        reader, writer = await connect()
        writer.write(b"GET " + target + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        await reader.read()
    assert not mistakes

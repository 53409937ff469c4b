"""What strangers may send, and for how long: the real server's way in, with a small application behind it."""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from fairlead.api import acceptor, wire
from fairlead.api.acceptor import Acceptor, ClientConnections, counted_as
from fairlead.api.wire import MOST_FIELDS, MOST_PIPELINED, BoundedHttp

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\n"
LARGE = 2**20


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers how much it was sent; `/early` before it was, and `/news` when nobody waits any longer."""
    if scope["path"] == "/news":
        await scope["extensions"]["fairlead.over"]["event"].wait()
    size, more = 0, scope["path"] != "/early"
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        if message["type"] == "http.disconnect":
            return
    body = str(size).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def entered(
    most: int = 50, most_of_one: int = 20, tls: ssl.SSLContext | None = None, path: Path | None = None
) -> AsyncIterator[tuple[Acceptor, Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]]]:
    listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
    listener.bind(str(path) if path else ("127.0.0.1", 0))
    settings = uvicorn.Config(application, lifespan="off", log_config=None, proxy_headers=False, ws="none")
    server = uvicorn.Server(settings)
    settings.load()
    place = Acceptor(
        listener,
        lambda: BoundedHttp(settings, server.server_state, {}),
        ClientConnections(most=most, most_of_one=most_of_one),
        lambda: tls,
    )
    place.start()

    async def connect(source: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if path:
            made = await asyncio.open_unix_connection(path)
        else:
            port = listener.getsockname()[1]
            made = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        opened.append(made[1])
        return made

    opened: list[asyncio.StreamWriter] = []
    yield place, connect
    for writer in opened:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    place.close()
    listener.close()
    await place.wait_closed()
    await asyncio.sleep(0)


def play(story: Callable[[Acceptor, Any], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with entered(**options) as (place, connect), asyncio.timeout(20):
            await story(place, connect)

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is awaited happens elsewhere
        await asyncio.sleep(0.01)


async def ask(connect: Any, request: bytes) -> bytes:
    """All that comes back until the server hangs up."""
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
def test_what_is_not_body_is_bounded(request_bytes: bytes):
    async def story(_: Acceptor, connect: Any) -> None:
        assert not (await ask(connect, request_bytes)).startswith(b"HTTP/1.1 200")

    play(story)


@pytest.mark.parametrize("ends", ["server", "client"])
def test_who_waits_for_news_hears_of_the_end(ends: str):
    async def story(place: Acceptor, connect: Any) -> None:
        reader, writer = await connect()
        writer.write(GET.replace(b"/ ", b"/news "))
        await until(lambda: any(each.protocol.cycle for own in place.clients.by_address.values() for each in own))
        (protocol,) = (each.protocol for own in place.clients.by_address.values() for each in own)
        assert not protocol.over.is_set()
        if ends == "server":
            protocol.shutdown()
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
        else:
            writer.close()
        await until(protocol.over.is_set)

    play(story)


def test_fields_are_counted():
    async def story(_: Acceptor, connect: Any) -> None:
        fields = b"".join(b"x%d: y\r\n" % number for number in range(MOST_FIELDS - 1))
        last = b"connection: close\r\n\r\n"
        assert (await ask(connect, b"GET / HTTP/1.1\r\n" + fields + last)).startswith(b"HTTP/1.1 200")
        assert (await ask(connect, b"GET / HTTP/1.1\r\n" + fields + b"y: y\r\n" + last)).startswith(b"HTTP/1.1 400")

    play(story)


def test_a_body_of_any_size_and_what_is_behind_it_are_read():
    """Only what is not body counts; fields behind it are dropped, and the next request is a new one."""

    async def story(_: Acceptor, connect: Any) -> None:
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

    play(story)


def test_requests_that_do_not_wait_for_answers_are_bounded():
    async def story(_: Acceptor, connect: Any) -> None:
        reader, writer = await connect()
        writer.write(GET * MOST_PIPELINED)
        for _ in range(MOST_PIPELINED):
            assert (await reader.readuntil(b"\r\n\r\n0")).startswith(b"HTTP/1.1 200")
        writer.close()
        assert (await ask(connect, GET * 1000)).count(b"HTTP/1.1 200") <= MOST_PIPELINED

    play(story)


def test_an_answer_that_comes_before_the_body_arrives_although_the_rest_is_not_wanted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wire, "LINGER", 0.1)
    monkeypatch.setattr(acceptor, "SWEEP", 0.01)

    async def story(_: Acceptor, connect: Any) -> None:
        reader, writer = await connect()
        writer.write(b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n" + b"a" * 1000)
        assert (await reader.readuntil(b"\r\n\r\n0")).startswith(b"HTTP/1.1 200")
        writer.write(b"a" * 1000)
        assert await reader.read(-1) == b""

    play(story)


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
def test_who_keeps_the_server_waiting_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch, request_bytes: bytes, patience: str
):
    monkeypatch.setattr(wire, patience, 0.2)
    monkeypatch.setattr(acceptor, "SWEEP", 0.01)

    async def story(place: Acceptor, connect: Any) -> None:
        await asyncio.wait_for(ask(connect, request_bytes), 3)
        await until(lambda: place.clients.count == 0)

    play(story)


def test_bytes_one_by_one_gain_no_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wire, "HEAD_PATIENCE", 0.3)
    monkeypatch.setattr(acceptor, "SWEEP", 0.01)

    async def story(_: Acceptor, connect: Any) -> None:
        reader, writer = await connect()
        async with asyncio.timeout(3):
            while not reader.at_eof():
                writer.write(b"\r\n")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 0.05)

    play(story)


def test_the_silent_make_room_for_who_speaks():
    """Of one address, and of all: who has been silent longest goes."""

    async def story(place: Acceptor, connect: Any) -> None:
        silent = [await connect() for _ in range(20)]
        await until(lambda: place.clients.count == 20)
        assert b"200" in await asyncio.wait_for(ask(connect, GET.replace(b"host: x", b"connection: close")), 3)
        assert await silent[0][0].read(-1) == b""
        assert not silent[1][0].at_eof()
        for number in range(2, 5):
            silent += [await connect(f"127.0.0.{number}") for _ in range(20)]
        await until(lambda: place.clients.dropped > 1)
        assert place.clients.count <= 50
        assert b"200" in await asyncio.wait_for(ask(connect, GET.replace(b"host: x", b"connection: close")), 3)

    play(story)


def test_who_takes_no_answer_makes_room_too():
    async def story(place: Acceptor, connect: Any) -> None:
        for _ in range(2):
            await connect()
        await until(lambda: all(each.protocol and each.protocol.transport for each in place.clients.all()))
        for client in place.clients.all():
            assert client.protocol is not None
            client.protocol.waits_since = None  # it is being served
            client.protocol.pause_writing()
        assert b"200" in await asyncio.wait_for(ask(connect, GET.replace(b"host: x", b"connection: close")), 3)
        assert (place.clients.dropped, place.clients.refused) == (1, 0)

    play(story, most_of_one=2)


def test_bytes_that_are_no_request_fill_no_log(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)

    async def story(_: Acceptor, connect: Any) -> None:
        for _ in range(wire.LINES_A_MINUTE + 100):
            await ask(connect, b"x\r\n\r\n")

    play(story)
    assert 0 < len(caplog.records) <= wire.LINES_A_MINUTE + 5


def test_who_is_served_is_not_shown_out():
    """With nobody silent, whoever comes is turned away."""

    async def story(place: Acceptor, connect: Any) -> None:
        busy = [await connect() for _ in range(2)]
        for _, writer in busy:
            writer.write(POST + b"content-length: 1\r\n\r\n")
        clients = place.clients.all
        await until(lambda: len([each for each in clients() if each.protocol and each.protocol.cycle]) == 2)
        for client in clients():
            assert client.protocol is not None
            client.protocol.waits_since = None
        assert await ask(connect, GET) == b""
        assert place.clients.refused == 1

    play(story, most_of_one=2)


def test_on_a_unix_socket_users_are_told_apart(tmp_path: Path):
    async def story(place: Acceptor, connect: Any) -> None:
        assert b"200" in await ask(connect, GET.replace(b"host: x", b"connection: close"))
        _, writer = await connect()
        await until(lambda: place.clients.count == 1)
        assert next(iter(place.clients.by_address)).startswith("uid ")
        (client,) = place.clients.all()
        await until(lambda: client.protocol is not None and client.protocol.client is not None)
        assert client.protocol is not None
        assert client.protocol.client == (f"uid {os.getuid()}", 0)
        writer.close()
        await until(lambda: place.clients.count == 0)

    play(story, path=tmp_path / "s")


def own_tls(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of the server, and of a client that trusts it."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj",
         "/CN=x", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(certificate))
    client.check_hostname = False
    return context, client


def test_hands_that_are_never_shaken_count_too(tmp_path: Path):
    """Over TLS: uvicorn itself knows of a connection only when the handshake is done."""
    context, client = own_tls(tmp_path)

    async def story(place: Acceptor, connect: Any) -> None:
        silent = [await connect() for _ in range(20)]
        await until(lambda: place.clients.count == 20)
        reader, writer = await connect()
        await writer.start_tls(client)
        writer.write(GET.replace(b"host: x", b"connection: close"))
        assert (await reader.read(-1)).startswith(b"HTTP/1.1 200")
        assert await silent[0][0].read(-1) == b""
        assert place.clients.dropped == 1

    play(story, tls=context)


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
def test_a_target_that_is_none_is_a_bad_request_and_no_mistake_of_ours(target: bytes):
    mistakes: list[Any] = []

    async def story(place: Acceptor, connect: Any) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: mistakes.append(context))
        reader, writer = await connect()
        writer.write(b"GET " + target + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        await reader.read()

    play(story)
    assert not mistakes

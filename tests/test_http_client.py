"""Requests to a server time out, whatever the server does."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fairlead.http import client
from fairlead.http.client import LARGEST_ANSWER, Answer, NoAnswer, NotTrusted, Place, ask
from harness.front_ends.keystone_recorded import OF_SHOP, Playing, playing, token
from harness.loops import LOOPS, run_on
from harness.probed import full
from harness.tls_files import certificate


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    return partial(run_on, request.param)


async def answered(raw: bytes, *, ends: bool = True) -> Answer:
    """Return the result of these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            for start in range(0, len(raw), 1000):
                writer.write(raw[start : start + 1000])
                await writer.drain()
            if not ends:
                await reader.read()
        except ConnectionError:
            pass  # the client closed the connection
        finally:
            writer.transport.abort() if len(raw) > LARGEST_ANSWER else writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        return await ask(Place(url=f"http://127.0.0.1:{port}/v3"), "GET /x", {})


GOOD = {
    "with a length": b"HTTP/1.1 404 Not Found\r\nX-Subject-Token: t\r\nContent-Length: 5\r\n\r\nhello",
    "in chunks": b"HTTP/1.1 404 no\r\nx-subject-token: t\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("raw", GOOD.values(), ids=GOOD)
def test_an_answer_is_status_headers_and_body(run, raw: bytes):
    found = run(answered(raw, ends=False))
    assert (found.status, found.headers["x-subject-token"], found.body) == (404, "t", b"hello")


BAD = {
    "nothing": (b"", "ended before"),
    "half": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "ended before"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n", "HTTP"),
    "a body without an end": (b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n" + b"x" * 400_000, "larger than"),
    "a head without an end": (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 60_000, "larger than"),
}


@pytest.mark.parametrize(("raw", "words"), BAD.values(), ids=BAD)
def test_what_is_no_answer(run, raw: bytes, words: str):
    with pytest.raises(NoAnswer, match=words):
        run(answered(raw))


def test_a_server_that_says_nothing_is_not_waited_for(run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "PATIENCE", 0.1)
    with pytest.raises(NoAnswer, match="no answer within"):
        run(answered(b"HTTP/1.1 200 OK\r\n", ends=False))


def test_one_that_does_not_even_accept_is_not_waited_for(run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "PATIENCE", 0.2)
    with full(4) as port, pytest.raises(NoAnswer):
        run(ask(Place(url=f"http://127.0.0.1:{port}/v3"), "GET /x", {}))


def test_nobody_there(run):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        with pytest.raises(NoAnswer):
            run(ask(Place(url=f"http://127.0.0.1:{probe.getsockname()[1]}/v3"), "GET /x", {}))


@pytest.mark.parametrize("believed", ["right", "wrong"])
def test_by_tls_only_who_is_vouched_for_is_asked(run, tmp_path: Path, believed: str):
    right, wrong = certificate(tmp_path, "right"), certificate(tmp_path, "wrong")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(right)
    trusted = ssl.create_default_context(cafile=str({"right": right, "wrong": wrong}[believed]))
    play = Playing()
    play.tokens["t"] = token("reader", **OF_SHOP)

    async def story() -> int:
        async with playing(play, serving) as port:
            place = Place(url=f"https://127.0.0.1:{port}/v3", tls=trusted)
            headers = {"X-Auth-Token": play.own, "X-Subject-Token": "t"}
            return (await ask(place, "GET /auth/tokens?nocatalog", headers)).status

    if believed == "right":
        assert run(story()) == 200
    else:
        with pytest.raises(NotTrusted, match="certificate is not trusted"):
            run(story())
        assert play.asked == []

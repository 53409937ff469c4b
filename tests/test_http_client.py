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
from fairlead.http.client import MAX_RESPONSE_BYTES, HttpEndpoint, HttpResponse, NoAnswer, NotTrusted, send_request
from harness.front_ends.keystone_recorded import SHOP_SCOPE, ReplayedKeystone, replayed_keystone, token
from harness.loops import LOOPS, run_on
from harness.probed import full_backlog
from harness.tls_files import certificate


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    return partial(run_on, request.param)


async def answered(raw: bytes, *, ends: bool = True) -> HttpResponse:
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
            writer.transport.abort() if len(raw) > MAX_RESPONSE_BYTES else writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        return await send_request(HttpEndpoint(url=f"http://127.0.0.1:{port}/v3"), "GET /x", {})


GOOD = {
    "with a length": b"HTTP/1.1 404 Not Found\r\nX-Subject-Token: t\r\nContent-Length: 5\r\n\r\nhello",
    "in chunks": b"HTTP/1.1 404 no\r\nx-subject-token: t\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("raw", GOOD.values(), ids=GOOD)
def test_response_has_status_headers_and_body(run, raw: bytes):
    found = run(answered(raw, ends=False))
    assert (found.status, found.headers["x-subject-token"], found.body) == (404, "t", b"hello")


BAD = {
    "nothing": (b"", "closed before"),
    "half": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "closed before"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n", "HTTP"),
    "a body without an end": (b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n" + b"x" * 400_000, "larger than"),
    "a head without an end": (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 60_000, "larger than"),
}


@pytest.mark.parametrize(("raw", "words"), BAD.values(), ids=BAD)
def test_malformed_response_is_an_error(run, raw: bytes, words: str):
    with pytest.raises(NoAnswer, match=words):
        run(answered(raw))


def test_incomplete_response_times_out(run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "TIMEOUT", 0.1)
    with pytest.raises(NoAnswer, match="timed out after"):
        run(answered(b"HTTP/1.1 200 OK\r\n", ends=False))


def test_connection_that_is_never_accepted_times_out(run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "TIMEOUT", 0.2)
    with full_backlog(4) as port, pytest.raises(NoAnswer):
        run(send_request(HttpEndpoint(url=f"http://127.0.0.1:{port}/v3"), "GET /x", {}))


def test_refused_connection_is_an_error(run):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        with pytest.raises(NoAnswer):
            run(send_request(HttpEndpoint(url=f"http://127.0.0.1:{probe.getsockname()[1]}/v3"), "GET /x", {}))


@pytest.mark.parametrize("believed", ["right", "wrong"])
def test_untrusted_server_certificate_gets_no_request(run, tmp_path: Path, believed: str):
    right, wrong = certificate(tmp_path, "right"), certificate(tmp_path, "wrong")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(right)
    trusted = ssl.create_default_context(cafile=str({"right": right, "wrong": wrong}[believed]))
    play = ReplayedKeystone()
    play.tokens["t"] = token("reader", **SHOP_SCOPE)

    async def story() -> int:
        async with replayed_keystone(play, serving) as port:
            place = HttpEndpoint(url=f"https://127.0.0.1:{port}/v3", tls=trusted)
            headers = {"X-Auth-Token": play.service_token, "X-Subject-Token": "t"}
            return (await send_request(place, "GET /auth/tokens?nocatalog", headers)).status

    if believed == "right":
        assert run(story()) == 200
    else:
        with pytest.raises(NotTrusted, match="certificate verification failed"):
            run(story())
        assert play.validated_tokens == []

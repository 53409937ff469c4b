"""The server's connection handling from socket to HTTP, with a small application."""

import asyncio
import contextlib
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn

from fairlead.api.http.acceptor import Acceptor, ClientConnections
from fairlead.api.http.protocol import BoundedHttp

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\n"


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the size of the body; `/early` answers before it arrives, `/news` after either end has closed."""
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
async def serve_connections(
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
        ClientConnections(max_total=most, max_per_address=most_of_one),
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
    try:
        yield place, connect
    finally:
        for writer in opened:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        place.close()
        listener.close()
        await place.wait_closed()
        await asyncio.sleep(0)


def own_tls(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS contexts of the server and of a client that trusts it."""
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

"""HTTP/1.1 client of an agent: one persistent connection, for sequential requests or for an endless response."""

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools

from fairlead.http.server_client import NotReached, ServerError, extract_error

MAX_RESPONSE_BYTES = 16 * 2**20
"""Maximum bytes of a response, and of a line in an endless response."""
READ_BYTES = 2**16
CONNECT_TIMEOUT = 10.0
"""Timeout of connecting, including the TLS handshake, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Server with the agent's credentials."""

    url: str
    """http://HOST:PORT, https://HOST:PORT or unix:PATH."""
    tls: ssl.SSLContext | None = None
    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def head(self) -> bytes:
        """Header fields of every request."""
        parts = urlsplit(self.url)
        fields = [f"Host: {parts.netloc or 'localhost'}"]
        if self.user:
            secret = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            fields.append(f"Authorization: Basic {secret}")
        return "\r\n".join(fields).encode()


@dataclass(slots=True)
class _HttpResponse:
    """Response under construction, with the callbacks of httptools."""

    complete: bool = False
    is_last: bool = False
    """True if the server closes the connection after this response. It is read in the callback, because afterwards the
    parser reports it for every response."""
    body: bytearray = field(default_factory=bytearray)
    parser: Any = None

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete, self.is_last = True, not self.parser.should_keep_alive()
        self.parser = None  # breaks the reference cycle


class Connection:
    """HTTP connection for one task at a time."""

    def __init__(self, remote: Remote, patience: float) -> None:
        """`patience` is the timeout of a response in seconds."""
        self._remote = remote
        self._timeout = patience
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def request(self, method: str, path: str, body: object = None) -> Any:
        """Send a request and return the decoded response. Raises ServerError."""
        kept = self._writer is not None
        try:
            return await self._exchange(method, path, body)
        except ServerError as error:
            if not kept or error.status is not None:
                raise
        return await self._exchange(method, path, body)  # a persistent connection may have been closed

    async def lines(self, path: str, silence: float) -> AsyncIterator[bytes]:
        """Yield the lines of an endless response. A pause of more than `silence` seconds is an error. Raises
        ServerError."""
        async with self._translate_errors(silence):
            parser, answer = await self._begin("GET", path, None)
            while True:
                status = await self._read(parser, answer, silence)
                if status is not None and status >= 400:
                    await self._raise_error(parser, answer, status)
                *lines, rest = bytes(answer.body).split(b"\n")
                for line in lines:
                    yield line
                answer.body[:] = rest
                if len(rest) > MAX_RESPONSE_BYTES:
                    raise ServerError(f"{self._remote.url} sent a line of more than {MAX_RESPONSE_BYTES} bytes")
                if answer.complete:
                    raise ServerError(f"{self._remote.url} ended the response")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def _exchange(self, method: str, path: str, body: object) -> Any:
        async with self._translate_errors(self._timeout):
            parser, answer = await self._begin(method, path, body)
            status = None
            while not answer.complete:
                status = await self._read(parser, answer, self._timeout) or status
                if len(answer.body) > MAX_RESPONSE_BYTES:
                    raise ServerError(f"{self._remote.url} sent a response of more than {MAX_RESPONSE_BYTES} bytes")
            if status is not None and status >= 400:
                raise _refusal(status, bytes(answer.body))
            if answer.is_last:
                self.close()
            return json.loads(answer.body) if answer.body else None

    async def _raise_error(self, parser: Any, answer: _HttpResponse, status: int) -> None:
        while not answer.complete and len(answer.body) < READ_BYTES:
            await self._read(parser, answer, self._timeout)
        raise _refusal(status, bytes(answer.body))

    async def _begin(self, method: str, path: str, body: object) -> tuple[Any, _HttpResponse]:
        if self._writer is None:
            await self._connect()
        assert self._writer is not None  # noqa: S101 - for mypy
        data = b"" if body is None else json.dumps(body).encode()
        sized = f"\r\nContent-Type: application/json\r\nContent-Length: {len(data)}" if body is not None else ""
        head = f"{method} {path} HTTP/1.1\r\n".encode() + self._remote.head + sized.encode() + b"\r\n\r\n"
        self._writer.write(head + data)
        async with asyncio.timeout(self._timeout):
            await self._writer.drain()
        answer = _HttpResponse()
        answer.parser = httptools.HttpResponseParser(answer)
        return answer.parser, answer

    async def _read(self, parser: Any, answer: _HttpResponse, patience: float) -> int | None:
        """Read bytes, and return the status once it is known."""
        assert self._reader is not None  # noqa: S101 - for mypy
        async with asyncio.timeout(patience):
            data = await self._reader.read(READ_BYTES)
        if not data:
            raise ServerError(f"{self._remote.url} closed the connection")
        parser.feed_data(data)
        found: int = parser.get_status_code()
        return found or None

    async def _connect(self) -> None:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            try:
                self._reader, self._writer = await self._open()
            except (ConnectionRefusedError, FileNotFoundError) as error:
                raise NotReached(f"cannot connect to {self._remote.url}: {error}") from None

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._remote.url.startswith("unix:"):
            return await asyncio.open_unix_connection(self._remote.url.removeprefix("unix:"), limit=READ_BYTES)
        parts = urlsplit(self._remote.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        tls = (self._remote.tls or ssl.create_default_context()) if parts.scheme == "https" else None
        return await asyncio.open_connection(parts.hostname, port, ssl=tls, limit=READ_BYTES)

    @contextlib.asynccontextmanager
    async def _translate_errors(self, patience: float) -> AsyncIterator[None]:
        """Convert errors to ServerError, and close a connection with an incomplete response."""
        try:
            yield
        except ServerError as error:
            if error.status is None:
                self.close()
            raise
        except TimeoutError:
            self.close()
            raise ServerError(f"{self._remote.url} timed out after {patience:g} s") from None
        except (OSError, ValueError, httptools.HttpParserError) as error:
            self.close()
            raise ServerError(f"request to {self._remote.url} failed: {error}") from None
        except BaseException:
            self.close()
            raise


def _refusal(status: int, body: bytes) -> ServerError:
    return ServerError(extract_error(body.decode(errors="replace")) or f"status {status}", status)

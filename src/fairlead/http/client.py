"""HTTP client for single requests with limits on time and size.

Each request has a connection of its own. Answers are cached by callers, so requests are few; separate connections
exclude head-of-line blocking and mixed-up answers.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

TIMEOUT = 5.0
"""Seconds for the whole request: name resolution, connection, TLS, answer."""
MAX_RESPONSE_BYTES = 2**18
"""Maximum bytes of an answer with its headers. A token with many roles has a few thousand."""
_READ = 2**16


class NoAnswer(Exception):
    """No valid answer. The message gives the reason, and nothing of the request."""


class NotTrusted(NoAnswer):
    """The server's certificate is not trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpEndpoint:
    """Location of a server."""

    url: str
    """http://HOST:PORT/PATH or https://HOST:PORT/PATH, without a trailing slash."""
    tls: ssl.SSLContext | None = None
    """TLS context for https, with the trusted CAs."""


@dataclass(slots=True)
class HttpResponse:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    """Headers, by lower-case name."""
    body: bytes = b""


async def send_request(
    place: HttpEndpoint, question: str, headers: Mapping[str, str], body: bytes = b""
) -> HttpResponse:
    """Send a request. `question` is method and path below the place, such as `GET /auth/tokens`. Raises NoAnswer."""
    try:
        async with asyncio.timeout(TIMEOUT):
            return await _exchange(place, question, headers, body)
    except TimeoutError:
        raise NoAnswer(f"timed out after {TIMEOUT:.0f} s") from None
    except ssl.SSLCertVerificationError as error:
        raise NotTrusted(f"certificate verification failed: {error.verify_message}") from None
    except (OSError, httptools.HttpParserError) as error:
        raise NoAnswer(getattr(error, "strerror", None) or str(error) or type(error).__name__) from None


async def _exchange(place: HttpEndpoint, question: str, headers: Mapping[str, str], body: bytes) -> HttpResponse:
    where = urlsplit(place.url)
    method, _, path = question.partition(" ")
    lines = {"Host": where.netloc, "Connection": "close", "Accept": "application/json", **headers}
    if body:
        lines |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    port = where.port or (443 if where.scheme == "https" else 80)
    reader, writer = await asyncio.open_connection(where.hostname, port, ssl=place.tls)
    try:
        writer.write(f"{method} {where.path}{path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body)
        return await _read(reader)
    finally:
        writer.transport.abort()


async def _read(reader: asyncio.StreamReader) -> HttpResponse:
    """Read an answer. Raises NoAnswer and HttpParserError."""
    reading = _ResponseParser()
    parser = httptools.HttpResponseParser(reading)
    size = 0
    while not reading.complete:
        part = await reader.read(_READ)
        size += len(part)
        if not part:
            raise NoAnswer("the connection was closed before the end of the response")
        if size > MAX_RESPONSE_BYTES:
            raise NoAnswer(f"the response is larger than {MAX_RESPONSE_BYTES} bytes")
        parser.feed_data(part)
    reading.answer.status = parser.get_status_code()
    return reading.answer


class _ResponseParser:
    """Callbacks of httptools' parser."""

    def __init__(self) -> None:
        self.answer = HttpResponse()
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, part: bytes) -> None:
        self.answer.body += part

    def on_message_complete(self) -> None:
        self.complete = True

"""Minimal HTTP client of an attacker: sends bytes from its own address, and reads a status."""

import asyncio
import base64
import contextlib
import json
import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

ANSWER_TIMEOUT = 15.0  # seconds; without a response an attacker sends its next request
CLOSED, NO_RESPONSE = "hung up", "no answer"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResponse:
    outcome: str
    """The status, or the kind of failure."""
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackTarget:
    """A server as one attacker reaches it.

    `source` is a loopback address by which the server identifies the attacker.
    """

    url: str
    source: str = "127.0.0.1"
    authorization: str = ""
    tls: ssl.SSLContext | None = None
    outcomes: "Counter[str]" = field(default_factory=Counter)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        place = urlsplit(self.url)
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(place.hostname, place.port, local_addr=(self.source, 0), ssl=self.tls),
            ANSWER_TIMEOUT,
        )
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def head(self, method: str, path: str, **headers: str) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {urlsplit(self.url).netloc}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if self.authorization:
            lines.append(f"Authorization: {self.authorization}")
        return "\r\n".join([*lines, "", ""]).encode()

    async def call(self, method: str, path: str, body: object = None) -> AttackResponse:
        """Send a request on a new connection, and count its outcome."""
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        head = self.head(method, path, Content_Length=str(len(content)), Connection="close")
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT), self.connect() as (reader, writer):
                writer.write(head + content)
                answer = _answer(await reader.read(-1))
        except TimeoutError:
            answer = AttackResponse(outcome=NO_RESPONSE)
        except OSError:
            answer = AttackResponse(outcome=CLOSED)
        self.outcomes[answer.outcome] += 1
        return answer


def _answer(received: bytes) -> AttackResponse:
    head, _, body = received.partition(b"\r\n\r\n")
    found = re.match(rb"HTTP/1\.1 (\d{3})", head)
    return AttackResponse(outcome=found[1].decode(), body=body) if found else AttackResponse(outcome=CLOSED)


def summarize(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in sorted(outcomes.items())) or "nothing"

"""HTTP server protocol with limits in bytes and time; httptools and uvicorn buffer input without limits.

All bytes outside a body count: request line, header fields, chunk sizes and extensions, trailer fields. A timeout runs
while the server waits for a head or body, or for the client to read.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fairlead.api.http.websocket import BoundedWebSocket
from fairlead.runtime.logging import RateLimit

MAX_HEAD_BYTES = 2**16
"""Maximum bytes of a request outside its body, plus those of one socket read. A query string has at most half of it."""
MAX_HEADER_FIELDS = 200
"""Maximum header fields of a request; Apache httpd allows 100 (LimitRequestFields). Trailer fields are dropped."""
MAX_PIPELINED = 16
"""Maximum pipelined requests of a connection that wait while an earlier one is served; known clients send none."""
HEAD_TIMEOUT = 10.0
"""Timeout in seconds for a request head, from the connection or the last response; also the idle timeout."""
BODY_TIMEOUT = 60.0
"""Timeout in seconds for a body of at most 4 MiB."""
WRITE_TIMEOUT = 60.0
"""Timeout in seconds while a client reads nothing of a response."""
DISCARD_SECONDS = 2.0
"""Seconds for which the rest of a body is discarded after the response. Closing a connection with unread bytes resets
it, and the response may be lost (RFC 9112, section 9.6)."""
MAX_DISCARDED_BYTES = 2**24
"""Maximum discarded bytes of a body."""
NEVER = float("inf")
LINES_A_MINUTE = 60
"""Maximum log lines per minute about invalid requests, which any client can cause."""
LOG = logging.getLogger(__name__)
LOG.addFilter(RateLimit(LINES_A_MINUTE))


class _Refused(Exception):
    """Raised in a parser callback to stop parsing; httptools then fails in `data_received`."""


class BoundedHttp(HttpToolsProtocol):
    """HTTP protocol with limits. It closes invalid connections itself; the acceptor closes overdue ones, by `overdue`
    and `waits_since`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.logger = LOG
        self.disconnected = asyncio.Event()
        """Set when the client has disconnected, so the request can be abandoned."""
        self.ending = asyncio.Event()
        """Set when a long poll or stream must end: the client has disconnected, or the server shuts down."""
        self.on_disconnect: Callable[[], None] = lambda: None
        self._on_client_disconnect: Callable[[], None] = lambda: None
        self._closed_here = False
        """True if this server closed the connection. No event loop reports reliably that the client did: uvloop reports
        no EOF over TLS."""
        self.peer = ""
        """Client identity in place of an address: the uid of a client on a Unix socket."""
        self.certificate_of: Callable[[asyncio.BaseTransport], bytes | None] = lambda _: None
        self._certificate: bytes | None = None
        self.waits_since: float | None = self.loop.time()
        """Time since which the server waits for the client; None while a request is served."""
        self._until = self.waits_since + HEAD_TIMEOUT
        self.stuck_since: float | None = None
        """Time since which the client reads nothing."""
        self._rest = 0
        """Bytes of the current request outside its body."""
        self._discarded_bytes = 0
        self._in_body = False
        self._websocket: asyncio.Protocol | None = None
        """WebSocket protocol that has taken over the connection."""

    @property
    def connection_state(self) -> dict[str, dict[object, object]]:
        """Return the connection's state for the extensions of an ASGI scope."""
        return {
            "fairlead.gone": {"event": self.disconnected},
            "fairlead.over": {"event": self.ending},
            "fairlead.hung_up": {"follow": self._set_client_disconnect},
            "fairlead.certificate": {"der": self._certificate},
            "fairlead.stream": {
                "write": self.transport.write,
                "waiting": self.transport.get_write_buffer_size,
                "taken": self.flow.drain,
                "end": self.close,
            },
        }

    def overdue(self, now: float) -> bool:
        if self._websocket is not None and self._until == NEVER and self.transport.is_closing():
            self._until = now + DISCARD_SECONDS  # the client may never read the rest
        return now > self._until or (self.stuck_since is not None and now > self.stuck_since + WRITE_TIMEOUT)

    def close(self) -> None:
        """Abort the connection immediately, dropping unsent data."""
        self._closed_here = True
        if self.transport is not None:
            self.transport.abort()

    def shutdown(self) -> None:
        """Close the connection after the current request, for a server shutdown."""
        self._closed_here = True
        self.ending.set()
        super().shutdown()

    def _set_client_disconnect(self, tell: Callable[[], None]) -> None:
        """Register the callback for a disconnect by the client; it replaces an earlier one and is called once."""
        self._on_client_disconnect = tell

    # transport callbacks

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.client = self.client or (self.peer, 0)
        self._certificate = self.certificate_of(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.disconnected.set()
        self.ending.set()
        self.on_disconnect()
        if not self._closed_here:
            self._on_client_disconnect()
        super().connection_lost(exc)
        self._break_cycles()

    def _break_cycles(self) -> None:
        """Break reference cycles. Objects frozen by `gc.freeze` (`server/process.py`) while the connection was open are
        not collected as cycles later; each reconnect of an agent leaked 100 KB."""
        self.on_disconnect = self._on_client_disconnect = lambda: None
        self.cycle = self.scope = None  # type: ignore[assignment]
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        self._rest += len(data)
        super().data_received(data)
        self._closed_here |= self.transport.is_closing()
        if self._websocket is not None:
            return
        if self._rest > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request line and header fields are too long.")
        if self._in_body and self.cycle.response_complete:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > MAX_DISCARDED_BYTES:
                self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Send 400, or close the connection silently while an earlier request is served, because the client would take
        the 400 for its response."""
        served = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if self.pipeline or served:
            self.transport.close()
        else:
            super().send_400_response(msg)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the WebSocket protocol, or close it while an earlier request is served."""
        if self.pipeline or (self.cycle is not None and not self.cycle.response_complete):
            self.transport.close()
            return
        self.connections.discard(self)
        self._websocket = websocket = BoundedWebSocket(self, LOG)
        fields = (name + b": " + value for name, value in self.headers)
        head = b"\r\n".join([b"GET " + self.url + b" HTTP/1.1", *fields, b"", b""])
        self.waits_since, self._until = None, NEVER
        websocket.connection_made(self.transport)
        self.transport.set_protocol(websocket)
        websocket.data_received(head)
        if not websocket.handshake_initiated:  # valid HTTP, but no valid WebSocket handshake
            self.send_400_response("A WebSocket request must have no body and no long header fields.")

    def pause_writing(self) -> None:
        self.stuck_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.stuck_since = None
        super().resume_writing()

    # parser callbacks

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _Refused
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:
            return  # trailer field
        if len(self.headers) >= MAX_HEADER_FIELDS:
            raise _Refused
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()  # raises for an invalid target, before any body is read
        if self._should_upgrade():
            return
        self._in_body = True
        self._wait(BODY_TIMEOUT)
        self.scope["extensions"] = self.connection_state

    def on_body(self, body: bytes) -> None:
        self._rest -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._rest = self._discarded_bytes = 0
        if self._should_upgrade():
            return
        if self.cycle.response_complete:
            self._wait(HEAD_TIMEOUT)
        else:
            self.waits_since, self._until = None, NEVER
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self._wait(DISCARD_SECONDS if self._in_body else HEAD_TIMEOUT)
        super().on_response_complete()
        self._closed_here |= self.transport.is_closing()

    def timeout_keep_alive_handler(self) -> None:
        self._closed_here = True
        super().timeout_keep_alive_handler()

    def _wait(self, seconds: float) -> None:
        """Start the timeout for the client."""
        self.waits_since = self.loop.time()
        self._until = self.waits_since + seconds

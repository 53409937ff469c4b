"""HTTP from strangers is bounded, in bytes and in time: httptools and uvicorn keep whatever a client sends, for ever.

What is not body counts, wherever it comes: request line, header fields, sizes and extensions of chunks, fields behind
the last chunk. While a client owes us bytes, of a head or of a body, or takes none of ours, its time runs.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fairlead.api.websocket import BoundedWebSocket
from fairlead.logs import RateLimit

LARGEST_HEAD = 2**16
"""Bytes of a request that are not body, and what one read of the socket brings on top of it. A query has at most half
of it."""
MOST_FIELDS = 200
"""Header fields of a request; Apache's httpd allows 100 (LimitRequestFields). Those behind a body are dropped."""
MOST_PIPELINED = 16
"""Requests that wait while an earlier one of their connection is served: no client of ours sends any."""
HEAD_PATIENCE = 10.0
"""Seconds from the connection, or from the last answer, to the end of a head: so long a connection may be idle too."""
BODY_PATIENCE = 60.0
"""Seconds for a body, of which the largest has 4 MiB."""
WRITE_PATIENCE = 60.0
"""Seconds for which a client takes nothing of an answer."""
LINGER = 2.0
"""Seconds for which the rest of a body is thrown away after the answer: a connection that is closed with bytes unread
is reset, and the answer may be lost (RFC 9112, section 9.6)."""
MOST_LINGERING = 2**24
"""Bytes of such a rest."""
NEVER = float("inf")
LINES_A_MINUTE = 60
"""In the log, about bytes that are no request: their sender has shown nothing."""
LOG = logging.getLogger(__name__)
LOG.addFilter(RateLimit(LINES_A_MINUTE))


class _Refused(Exception):
    """Ends the parsing: httptools tells `data_received`."""


class BoundedHttp(HttpToolsProtocol):
    """`overdue` and `waits_since` are for the code that closes connections; the protocol closes what is malformed."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.logger = LOG
        self.gone = asyncio.Event()
        """The client has hung up: nobody waits for what is done for it."""
        self.over = asyncio.Event()
        """Nobody waits for news any longer: the client has hung up, or the server ends."""
        self.on_gone: Callable[[], None] = lambda: None
        self._on_hung_up: Callable[[], None] = lambda: None
        self._ended_here = False
        """Whether it was this server that has ended the connection. That the client has, no event loop says alike: over
        TLS uvloop tells nobody that the last byte was read."""
        self.peer = ""
        """Who has connected, for callers without an address: a user of this machine, on a unix socket."""
        self.certificate_of: Callable[[asyncio.BaseTransport], bytes | None] = lambda _: None
        self._certificate: bytes | None = None
        self.waits_since: float | None = self.loop.time()
        """Since when nothing can be done but to wait for the client; None while it is served."""
        self._until = self.waits_since + HEAD_PATIENCE
        self.stuck_since: float | None = None
        """Since when the client takes nothing."""
        self._rest = 0
        """Bytes of the request that is being read that are not body."""
        self._lingering = 0
        self._in_body = False
        self._websocket: asyncio.Protocol | None = None
        """What has taken over the connection."""

    @property
    def seen(self) -> dict[str, dict[object, object]]:
        """What is known of the connection, for the extensions of an ASGI scope."""
        return {
            "fairlead.gone": {"event": self.gone},
            "fairlead.over": {"event": self.over},
            "fairlead.hung_up": {"follow": self._follow_hung_up},
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
            self._until = now + LINGER  # what is left to be sent may never be taken
        return now > self._until or (self.stuck_since is not None and now > self.stuck_since + WRITE_PATIENCE)

    def close(self) -> None:
        """At once: what was not sent yet is not worth another wait."""
        self._ended_here = True
        if self.transport is not None:
            self.transport.abort()

    def shutdown(self) -> None:
        """The server ends when it has answered what it is serving."""
        self._ended_here = True
        self.over.set()
        super().shutdown()

    def _follow_hung_up(self, tell: Callable[[], None]) -> None:
        """Told once, when it is the client who has ended the connection; nobody else is told any more."""
        self._on_hung_up = tell

    # what the transport says

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.client = self.client or (self.peer, 0)
        self._certificate = self.certificate_of(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self.over.set()
        self.on_gone()
        if not self._ended_here:
            self._on_hung_up()
        super().connection_lost(exc)
        self._let_go()

    def _let_go(self) -> None:
        """Of what refers to this again: what was frozen (`server/process.py`) while it lived is not looked through for
        circles any more, and each agent that came again left 100 KB."""
        self.on_gone = self._on_hung_up = lambda: None
        self.cycle = self.scope = None  # type: ignore[assignment]
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        self._rest += len(data)
        super().data_received(data)
        self._ended_here |= self.transport.is_closing()
        if self._websocket is not None:
            return
        if self._rest > LARGEST_HEAD and not self.transport.is_closing():
            self.send_400_response("The request line and the header fields are too long.")
        if self._in_body and self.cycle.response_complete:
            self._lingering += len(data)
            if self._lingering > MOST_LINGERING:
                self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Without a word when an earlier request is being served: it would be taken for the answer to that one."""
        served = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if self.pipeline or served:
            self.transport.close()
        else:
            super().send_400_response(msg)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over; while an earlier request of it is served there is nothing to hand over."""
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
        if not websocket.handshake_initiated:  # it can be read as HTTP, but not as a request for a websocket
            self.send_400_response("A request for a websocket has no body, and no long fields.")

    def pause_writing(self) -> None:
        self.stuck_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.stuck_since = None
        super().resume_writing()

    # what the parser says

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MOST_PIPELINED:
            raise _Refused
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:
            return  # behind the last chunk: nobody asks for these
        if len(self.headers) >= MOST_FIELDS:
            raise _Refused
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()  # raises for a target that is none: then there is no body to read
        if self._should_upgrade():
            return
        self._in_body = True
        self._wait(BODY_PATIENCE)
        self.scope["extensions"] = self.seen

    def on_body(self, body: bytes) -> None:
        self._rest -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._rest = self._lingering = 0
        if self._should_upgrade():
            return
        if self.cycle.response_complete:
            self._wait(HEAD_PATIENCE)
        else:
            self.waits_since, self._until = None, NEVER
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self._wait(LINGER if self._in_body else HEAD_PATIENCE)
        super().on_response_complete()
        self._ended_here |= self.transport.is_closing()

    def timeout_keep_alive_handler(self) -> None:
        self._ended_here = True
        super().timeout_keep_alive_handler()

    def _wait(self, seconds: float) -> None:
        """For the client, from now on."""
        self.waits_since = self.loop.time()
        self._until = self.waits_since + seconds

"""WebSocket connections for events to clients, with bounded resources; clients send no messages.

A connection stays counted as it was as HTTP (`acceptor`). It is closed if the client stops reading, does not answer a
ping, or sends a message. A message is sent after the client has received the ones before.
"""

import logging
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

if TYPE_CHECKING:
    from fairlead.api.http.protocol import BoundedHttp

MAX_MESSAGE_BYTES = 2**12
"""Maximum bytes of a client's message; every message is rejected with a close frame."""
PING_SECONDS, PONG_SECONDS = 20.0, 20.0
"""Seconds between two pings, and timeout of a pong."""


class BoundedWebSocket(WebSocketsSansIOProtocol):
    def __init__(self, http: "BoundedHttp", logger: logging.Logger) -> None:
        """Take over the connection of `http`."""
        super().__init__(http.config, http.server_state, http.app_state)
        self.logger = self.conn.logger = logger  # rate-limited, as any client can cause lines
        self._http = http
        self._stuck = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.client = self._http.client

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._http.disconnected.set()
        self._http.on_disconnect()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:  # the scope is not in use yet: its task starts later
            extensions: dict[str, dict[object, object]] = {
                **(self.scope["extensions"] or {}),
                **self._http.connection_state,
            }
            self.scope["extensions"] = extensions

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = True
        self._http.stuck_since = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stuck = False
        self._http.stuck_since = None

    def handle_ping(self) -> None:
        """Abort the connection of a client that sends pings without reading the pongs, because these would fill
        memory."""
        if self._stuck:
            self.transport.abort()
        else:
            super().handle_ping()

    def handle_text(self, event: Frame) -> None:
        self._refuse_to_listen()

    def handle_bytes(self, event: Frame) -> None:
        self._refuse_to_listen()

    def handle_cont(self, event: Frame) -> None:
        self._refuse_to_listen()

    def keepalive_timeout(self) -> None:
        self.transport.abort()

    def _refuse_to_listen(self) -> None:
        if not self.close_sent:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": 1003})
            self.conn.fail(1003, "the server accepts no messages on this connection")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        self.transport.close()

"""One connection to an OVSDB server: requests, echo, probe timeout; long work runs in steps."""

import asyncio
import itertools
import logging
import socket
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace
from time import perf_counter
from typing import TypeAlias, assert_never, cast

from fairlead.drivers.ovsdb.errors import ConnectionLost, NotConnected, ProtocolError
from fairlead.drivers.ovsdb.protocol import (
    Framer,
    Message,
    Notification,
    Reply,
    Request,
    encode_message,
    gc_disabled,
)
from fairlead.drivers.ovsdb.remotes import Liveness, LivenessVerdict
from fairlead.drivers.ovsdb.values import Json
from fairlead.runtime.steps import Steps

_LOG = logging.getLogger(__name__)
KEEPALIVE = {
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 5,
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 2,
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 4,
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): 13_000,
}
"""Seconds and milliseconds (tcp(7)). A kernel answers even if its process is busy, so a dead machine is detected within
13 s, whether data was sent or not."""
MAX_STEP_SECONDS = 0.005
"""Maximum seconds of a step of long work, plus the time to the next yield."""
OnReply: TypeAlias = Callable[[Reply], Steps[None] | None]


class JsonRpcConnection(asyncio.Protocol):
    """One connection: requests, echo, probe timeout."""

    def __init__(
        self,
        probe: float,
        on_notification: Callable[["JsonRpcConnection", Notification], Steps[None] | None],
        on_end: Callable[["JsonRpcConnection", str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._framer = Framer()
        self._liveness = Liveness(probe, self._loop.time())
        self._on_notification = on_notification
        self._on_end = on_end
        self._ids = itertools.count(1)
        self._waiting: dict[Json, tuple[asyncio.Future[Reply], OnReply | None]] = {}
        self._outbox: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reason: str | None = None
        self._received: deque[bytes] = deque()
        self._work: Steps[None] | None = None
        """Pending work for received messages, while it is yielding."""
        self.ended = asyncio.Event()

    def request(self, method: str, params: Json, on_reply: OnReply | None = None) -> asyncio.Future[Reply]:
        """Send a request. `on_reply` is called in stream order.

        A task that awaits the future runs later, and gets only the error, so that database contents are freed early.
        """
        if self._reason is not None:
            raise NotConnected(self._reason)
        future: asyncio.Future[Reply] = self._loop.create_future()
        identifier = next(self._ids)
        self._waiting[identifier] = future, on_reply
        self._send(Request(id=identifier, method=method, params=params))
        return future

    def disconnect(self, reason: str) -> None:
        """Close the connection now. Only the first reason is kept."""
        if self._reason is None:
            self._reason = reason
            if self._transport is not None:
                self._transport.abort()

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        _keep_alive(transport.get_extra_info("socket"))
        self._liveness.record_activity(self._loop.time())
        self._schedule_tick()

    def data_received(self, data: bytes) -> None:
        self._received.append(data)
        if self._work is None:
            self._work = self._dispatch_all()
            self._continue()

    def connection_lost(self, exc: Exception | None) -> None:
        self._work = None
        self._reason = self._reason or (str(exc) or repr(exc) if exc else "closed by the server")
        if self._timer is not None:
            self._timer.cancel()
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost(self._reason))
                future.exception()  # marks it as retrieved: no task may be waiting, as for a lock
        self._waiting.clear()
        self.ended.set()
        self._on_end(self, self._reason)

    # Internals

    def _continue(self) -> None:
        """Process received messages for one step. Small messages are processed in the same turn of the loop."""
        transport, work = cast(asyncio.Transport, self._transport), self._work
        if work is None:
            return
        self._liveness.record_activity(self._loop.time())
        try:
            with gc_disabled():
                is_done = _is_done(work, perf_counter() + MAX_STEP_SECONDS)
        except ProtocolError as error:
            self._work = None
            self.disconnect(str(error))
        except BaseException as error:
            self._work = None
            self.disconnect(f"a receiver failed: {error!r}")
            raise
        else:
            if not is_done:
                transport.pause_reading()
                self._loop.call_soon(self._continue)
                return
            self._work = None
            transport.resume_reading()

    def _dispatch_all(self) -> Steps[None]:
        """Process received messages; their memory is freed afterwards unless receivers keep it."""
        while self._received:
            for message in self._framer.feed(self._received.popleft()):
                if self._reason is not None:
                    return
                yield from steps_of(self._dispatch(message))
                del message
                yield

    def _dispatch(self, message: Message) -> Steps[None] | None:
        match message:
            case Reply():
                return self._resolve(message)
            case Notification():
                return self._on_notification(self, message)
            case Request(method="echo"):
                self._send(Reply(id=message.id, result=message.params, error=None))
            case Request():
                self._send(Reply(id=message.id, result=None, error="unknown method"))
            case _:
                assert_never(message)
        return None

    def _resolve(self, reply: Reply) -> Steps[None]:
        future, on_reply = self._waiting.pop(reply.id, (None, None))
        if on_reply is not None:
            yield from steps_of(on_reply(reply))
            reply = replace(reply, result=None)
        if future is not None and not future.done():
            future.set_result(reply)

    def _send(self, message: Request | Reply) -> None:
        """Queue a message; all messages of one turn of the loop are sent in one write."""
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(encode_message(message))

    def _flush(self) -> None:
        data = b"".join(self._outbox)
        self._outbox.clear()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _schedule_tick(self) -> None:
        self._timer = self._loop.call_at(self._liveness.due, self._tick)

    def _tick(self) -> None:
        match self._liveness.tick(self._loop.time()):
            case LivenessVerdict.DEAD:
                return self.disconnect("inactivity probe timed out")
            case LivenessVerdict.PROBE:
                self._probe()
            case LivenessVerdict.WAIT:
                pass
        return self._schedule_tick()

    def _probe(self) -> None:
        if self._reason is None:
            self._send(Request(id="probe", method="echo", params=[]))


def _keep_alive(connection: socket.socket) -> None:
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        for (level, name), value in KEEPALIVE.items():
            connection.setsockopt(level, name, value)


def steps_of(work: Steps[None] | None) -> Steps[None]:
    """Return the steps of unfinished work; none if it is done."""
    return work if isinstance(work, Generator) else _nothing()


def _nothing() -> Steps[None]:
    return
    yield


def _is_done(work: Steps[None], until: float) -> bool:
    """Run until the given time. Returns whether the work has ended."""
    return all(perf_counter() < until for _ in work)

"""Slice stream of an agent: an endless response of JSON lines (`agent_lines`)."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fairlead.api.agents.push_channel import PushChannel
from fairlead.api.agents.watch_buffer import MAX_BUFFERED_BYTES, Watch
from fairlead.api.http.front_end import rate_limited
from fairlead.api.http.openapi import project_slot
from fairlead.api.http.rate_limit import RateLimiter
from fairlead.runtime.loop_turns import TurnScheduler

LINES = "application/x-ndjson"
RECONNECT_BURST, RECONNECT_INTERVAL = 10, 1.0
"""Rate limit of streams per chassis: burst size, and seconds until one unit is available again. Each start may cost a
whole slice."""
MAX_CURSOR_LENGTH = 100


class SliceStreams:
    def __init__(
        self, channel: PushChannel, check: Callable[[Request, str], None], check_told: Callable[[], None]
    ) -> None:
        """`check` raises ApiError if the caller does not represent the chassis. `check_synced` raises DriverError until
        the ports of the chassis are read from OVN: the agent then keeps its slice and its probe results, whereas an
        incomplete slice would make it drop the rest."""
        self._channel = channel
        self._check = check
        self._check_synced = check_told
        self._pace = RateLimiter(RECONNECT_BURST, RECONNECT_INTERVAL)
        self._turns = TurnScheduler()

    async def watch(self, request: Request) -> Response:
        """Stream the slice of a chassis and its changes, as one JSON object per line, without an end. `after` is the
        last received cursor: if the server has it, the stream continues from there; otherwise it begins with `list`."""
        chassis, cursor = request.path_params["chassis"], request.query_params.get("after", "")[:MAX_CURSOR_LENGTH]
        self._check(request, chassis)
        self._check_synced()
        if (wait := self._pace.wait(chassis)) > 0:
            raise rate_limited(f"chassis {chassis} connects too often", wait)
        self._pace.add(chassis)
        async with project_slot(request.scope):
            return _Stream(self._channel, self._turns, chassis, cursor)


class _Stream(Response):
    media_type = LINES

    def __init__(self, channel: PushChannel, turns: TurnScheduler, chassis: str, cursor: str) -> None:
        """`turns` is shared by all lists, because the pieces of a thousand lists would hold the event loop for tenths
        of a second."""
        super().__init__()
        del self.headers["content-length"]
        self._channel, self._turns, self._chassis, self._cursor = channel, turns, chassis, cursor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        seen = scope["extensions"]
        stream, over = seen["fairlead.stream"], seen["fairlead.over"]["event"]
        watch = self._channel.open_watch(self._chassis)
        watch.end = stream["end"]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            for piece in self._pieces():
                await stream["taken"]()
                await self._turns.wait_for_turn()
                if over.is_set():
                    return
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            watch.go_live(partial(_write, watch, stream))
            await over.wait()
            await self._turns.wait_for_turn()  # a thousand agents may disconnect together, too
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._channel.close_watch(watch)

    def _pieces(self) -> Iterator[bytes]:
        missed = self._channel.messages_after(self._chassis, self._cursor)
        return iter((missed,)) if missed is not None else self._channel.full_slice(self._chassis)


def _write(watch: Watch, stream: Any, message: bytes) -> None:
    """Write past uvicorn, which would take an event-loop turn for each agent."""
    if stream["waiting"]() > MAX_BUFFERED_BYTES:
        watch.end()
    else:
        stream["write"](message)

"""Semaphore that is fair between keys: a project with many requests delays itself and not others.

Callers wait in one line per key (a project, an address). The lines are served round-robin, one caller each. A caller is
rejected immediately if its line is full.
"""

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any


class WaitQueueFull(Exception):
    """The line of this key is full, or all lines together are."""


class ClientDisconnected(Exception):
    """The waiting client has disconnected."""


class FairSemaphore:
    def __init__(self, *, at_once: float = math.inf, of_one: int, waiting: int, in_all: float = math.inf) -> None:
        """`at_once` is the maximum of concurrent turns, `of_one` that for one key; `waiting` is the maximum length of a
        line, `in_all` that of all lines together."""
        self._max_turns = at_once
        self._max_turns_per_key = of_one
        self._max_waiting_per_key = waiting
        self._max_waiting = in_all
        self._taken: Counter[str] = Counter()
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._lines.values()))

    @asynccontextmanager
    async def turn(
        self,
        key: str,
        patience: float | None = None,
        gone: asyncio.Event | None = None,
        counted: float | None = None,
    ) -> AsyncIterator[None]:
        """Wait for a slot and hold it. After `counted` seconds the holder continues, but its slot is released to
        others. Raises TooMany, TimeoutError after `patience` seconds, and Gone when `gone` is set."""
        if self._lines or not self.has_room(key):
            await self._wait_in_line(key, patience, gone)
        else:
            self._taken[key] += 1
        with ExitStack() as place:
            place.callback(self._release, key)
            if counted is not None:
                place.callback(asyncio.get_running_loop().call_later(counted, place.close).cancel)
            yield

    async def _wait_in_line(self, key: str, patience: float | None, gone: asyncio.Event | None) -> None:
        line = self._lines.setdefault(key, deque())
        if len(line) >= self._max_waiting_per_key or self.waiting >= self._max_waiting:
            if not line:
                del self._lines[key]
            raise WaitQueueFull(key)
        place = asyncio.get_running_loop().create_future()
        line.append(place)
        self._wake_next()  # lines of keys at their limit may exist although this key has room
        try:
            async with asyncio.timeout(patience):
                await wait_unless_gone(place, gone)
        except BaseException:
            if place.done() and not place.cancelled():  # its turn began at the same moment
                self._release(key)
            else:
                self._leave(key, place)
            raise

    def _leave(self, key: str, place: "asyncio.Future[None]") -> None:
        line = self._lines[key]
        line.remove(place)
        if not line:
            del self._lines[key]

    def has_room(self, key: str) -> bool:
        """Whether a caller with this key gets a turn without waiting."""
        return self._taken[key] < self._max_turns_per_key and self._taken.total() < self._max_turns

    def _release(self, key: str) -> None:
        self._taken[key] -= 1
        if not self._taken[key]:
            del self._taken[key]
        self._wake_next()

    def _wake_next(self) -> None:
        for key in list(self._lines):
            if self._taken.total() >= self._max_turns:
                return
            if self.has_room(key):
                line = self._lines[key]
                line.popleft().set_result(None)
                self._taken[key] += 1
                self._lines.move_to_end(key)
                if not line:
                    del self._lines[key]


async def wait_unless_gone(place: "asyncio.Future[Any]", gone: asyncio.Event | None) -> None:
    """Wait for the place. Raises Gone if the client disconnects first."""
    if gone is None:
        await asyncio.shield(place)
        return
    hung_up = asyncio.ensure_future(gone.wait())
    either: set[asyncio.Future[Any]] = {place, hung_up}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        hung_up.cancel()
    if not place.done():
        raise ClientDisconnected

"""An event loop with a clock that jumps to the next timer as soon as nothing else can run.

Timers, timeouts and back-off of seconds or hours take no real time and are exact, however busy the machine is. The mark
`virtual_clock` runs a test on such a loop. I/O within the loop works. The clock stops while a thread works for the
loop. Other processes do not have this clock, so tests with real programs use the real one.
"""

import asyncio
import fcntl
import selectors
import sys
import termios
import time
from collections.abc import Callable
from concurrent.futures import Executor
from concurrent.futures import Future as ThreadFuture
from typing import Any, TypeVar

_REAL_POLL_SECONDS = (
    0.004  # seconds in which the kernel normally delivers data from one socket of this process to another
)
_MAX_DELIVERY_SECONDS = (
    0.25  # seconds for the same on a busy machine; a peer that never reads costs this much at each timer
)
_THREAD_POLL = 0.005  # seconds between two polls of the sockets while a thread works
_REAL_MONOTONIC = time.monotonic
_WRAP_FUTURE = asyncio.wrap_future
_T = TypeVar("_T")


def time_of_loop() -> float:
    """Replacement of `time.monotonic` during tests marked `virtual_clock`, for code that runs on their loop."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _REAL_MONOTONIC()
    return loop.time() if isinstance(loop, VirtualClockLoop) else _REAL_MONOTONIC()


def advance(seconds: float) -> None:
    """Advance the running virtual clock while nothing runs, as when the process is not scheduled."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualClockLoop)
    loop.advance(seconds)


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """Event loop with a virtual clock, which starts at 0 s."""

    def __init__(self) -> None:
        self._now = 0.0
        self._working_threads = 0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def owns(self, descriptor: int) -> bool:
        """Whether the descriptor is the one through which threads and signals wake this loop."""
        return descriptor == self._ssock.fileno()  # type: ignore[attr-defined]

    @property
    def waits_for_threads(self) -> bool:
        return self._working_threads > 0

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., _T], *args: Any
    ) -> asyncio.Future[_T]:
        return self._hold_clock_until(super().run_in_executor(executor, func, *args))

    def run_forever(self) -> None:
        """Run the loop, with `asyncio.wrap_future` replaced: threads that the product starts return through it."""
        asyncio.wrap_future = self._wrap_future  # type: ignore[assignment]
        try:
            super().run_forever()
        finally:
            asyncio.wrap_future = _WRAP_FUTURE

    def _wrap_future(
        self, future: ThreadFuture[_T] | asyncio.Future[_T], *, loop: asyncio.AbstractEventLoop | None = None
    ) -> asyncio.Future[_T]:
        wrapped = _WRAP_FUTURE(future, loop=loop)
        return self._hold_clock_until(wrapped) if wrapped.get_loop() is self else wrapped

    def _hold_clock_until(self, future: asyncio.Future[_T]) -> asyncio.Future[_T]:
        self._working_threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: object) -> None:
        self._working_threads -= 1


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualClockLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # no timer, so only a socket, a thread or a signal can wake this loop
            return super().select(None)
        if timeout <= 0:
            return super().select(0)
        if self._loop.waits_for_threads:
            return super().select(_THREAD_POLL)
        sockets = [key.fd for key in self.get_map().values() if not self._loop.owns(key.fd)]
        events = super().select(_REAL_POLL_SECONDS if sockets else 0)
        if not events and any(map(_has_unread_output, sockets)):
            events = super().select(_MAX_DELIVERY_SECONDS)
        if not events:
            self._loop.advance(timeout)
        return events


def _has_unread_output(descriptor: int) -> bool:
    """Whether a socket has sent bytes that its peer has not acknowledged or read (TIOCOUTQ, tcp(7), udp(7))."""
    found = bytearray(4)
    try:
        fcntl.ioctl(descriptor, termios.TIOCOUTQ, found)
    except OSError:
        return False
    return int.from_bytes(found, sys.byteorder) > 0

"""Event-loop lag: the longest time that one piece of work blocked the event loop.

A task wakes up at short intervals; a late wake-up indicates a blocked loop. The delay counts only up to the CPU time
that this thread used in the interval, because on a shared machine other processes delay wake-ups as well.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from fairlead.runtime.logging import RateLimit

POLL_INTERVAL = 0.02
"""Wake-up interval in seconds."""
LOG_THRESHOLD = 0.5
LOG = logging.getLogger(__name__)
LOG.addFilter(RateLimit(10))


class LoopLag:
    def __init__(self) -> None:
        self._observe: Callable[[float], None] = lambda _: None

    def set_observer(self, observe: Callable[[float], None]) -> None:
        """`observe` is called with each lag in seconds."""
        self._observe = observe

    async def measure(self) -> None:
        """Measure the lag until cancelled."""
        while True:
            due, worked = time.monotonic() + POLL_INTERVAL, time.thread_time()
            await asyncio.sleep(POLL_INTERVAL)
            self.note(min(time.monotonic() - due, time.thread_time() - worked))

    def note(self, held: float) -> None:
        self._observe(max(held, 0.0))
        if held > LOG_THRESHOLD:
            LOG.warning("event loop blocked for %.2f s", held)

"""Event-loop lag: the longest time for which one piece of work blocked the event loop.

A task wakes up at short intervals; a late wake-up indicates a blocked loop. The delay counts only up to the CPU time
that this thread used in the interval, because on a shared machine other processes delay wake-ups, too.
"""

import asyncio
import logging
import time

from fairlead.logs import RateLimit

BEAT = 0.02
"""Wake-up interval in seconds."""
LONG = 0.05
"""Target maximum of one piece of work, in seconds."""
WORTH_A_LINE = 0.5
LOG = logging.getLogger(__name__)
LOG.addFilter(RateLimit(10))


class LoopLag:
    def __init__(self) -> None:
        self.longest = 0.0
        """Longest lag since the start, in seconds."""
        self.long = 0
        """Number of times that the loop was blocked for longer than LONG."""

    async def beat(self) -> None:
        """Measure the lag until cancelled."""
        while True:
            due, worked = time.monotonic() + BEAT, time.thread_time()
            await asyncio.sleep(BEAT)
            self.note(min(time.monotonic() - due, time.thread_time() - worked))

    def note(self, held: float) -> None:
        self.longest = max(self.longest, held)
        self.long += held > LONG
        if held > WORTH_A_LINE:
            LOG.warning("the event loop was held for %.2f s", held)

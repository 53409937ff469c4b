"""The lag of the event loop: for how long nobody could be served, because one piece of work held it.

A task wakes up at short intervals. It wakes up late when the loop was held. That counts only if this thread was at work
meanwhile: on a shared machine a late wake-up alone says nothing of this process.
"""

import asyncio
import logging
import time

from fairlead.logs import RateLimit

BEAT = 0.02
"""Seconds."""
LONG = 0.05
"""Seconds for which no piece of work should hold the loop."""
WORTH_A_LINE = 0.5
LOG = logging.getLogger(__name__)
LOG.addFilter(RateLimit(10))


class LoopLag:
    def __init__(self) -> None:
        self.longest = 0.0
        """Seconds, since the start."""
        self.long = 0
        """How often it was held longer than LONG."""

    async def beat(self) -> None:
        """Until it is cancelled."""
        while True:
            due, worked = time.monotonic() + BEAT, time.thread_time()
            await asyncio.sleep(BEAT)
            self.note(min(time.monotonic() - due, time.thread_time() - worked))

    def note(self, held: float) -> None:
        self.longest = max(self.longest, held)
        self.long += held > LONG
        if held > WORTH_A_LINE:
            LOG.warning("the event loop was held for %.2f s", held)

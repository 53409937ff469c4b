"""The pulse of the event loop: for how long nobody could be served, because one piece of work went on and on.

A beat that comes late says so, if this thread was at work meanwhile: on a machine that others use too a late beat alone
says nothing of us.
"""

import asyncio
import logging
import time

from fairlead.logs import Seldom

BEAT = 0.02
"""Seconds."""
LONG = 0.05
"""Seconds for which no piece of work should hold the loop."""
WORTH_A_LINE = 0.5
LOG = logging.getLogger(__name__)
LOG.addFilter(Seldom(10))


class Pulse:
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

"""For how long nobody else is served: the longest step of an event loop, by the processor's time of its thread.

The processor's time and not the clock's: a machine that does something else meanwhile makes no step longer.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Hold:
    longest: float = 0.0
    """Seconds."""


@contextmanager
def held() -> Iterator[Hold]:
    """The longest step of any loop of this thread meanwhile."""
    hold, run = Hold(), asyncio.events.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        hold.longest = max(hold.longest, time.thread_time() - began)

    asyncio.events.Handle._run = timed
    try:
        yield hold
    finally:
        asyncio.events.Handle._run = run

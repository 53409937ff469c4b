"""For how long nobody else is served: the longest step of an event loop, by the processor's time of its thread.

The processor's time and not the clock's: a machine that does something else meanwhile makes no step longer.
"""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SERVERS_THRESHOLD = (700, 10, 10)
"""How often Python looks for garbage if nobody says otherwise: as in a server, and not as in the other tests."""


@dataclass
class Hold:
    longest: float = 0.0
    """Seconds."""


@contextmanager
def as_in_a_server() -> Iterator[None]:
    """The collector is a server's that has loaded its model: what is there is frozen."""
    gc.collect()
    gc.freeze()
    with _collecting():
        yield


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
        with _collecting():
            yield hold
    finally:
        asyncio.events.Handle._run = run


@contextmanager
def _collecting() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*SERVERS_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)

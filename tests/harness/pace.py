"""How fast this machine is now. A bound in seconds is one of a machine that does nothing else; this one has others."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, thread_time

SAMPLE = 0.02
EVERY = 0.5
"""Seconds."""


def slowdown() -> float:
    """How many times longer work takes: the clock's time of some of it, by the processor's."""
    began, worked = monotonic(), thread_time()
    while thread_time() - worked < SAMPLE:
        pass
    return max(1.0, (monotonic() - began) / (thread_time() - worked))


@dataclass
class Pace:
    slowest: float = 1.0
    """The most that was seen."""


@contextmanager
def pace() -> Iterator[Pace]:
    """Of the machine meanwhile, for what is measured by a clock: `seconds < bound * pace.slowest`."""
    seen, ended = Pace(), threading.Event()

    def look() -> None:
        while True:
            seen.slowest = max(seen.slowest, slowdown())
            if ended.wait(EVERY):
                return

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        ended.set()
        looking.join()

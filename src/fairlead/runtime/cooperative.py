"""Cooperative yields: long work in steps, with turns of the event loop in between."""

import asyncio
from collections.abc import Generator
from time import perf_counter
from typing import TypeVar

MAX_STEP_SECONDS = 0.005
"""Maximum seconds between two turns of the event loop, plus the rest of the current step."""
_T = TypeVar("_T")


class Yielder:
    """Yields for loops with many short iterations."""

    def __init__(self) -> None:
        self._due = perf_counter() + MAX_STEP_SECONDS

    async def yield_if_due(self) -> None:
        """Yield to the event loop if `LONGEST` seconds have passed since the last turn."""
        if perf_counter() >= self._due:
            await asyncio.sleep(0)
            self._due = perf_counter() + MAX_STEP_SECONDS


async def run_in_steps(work: Generator[None, None, _T]) -> _T:
    """Run a generator to its end, yielding to the event loop in between, and return its result."""
    rest = perf_counter() + MAX_STEP_SECONDS
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: _T = end.value
            return found
        if perf_counter() >= rest:
            await asyncio.sleep(0)
            rest = perf_counter() + MAX_STEP_SECONDS

"""Long work in short steps: between two of them everybody else is served."""

import asyncio
from collections.abc import Generator
from time import perf_counter
from typing import TypeVar

LONGEST = 0.005
"""Seconds of a step, and as long as it takes to the next place to rest."""
_T = TypeVar("_T")


class Rests:
    """For short works that are many."""

    def __init__(self) -> None:
        self._due = perf_counter() + LONGEST

    async def rest(self) -> None:
        """The event loop has its turn, if it has had none for a while."""
        if perf_counter() >= self._due:
            await asyncio.sleep(0)
            self._due = perf_counter() + LONGEST


async def in_steps(work: Generator[None, None, _T]) -> _T:
    """What the work returns; the event loop has its turn between."""
    rest = perf_counter() + LONGEST
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: _T = end.value
            return found
        if perf_counter() >= rest:
            await asyncio.sleep(0)
            rest = perf_counter() + LONGEST

"""Long work in short steps: between two of them everybody else is served.

The work is a generator that yields wherever it can rest. It looks at a snapshot, which nobody changes meanwhile.
"""

import asyncio
from collections.abc import Callable, Generator, Sequence
from heapq import merge
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

LONGEST = 0.005
"""Seconds of a step, and as long as it takes to the next place to rest."""
RUN = 2000
"""Items that are sorted without a rest."""
_T = TypeVar("_T")
Steps: TypeAlias = Generator[None, None, _T]


async def in_steps(work: Steps[_T]) -> _T:
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


def at_once(work: Steps[_T]) -> _T:
    """The same without a rest."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: _T = end.value
            return found


def in_order(items: Sequence[_T], key: Callable[[_T], Any], *, reverse: bool = False) -> Steps[list[_T]]:
    """As `sorted`."""
    runs = []
    for first in range(0, len(items), RUN):
        runs.append(sorted(items[first : first + RUN], key=key, reverse=reverse))
        yield
    if len(runs) == 1:
        return runs[0]
    found = []
    for item in merge(*runs, key=key, reverse=reverse):
        found.append(item)
        yield
    return found

"""Cooperative work: a generator that yields wherever the caller can serve other requests. It reads an immutable
snapshot, so the caller can interleave other work."""

from collections.abc import Callable, Generator, Sequence
from heapq import merge
from typing import Any, ParamSpec, TypeAlias, TypeVar

SORT_BATCH_SIZE = 2000
"""Number of items to sort between two yields."""
_T = TypeVar("_T")
_P = ParamSpec("_P")
Steps: TypeAlias = Generator[None, None, _T]


def run_to_completion(work: Steps[_T]) -> _T:
    """Run to completion and return the result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: _T = end.value
            return found


def as_single_step(work: Callable[_P, _T]) -> Callable[_P, Steps[_T]]:
    """Wrap a short function as cooperative work that yields once before it."""

    def steps(*args: _P.args, **kwargs: _P.kwargs) -> Steps[_T]:
        yield
        return work(*args, **kwargs)

    return steps


def sort_cooperatively(items: Sequence[_T], key: Callable[[_T], Any], *, reverse: bool = False) -> Steps[list[_T]]:
    """Sort like `sorted`, cooperatively."""
    runs = []
    for first in range(0, len(items), SORT_BATCH_SIZE):
        runs.append(sorted(items[first : first + SORT_BATCH_SIZE], key=key, reverse=reverse))
        yield
    if len(runs) == 1:
        return runs[0]
    found = []
    for item in merge(*runs, key=key, reverse=reverse):
        found.append(item)
        yield
    return found

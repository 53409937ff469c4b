"""Memoization of work by object identity."""

from collections.abc import Callable
from typing import Generic, TypeVar

_A = TypeVar("_A")
_R = TypeVar("_R")


class MemoizedById(Generic[_A, _R]):
    """Memoized function, keyed by the identity of objects.

    Comparing 256 slots by value would take as long as the work itself. Equal inputs that are the same object also give
    the same result object.
    """

    def __init__(self, work: Callable[[_A], _R]) -> None:
        self._work = work
        self._known: dict[tuple[int, ...], tuple[_R, tuple[object, ...]]] = {}

    def result_of(self, argument: _A, *about: object) -> _R:
        """Return the result for an argument. `about` is everything in the argument that the work depends on."""
        key = tuple(map(id, about))
        if key not in self._known:
            self._known[key] = (
                self._work(argument),
                about,
            )  # keeps the objects alive, so their ids are not reused
        return self._known[key][0]

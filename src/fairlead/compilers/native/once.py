"""Work that many have in common, done once."""

from collections.abc import Callable
from typing import Generic, TypeVar

_A = TypeVar("_A")
_R = TypeVar("_R")


class Once(Generic[_A, _R]):
    """By which objects it is about, and not by what they are equal to: to compare 256 slots takes as long as the work.
    What is the same where these are the same is found then as one object, too."""

    def __init__(self, work: Callable[[_A], _R]) -> None:
        self._work = work
        self._known: dict[tuple[int, ...], tuple[_R, tuple[object, ...]]] = {}

    def of(self, argument: _A, *about: object) -> _R:
        """`about` is all of the argument that the work looks at."""
        key = tuple(map(id, about))
        if key not in self._known:
            self._known[key] = (
                self._work(argument),
                about,
            )  # these stay: another object could get the id of one that goes
        return self._known[key][0]

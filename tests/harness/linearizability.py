"""Linearizability checker: decides whether concurrent operations of several clients have a sequential order.

The algorithm is that of Wing and Gong, "Testing and Verifying Concurrent Objects" (1993), with the cache of Lowe,
"Testing for linearizability" (2017): a set of completed operations with a state is tried once. Histories of different
keys are checked separately, because linearizability is local (Herlihy and Wing 1990, theorem 1).
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TypeAlias

UNKNOWN = math.inf
"""End of an operation without a response: it took effect at any time after its start, or never."""
MAX_STATES = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    key: str
    action: str
    value: Hashable
    """Argument of the request, or value of the response."""
    called_at: float
    returned_at: float = UNKNOWN
    """Time of the response, on the clock of `asked`."""


Step: TypeAlias = Callable[[Hashable, Operation], tuple[Hashable, ...]]
"""The states that an operation can lead to from a state; none if this response is impossible in it."""


class TooManyStates(Exception):
    """Raised if there are too many orders to try."""


def contradictions(history: Iterable[Operation], first: Hashable, step: Step) -> list[str]:
    """Keys without a sequential order of their operations. Raises Undecided."""
    by_key = sorted(history, key=attrgetter("key", "called_at"))
    return [key for key, its in groupby(by_key, key=attrgetter("key")) if not _has_order(list(its), first, step)]


def _has_order(operations: Sequence[Operation], first: Hashable, step: Step) -> bool:
    known = sum(1 << place for place, each in enumerate(operations) if each.returned_at != UNKNOWN)
    todo, seen = [(0, first)], {(0, first)}
    while todo:
        done, state = todo.pop()
        if done & known == known:
            return True
        for place in _candidates(operations, done):
            for after in step(state, operations[place]):
                found = (done | 1 << place, after)
                if found not in seen:
                    seen.add(found)
                    todo.append(found)
        if len(seen) > MAX_STATES:
            raise TooManyStates(operations[0].key)
    return False


def _candidates(operations: Sequence[Operation], done: int) -> Iterator[int]:
    """Operations that may come next: those requested before any other remaining operation was answered.

    The one that was answered first is the last, because a stack is taken from its end.
    """
    left = []
    soonest = UNKNOWN
    for place in range(_lowest_unset_bit(done), len(operations)):
        each = operations[place]
        if each.called_at > soonest:
            break
        if not done >> place & 1:
            left.append(place)
            soonest = min(soonest, each.returned_at)
    yield from sorted(
        (each for each in left if operations[each].called_at <= soonest), key=lambda p: -operations[p].returned_at
    )


def _lowest_unset_bit(done: int) -> int:
    """Lowest bit that is not set."""
    return (~done & done + 1).bit_length() - 1

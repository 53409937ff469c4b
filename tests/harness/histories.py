"""Whether what several clients saw at once can have happened one after the other (linearizability).

After Wing and Gong, "Testing and Verifying Concurrent Objects" (1993), with what Lowe added, "Testing for
linearizability" (2017): what was tried before, the same operations in another order with the same state, is not tried
again. Histories of different keys are judged alone: linearizability is local (Herlihy and Wing 1990, theorem 1).
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TypeAlias

UNKNOWN = math.inf
"""When an operation ended whose answer nobody has: it may have been done at any time since, or never."""
MOST_TRIED = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    key: str
    action: str
    value: Hashable
    """What was asked for, or answered."""
    asked: float
    answered: float = UNKNOWN
    """In the clock of `asked`."""


Step: TypeAlias = Callable[[Hashable, Operation], tuple[Hashable, ...]]
"""The states that an operation can lead to from a state; none where it cannot be answered so."""


class Undecided(Exception):
    """There are too many orders to be tried."""


def contradictions(history: Iterable[Operation], first: Hashable, step: Step) -> list[str]:
    """The keys whose operations fit into no order. Raises Undecided."""
    by_key = sorted(history, key=attrgetter("key", "asked"))
    return [key for key, its in groupby(by_key, key=attrgetter("key")) if not _has_order(list(its), first, step)]


def _has_order(operations: Sequence[Operation], first: Hashable, step: Step) -> bool:
    known = sum(1 << place for place, each in enumerate(operations) if each.answered != UNKNOWN)
    todo, seen = [(0, first)], {(0, first)}
    while todo:
        done, state = todo.pop()
        if done & known == known:
            return True
        for place in _next(operations, done):
            for after in step(state, operations[place]):
                found = (done | 1 << place, after)
                if found not in seen:
                    seen.add(found)
                    todo.append(found)
        if len(seen) > MOST_TRIED:
            raise Undecided(operations[0].key)
    return False


def _next(operations: Sequence[Operation], done: int) -> Iterator[int]:
    """Those that may come next: asked before any other that is left was answered. Those that were answered first are
    last, so that they are tried first."""
    left = []
    soonest = UNKNOWN
    for place in range(_first_left(done), len(operations)):
        each = operations[place]
        if each.asked > soonest:
            break
        if not done >> place & 1:
            left.append(place)
            soonest = min(soonest, each.answered)
    yield from sorted(
        (each for each in left if operations[each].asked <= soonest), key=lambda p: -operations[p].answered
    )


def _first_left(done: int) -> int:
    """The lowest place that is not done."""
    return (~done & done + 1).bit_length() - 1

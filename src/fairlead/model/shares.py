"""How many slots of a table a member is due by its weight, how large the table is, and how slots lie evenly in it."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

SMALLEST = 16
LARGEST = 256
"""More buckets than this and Open vSwitch sends every connection through its slow path."""
WORST_RATIO = 1.10
"""How much more of its due one member may get than another before the table is doubled."""

Weights = Mapping[int, int]
"""Ordinal -> weight, above 0."""

_SPREAD = tuple(sorted(range(LARGEST), key=lambda place: f"{place:08b}"[::-1]))
"""The places of a list in an order of which every beginning lies evenly over the list (van der Corput)."""


def choose_size(weights: Weights) -> int:
    """The size of the smallest table in which shares are even enough, with all members and with any one of them less:
    the worst ratio between two members' shares is at most `WORST_RATIO`."""
    return _choose_size(tuple(sorted(weights.values())))


@lru_cache(maxsize=4096)
def _choose_size(heavy: tuple[int, ...]) -> int:
    """By the sorted weights."""
    wholes = [dict(enumerate(heavy))]
    for place, weight in enumerate(heavy if len(heavy) > 1 else ()):
        if place == heavy.index(weight):
            wholes.append(dict(enumerate((*heavy[:place], *heavy[place + 1 :]))))
    size = SMALLEST
    while size < LARGEST and any(worst_ratio(apportion(each, size), each) > WORST_RATIO for each in wholes):
        size *= 2
    return size


def worst_ratio(counts: Weights, weights: Weights) -> float:
    """Slots per weight of the member that got most, over that of the one that got least; infinite if one got none."""
    shares = [counts.get(member, 0) / weight for member, weight in weights.items()]
    return max(shares) / min(shares) if min(shares) else float("inf")


def apportion(weights: Weights, size: int) -> dict[int, int]:
    """Whole slots by largest remainder (Hamilton's method): each member gets its due rounded down or up.

    Of equal remainders that of the lighter member is rounded up, which is more even than the other way round. Then the
    counts depend on the weights alone: `choose_size` does not know the ordinals.

    A member that is due less than half a slot gets one all the same, from the members that have most: one that takes
    connections must see some. Shares are then as coarse as the table is.
    """
    total = sum(weights.values())
    counts = {member: weight * size // total for member, weight in weights.items()}
    missing = size - sum(counts.values())
    for member in sorted(weights, key=lambda each: (-(weights[each] * size % total), weights[each], each))[:missing]:
        counts[member] += 1
    if len(counts) <= size:
        for member in sorted(member for member, count in counts.items() if count == 0):
            counts[max(counts, key=lambda each: (counts[each], -each))] -= 1
            counts[member] = 1
    return counts


def interleave(counts: Weights) -> tuple[int, ...]:
    """A table with these counts in which each member's slots lie as far apart as they can.

    Floats are exact enough: places that are one number divide to one float, and others differ by more than 1/2^18.
    """
    places = [((2 * turn + 1) / (2 * count), member) for member, count in counts.items() for turn in range(count)]
    return tuple([member for _, member in sorted(places)])


def shortest_table(table: Sequence[int]) -> tuple[int, ...]:
    """The shortest table of 2^k slots that leads every hash value to the same member, looking at its low bits."""
    size = len(table)
    while size > 1 and size % 2 == 0 and tuple(table[: size // 2]) == tuple(table[size // 2 : size]):
        size //= 2
    return tuple(table[:size])


@lru_cache(maxsize=LARGEST + 1)
def evenly(size: int) -> tuple[int, ...]:
    return tuple(place for place in _SPREAD if place < size)


def spread(places: Sequence[int], count: int) -> list[int]:
    """So many of the places, evenly over all of them."""
    return [places[place] for place in evenly(len(places))[:count]]

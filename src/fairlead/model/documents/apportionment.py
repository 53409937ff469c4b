"""Apportionment: the slots per member by weight, the size of a table, and the even distribution of slots in it."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

MIN_SLOTS = 16
MAX_SLOTS = 256
"""Maximum slots: with more buckets, Open vSwitch handles every connection in its slow path."""
MAX_SHARE_RATIO = 1.10
"""Maximum ratio between two members' slots per weight; above it the table is doubled."""

Weights = Mapping[int, int]
"""Ordinal -> weight, above 0."""

_EVEN_ORDER = tuple(sorted(range(MAX_SLOTS), key=lambda place: f"{place:08b}"[::-1]))
"""Positions of a table in an order in which every prefix is evenly distributed (van der Corput sequence)."""


def choose_size(weights: Weights) -> int:
    """Return the smallest table size with even shares. The worst ratio of two members' shares is at most
    `MAX_SHARE_RATIO`, for all members and for all but any one of them."""
    return _choose_size(tuple(sorted(weights.values())))


@lru_cache(maxsize=4096)
def _choose_size(heavy: tuple[int, ...]) -> int:
    """Return the size for these sorted weights."""
    wholes = [dict(enumerate(heavy))]
    for place, weight in enumerate(heavy if len(heavy) > 1 else ()):
        if place == heavy.index(weight):
            wholes.append(dict(enumerate((*heavy[:place], *heavy[place + 1 :]))))
    size = MIN_SLOTS
    while size < MAX_SLOTS and any(worst_ratio(apportion(each, size), each) > MAX_SHARE_RATIO for each in wholes):
        size *= 2
    return size


def worst_ratio(counts: Weights, weights: Weights) -> float:
    """Return the maximum slots per weight divided by the minimum; infinite if a member has no slot."""
    shares = [counts.get(member, 0) / weight for member, weight in weights.items()]
    return max(shares) / min(shares) if min(shares) else float("inf")


def apportion(weights: Weights, size: int) -> dict[int, int]:
    """Apportion whole slots by largest remainder (Hamilton's method): each member's share is rounded down or up.

    Of equal remainders, the lighter member's is rounded up, which is more even. The counts therefore depend on the
    weights only, because `choose_size` does not know the ordinals.

    A member with a share below half a slot gets one slot, taken from the members with most slots, because a member with
    a weight must get connections. Shares are then as coarse as the table.
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
    """Return a table with these counts and the slots of each member as far apart as possible.

    Floats are exact enough: equal positions give the same float, and different ones differ by more than 1/2^18.
    """
    places = [((2 * turn + 1) / (2 * count), member) for member, count in counts.items() for turn in range(count)]
    return tuple([member for _, member in sorted(places)])


def shortest_table(table: Sequence[int]) -> tuple[int, ...]:
    """Return the shortest table of 2^k slots with the same member for every hash value, selected by its low bits."""
    size = len(table)
    while size > 1 and size % 2 == 0 and tuple(table[: size // 2]) == tuple(table[size // 2 : size]):
        size //= 2
    return tuple(table[:size])


@lru_cache(maxsize=MAX_SLOTS + 1)
def order_evenly(size: int) -> tuple[int, ...]:
    return tuple(place for place in _EVEN_ORDER if place < size)


def pick_evenly(places: Sequence[int], count: int) -> list[int]:
    """Return `count` of the places, evenly distributed over all of them."""
    return [places[place] for place in order_evenly(len(places))[:count]]

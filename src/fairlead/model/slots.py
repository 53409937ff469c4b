"""Slot tables: which member each hash value leads to.

A table has 2^k slots, 16 to 256. Open vSwitch, seeing exactly 2^k equal buckets, uses the low bits of the hash as the
number of the bucket, so a slot that keeps its member keeps every client that hashes to it. Rules:

* shares follow the weights as closely as whole slots allow: nobody is more than one slot from an optimal apportionment;
* only slots that must move do: a member that goes takes nothing from those that stay, and gives all it had;
* a table only grows, by repeating itself: hash values keep their member, because the low bits stay the same.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

SMALLEST = 16
LARGEST = 256
"""More buckets than this and Open vSwitch sends every connection through its slow path."""
WORST_RATIO = 1.10
"""How much more of its due one member may get than another before the table is doubled."""

Weights = Mapping[int, int]


def assign_slots(table: Sequence[int], weights: Weights, smallest: int = SMALLEST) -> tuple[int, ...]:
    """The table for members of these weights (ordinal -> weight, above 0) that moves the fewest slots of `table`.

    It has at least `smallest` slots, a power of two. With no member there is no table. With more members than `LARGEST`
    some get no slot; compilers refuse such pools.
    """
    if not weights:
        return ()
    size = max(len(table), smallest, choose_size(weights))
    if not table:
        return interleave(apportion(weights, size))
    widened = tuple(table) * (size // len(table))
    return _move(widened, _targets(Counter(widened), weights, size))


def choose_size(weights: Weights) -> int:
    """The smallest table in which the worst ratio between two members' shares of their due is small enough."""
    size = SMALLEST
    while size < LARGEST and worst_ratio(apportion(weights, size), weights) > WORST_RATIO:
        size *= 2
    return size


def worst_ratio(counts: Weights, weights: Weights) -> float:
    """Slots per weight of the member that got most, over that of the one that got least; infinite if one got none."""
    shares = [counts.get(member, 0) / weight for member, weight in weights.items()]
    return max(shares) / min(shares) if min(shares) else float("inf")


def apportion(weights: Weights, size: int) -> dict[int, int]:
    """Whole slots by largest remainder (Hamilton's method): everybody gets its due rounded down or up."""
    return _targets(Counter(), weights, size)


def interleave(counts: Weights) -> tuple[int, ...]:
    """A table with these counts in which each member's slots lie as far apart as they can.

    Floats are exact enough: places that are one number divide to one float, and others differ by more than 1/2^18.
    """
    places = sorted(((2 * turn + 1) / (2 * count), member) for member, count in counts.items() for turn in range(count))
    return tuple(member for _, member in places)


def shortest_table(table: Sequence[int]) -> tuple[int, ...]:
    """The shortest table of 2^k slots that leads every hash value to the same member, looking at its low bits."""
    size = len(table)
    while size > 1 and size % 2 == 0 and tuple(table[: size // 2]) == tuple(table[size // 2 : size]):
        size //= 2
    return tuple(table[:size])


def _targets(held: Counter[int], weights: Weights, size: int) -> dict[int, int]:
    """How many slots each member should have: its due rounded down or up, as near to what it holds as that allows.

    What is free goes to newcomers first: then it comes from those who stay and goes to those who come, and no client
    moves between two who stay.
    """
    total = sum(weights.values())
    low = {member: weight * size // total for member, weight in weights.items()}
    remainder = {member: weight * size % total for member, weight in weights.items()}
    target = {member: min(max(held[member], low[member]), low[member] + (remainder[member] > 0)) for member in weights}
    missing = size - sum(target.values())
    if missing >= 0:
        upwards = (member for member in weights if target[member] == low[member] and remainder[member])
        for member in sorted(upwards, key=lambda m: (held[m] > 0, -remainder[m], m))[:missing]:
            target[member] += 1
    else:
        _lower(target, -missing, held=held, low=low, remainder=remainder)
    _seat_everybody(target, size)
    return target


def _seat_everybody(target: dict[int, int], size: int) -> None:
    """Whoever is due less than half a slot gets one all the same, from those who have most: a member that takes
    connections must see some. Shares are then as coarse as the table is."""
    if len(target) <= size:
        for member in sorted(member for member, count in target.items() if count == 0):
            richest = max(target, key=lambda each: (target[each], -each))
            target[richest] -= 1
            target[member] = 1


def _lower(
    target: dict[int, int], surplus: int, *, held: Counter[int], low: Mapping[int, int], remainder: Mapping[int, int]
) -> None:
    """Take `surplus` slots off the targets: first from those who stay and would have to be given slots, then from those
    who hold a share rounded up, last from newcomers.

    So when a member goes, the others end one slot under their due rounded down rather than take slots from each other;
    and when one comes, those who stay give it its due, which moves clients to nobody else.
    """
    raised = [member for member in target if 0 < held[member] < target[member] and target[member] > 1]
    holders = [member for member in target if target[member] > low[member]]
    newcomers = [member for member in target if not held[member] and target[member] > 1]
    payers = [
        member for group in (raised, holders, newcomers) for member in sorted(group, key=lambda m: (remainder[m], m))
    ]
    for member in payers[:surplus]:
        target[member] -= 1


def _move(table: Sequence[int], target: Mapping[int, int]) -> tuple[int, ...]:
    """Give every slot that its member may not keep to the member that lacks most of its target."""
    kept: Counter[int] = Counter()
    result: list[int | None] = []
    for member in table:
        keep = kept[member] < target.get(member, 0)
        kept[member] += keep
        result.append(member if keep else None)
    heirs = iter(interleave({member: count - kept[member] for member, count in target.items()}))
    return tuple(next(heirs) if member is None else member for member in result)

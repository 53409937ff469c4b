"""How the one slot table of both IP versions was dealt, in documents of before each had its own.

Such a document says for each hash value who has it of all members; the table of a family was made from it each time, by
this function. It is asked once more when the document is read, so nobody's clients move.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from fairlead.model.shares import LARGEST, SMALLEST, WORST_RATIO, Weights, interleave, worst_ratio


def assign_slots(table: Sequence[int], weights: Weights) -> tuple[int, ...]:
    """The table for members of these weights (ordinal -> weight, above 0) that moves the fewest slots of `table`."""
    if not weights:
        return ()
    size = max(len(table), _choose_size(weights))
    if not table:
        return interleave(_targets(Counter(), weights, size))
    widened = tuple(table) * (size // len(table))
    return _move(widened, _targets(Counter(widened), weights, size))


def _choose_size(weights: Weights) -> int:
    size = SMALLEST
    while size < LARGEST and worst_ratio(_targets(Counter(), weights, size), weights) > WORST_RATIO:
        size *= 2
    return size


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
    """A member that is due less than half a slot gets one all the same, from those that have most: one that takes
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

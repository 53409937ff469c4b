"""Slot assignment of old documents, which have one table for both IP versions.

Such a table has the member of each hash value among all members, and the table of an IP version was derived from it by
this function. It is used when an old document is loaded, so that no client moves.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from fairlead.model.documents.apportionment import (
    MAX_SHARE_RATIO,
    MAX_SLOTS,
    MIN_SLOTS,
    Weights,
    interleave,
    worst_ratio,
)


def assign_legacy_slots(table: Sequence[int], weights: Weights) -> tuple[int, ...]:
    """Return the table for these weights (ordinal -> weight, above 0) that moves the fewest slots of `table`."""
    if not weights:
        return ()
    size = max(len(table), _choose_size(weights))
    if not table:
        return interleave(_target_counts(Counter(), weights, size))
    widened = tuple(table) * (size // len(table))
    return _reassign(widened, _target_counts(Counter(widened), weights, size))


def _choose_size(weights: Weights) -> int:
    size = MIN_SLOTS
    while size < MAX_SLOTS and worst_ratio(_target_counts(Counter(), weights, size), weights) > MAX_SHARE_RATIO:
        size *= 2
    return size


def _target_counts(held: Counter[int], weights: Weights, size: int) -> dict[int, int]:
    """Return the slots per member: its share rounded down or up, whichever is closer to its present number.

    Free slots go to new members first: slots then move from remaining members to new ones only, and no client moves
    between remaining members.
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
        _lower_targets(target, -missing, held=held, low=low, remainder=remainder)
    _ensure_one_slot_each(target, size)
    return target


def _ensure_one_slot_each(target: dict[int, int], size: int) -> None:
    """Give one slot to each member with a share below half a slot, because a member with a weight must get connections.
    It is taken from the members with most slots. Shares are then as coarse as the table."""
    if len(target) <= size:
        for member in sorted(member for member, count in target.items() if count == 0):
            richest = max(target, key=lambda each: (target[each], -each))
            target[richest] -= 1
            target[member] = 1


def _lower_targets(
    target: dict[int, int], surplus: int, *, held: Counter[int], low: Mapping[int, int], remainder: Mapping[int, int]
) -> None:
    """Reduce the targets by `surplus` slots in total.

    Targets are reduced first for remaining members that would gain slots, then for members with a share rounded up,
    then for new members.

    So if a member is removed, the others end one slot below their rounded share rather than exchange slots; if one is
    added, remaining members give it its share, and no client moves between them.
    """
    raised = [member for member in target if 0 < held[member] < target[member] and target[member] > 1]
    holders = [member for member in target if target[member] > low[member]]
    newcomers = [member for member in target if not held[member] and target[member] > 1]
    payers = [
        member for group in (raised, holders, newcomers) for member in sorted(group, key=lambda m: (remainder[m], m))
    ]
    for member in payers[:surplus]:
        target[member] -= 1


def _reassign(table: Sequence[int], target: Mapping[int, int]) -> tuple[int, ...]:
    """Assign every slot that its member must give up to the member with the largest deficit."""
    kept: Counter[int] = Counter()
    result: list[int | None] = []
    for member in table:
        keep = kept[member] < target.get(member, 0)
        kept[member] += keep
        result.append(member if keep else None)
    heirs = iter(interleave({member: count - kept[member] for member, count in target.items()}))
    return tuple(next(heirs) if member is None else member for member in result)

"""Slot tables: the member of each hash value, and its substitutes while that member does not serve.

A table has 2^k slots, 16 to 256. With exactly 2^k equal buckets, Open vSwitch uses the low bits of the hash as the
bucket number, so a slot that keeps its member keeps all clients that hash to it. Each slot is a list of members in
order of preference: the first ranks are stored, all other members follow by weighted rendezvous hashing. Rules:

* A slot leads to the first member of its list that is up. A member that goes down moves only its own clients, and one
  that recovers moves only the clients that it gets. This holds in any order, without stored state about members that
  were down.
* A change of members takes slots only from changed members, or gives slots only to them. The lists of other members
  keep their order, so their clients do not move, not even while some member is down (details at `RANKS`).
* Shares follow the weights as closely as whole slots and these rules permit, also while one member does not serve.
* A draining member keeps its home slots on record, and gets them back when it returns.
* A table only grows, by repetition. Hash values keep their member, because the low bits are the same.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import shake_128
from heapq import heapify, heappop, heappush, heapreplace
from math import log
from struct import unpack

from fairlead.model.documents.apportionment import (
    MAX_SLOTS,
    MIN_SLOTS,
    Weights,
    apportion,
    choose_size,
    interleave,
    pick_evenly,
)
from fairlead.runtime.steps import Steps, run_to_completion

RANKS = 3
"""Number of stored ranks per slot. While one member is down, a change of members moves only the necessary clients.
While two are down, it may also move clients that the second rank passed to the third, to keep shares even: a few slots
per hundred changes. With more down, the same holds for the fourth rank."""
MAX_CANDIDATES = 24
"""Number of members that are compared when one is selected for a rank; the one with the largest deficit wins.
It bounds the work."""
MAX_DEVIATION_SLOTS = 3
"""Maximum deviation of a member from its share, in slots,
when a returning member gets back exactly its former slots."""
NO_MEMBER = -1

PreferenceLists = list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTable:
    """Slots of a pool's members of one IP version, either ordinary members or backups. Members are given by ordinal."""

    version: int
    backup: bool = False
    ranks: tuple[tuple[int, ...], ...] = ()
    """Members of each slot by rank: `ranks[0]` is the table, `ranks[1]` has the slot while that member is down,
    and so on."""
    homes: tuple[int, ...] = ()
    """Home member of each slot, before it drained or was disabled; empty if no member has to return."""


def assign_slot_table(
    table: SlotTable, before: Weights, after: Weights, away: Set[int] = frozenset(), smallest: int = MIN_SLOTS
) -> Steps[SlotTable]:
    """Return the table for members with the weights `after`, given a table for the weights `before`.

    Members in `away` accept no connections at present.

    The table has at least `smallest` slots, a power of two. It is empty without members, and with more than `LARGEST`
    of them, which compilers reject.
    """
    slots = table.ranks[0] if table.ranks else ()
    homes = table.homes or slots
    if not after:
        kept = tuple(home if home in away else NO_MEMBER for home in homes)
        return replace(table, ranks=(), homes=kept if any(home in away for home in kept) else ())
    if len(after) > MAX_SLOTS:
        return replace(table, ranks=(), homes=())
    if before == after and len(slots) >= smallest and len(table.ranks) == min(RANKS, len(after)):
        kept = tuple(home if home in away else slot for home, slot in zip(homes, slots, strict=True))
        return replace(table, homes=() if kept == slots else kept)
    if not homes and not before and not away:
        return replace(table, ranks=_assign_new_table(tuple(sorted(after.items())), smallest))
    size = max(len(homes), smallest, choose_size(after))
    dealing = _SlotAssignment(table, homes, size, before, after, away)
    dealing.fail_back()
    yield
    if not dealing.assign_free_slots():
        yield from dealing.even_out()
        yield from dealing.enter_ranks()
        yield from dealing.even_second()
    yield from dealing.fill_ranks()
    return dealing.result(away)


@lru_cache(maxsize=256)
def _assign_new_table(after: tuple[tuple[int, int], ...], smallest: int) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of a new table; equal for all pools with these members."""
    weights = dict(after)
    size = max(smallest, choose_size(weights))
    dealing = _SlotAssignment(SlotTable(version=0), (), size, {}, weights)
    dealing.assign_free_slots()
    run_to_completion(dealing.fill_ranks())
    return dealing.result(frozenset()).ranks


def with_substitutes(table: SlotTable, living: Weights) -> tuple[int, ...]:
    """Return the table in which each slot leads to the first member of its list that is up. It has the fewest slots
    that can express it."""
    return _with_substitutes(table, frozenset(living.items()))


@lru_cache(maxsize=1024)
def _with_substitutes(table: SlotTable, weights: frozenset[tuple[int, int]]) -> tuple[int, ...]:
    """Cache results, because thousands of pools have equal tables and lose the same members when a host dies."""
    living = dict(weights)
    slots: Sequence[int] = table.ranks[0] if table.ranks else ()
    if not living:
        return ()
    for rank in table.ranks[1:]:
        if living.keys() >= set(slots):
            break
        slots = [first if first in living else second for first, second in zip(slots, rank, strict=True)]
    if living.keys() >= set(slots):
        return tuple(slots)
    slots = list(slots) * (MAX_SLOTS // len(slots))
    orphans = [slot for slot, member in enumerate(slots) if member not in living]
    for slot, member in zip(orphans, _rendezvous_winners(orphans, living), strict=True):
        slots[slot] = member
    return tuple(slots)


def _rendezvous_winners(slots: Sequence[int], living: Weights) -> list[int]:
    """Return the members of these slots of the largest table, for slots with no stored member that is up.

    Weighted rendezvous hashing: each member has an independent score for the slot, and the highest wins. A new member
    takes only the slots that it wins, and a removed one gives up only its own.
    """
    members = sorted(living, reverse=True)
    drawn = [
        [living[member] * draw for draw in map(_rendezvous_draws(member).__getitem__, slots)] for member in members
    ]
    return [members[numbers.index(max(numbers))] for numbers in zip(*drawn, strict=True)]


@lru_cache(maxsize=512)
def _rendezvous_draws(member: int) -> tuple[float, ...]:
    """Return -1/ln(u) for each slot, u uniform in (0, 1).

    The probability of the highest `weight * draw` is then proportional to the weight. One hash gives all values,
    because up to 256 members are evaluated together.
    """
    numbers = unpack(f">{MAX_SLOTS}Q", shake_128(str(member).encode()).digest(8 * MAX_SLOTS))
    return tuple([-1 / log(((number >> 16) + 0.5) / 2**48) for number in numbers])


def _rotate_candidates(members: Sequence[int], place: int) -> Sequence[int]:
    first = place * 37 % len(members)
    return [*members[first:], *members[:first]][: MAX_CANDIDATES + RANKS]


class _SlotAssignment:
    """One change of a table's members, as a sequence of steps."""

    def __init__(
        self,
        table: SlotTable,
        homes: tuple[int, ...],
        size: int,
        before: Weights,
        after: Weights,
        away: Set[int] = frozenset(),
    ) -> None:
        repeat = size // len(homes) if homes else 0
        ranks = [rank * repeat for rank in table.ranks]
        self.table, self.size, self.before, self.after = table, size, before, after
        self.total = sum(after.values())
        self.homes = homes * repeat if homes else (NO_MEMBER,) * size
        self.lists: PreferenceLists = [[m for m in slot if m in after] for slot in zip(*ranks, strict=True)]
        self.lists = self.lists or [[] for _ in range(size)]
        self.reduced = less = {m for m, weight in before.items() if weight > after.get(m, 0)}
        self.reassignable = [
            slot for slot, members in enumerate(zip(*ranks[:2], strict=True)) if not less.isdisjoint(members)
        ]
        """Slots with a first or second member that is removed or lost weight: their next member can be reassigned."""
        self.inherited = {
            slot for slot, leader in enumerate(ranks[0] if ranks else ()) if leader not in after and leader not in away
        }
        """Slots with a first member that is removed.
        Slots of draining members are not included, because they are homes."""
        self.counts = Counter([members[0] for members in self.lists if members])
        self.newcomers = [member for member in sorted(after) if member not in before]
        self.returning = frozenset(self.newcomers) & frozenset(self.homes)
        self.reassigned = set[int]()
        """Slots that were reassigned permanently: they are no longer a home of their former member."""

    def surplus(self, member: int) -> int:
        """Return the member's slots above its share, times the sum of all weights."""
        return self.counts[member] * self.total - self.after[member] * self.size

    def fail_back(self) -> None:
        """Give returning members their former slots. Slots are left where a member would deviate too far from its
        share, because of other changes since."""
        for member in sorted(self.returning):
            most = self.after[member] * self.size // self.total + 1 + MAX_DEVIATION_SLOTS
            mine = [slot for slot, home in enumerate(self.homes) if home == member]
            mine.sort(key=lambda slot: self.lists[slot][:1])
            for slot in pick_evenly(mine, len(mine)):
                holders = self.lists[slot][:1]
                if self.counts[member] < most and all(
                    self.surplus(holder) >= -MAX_DEVIATION_SLOTS * self.total for holder in holders
                ):
                    self._prefer(slot, member, 0)

    def assign_free_slots(self) -> bool:
        """Assign slots without a member to the members with the largest deficit. Return whether that was the whole
        table, so nothing is left to even out."""
        free = [slot for slot, members in enumerate(self.lists) if not members]
        if len(free) == self.size:
            got = apportion(self.after, self.size)
        else:
            got = Counter[int]()
            for _ in free:
                poorest = min(self.after, key=lambda member: (self.surplus(member), member))
                got[poorest] += 1
                self.counts[poorest] += 1
            self.counts -= got
        for slot, member in zip(free, interleave(got), strict=True):
            self._prefer(slot, member, 0)
        return len(free) == self.size

    def even_out(self) -> Steps[None]:
        """Give slots to members that are new or gained weight, and take slots from members that lost weight. They are
        taken from the members with the largest surplus, and passed to the next in the slot's list."""
        self._replace_removed()
        yield
        grown = [m for m, weight in self.after.items() if weight > self.before.get(m, 0)]
        for member in sorted(grown):
            self._take_slots(member)
            yield
        for member in sorted(m for m, weight in self.after.items() if weight < self.before.get(m, 0)):
            self._pass_on_slots(member)
            yield

    def enter_ranks(self) -> Steps[None]:
        """Insert members that are new or gained weight into lists led by others.
        Remove members that lost weight from some of them."""
        for member, weight in sorted(self.after.items()):
            more = weight - self.before.get(member, 0)
            if more > 0:
                self._enter_second(member)
                yield
            for rank in range(1, RANKS):
                if more > 0 and rank > 1:
                    self._insert_into_lists(member, more, rank)
                elif more < 0:
                    self._lower_rank(member, rank)
                yield

    def fill_ranks(self) -> Steps[None]:
        """Append members to short lists. The second rank gets the member with the least slots per weight if the first
        one did not serve. Other ranks get the least used member, of those below their share of the lists with this
        prefix."""
        members = sorted(self.after)
        used = defaultdict[int, int](int)
        for rank in range(1, min(RANKS, len(members))):
            groups: dict[frozenset[int], defaultdict[int, int]] = {}
            sizes = Counter([frozenset(slot[:rank]) for slot in self.lists])
            for slot in self.lists:
                if len(slot) > rank:
                    groups.setdefault(frozenset(slot[:rank]), defaultdict(int))[slot[rank]] += 1
                    used[slot[rank]] += 1
            for place, slot in enumerate(self.lists):
                if len(slot) == rank:
                    group = frozenset(slot)
                    got = groups.setdefault(group, defaultdict(int))
                    some = _rotate_candidates(members, place)
                    slot.append(min(self._rank_candidates(rank, slot, some, got, used, sizes[group]))[-1])
                    got[slot[rank]] += 1
                    used[slot[rank]] += 1
                    yield

    def _rank_candidates(  # sort keys, most significant first; the last is the member
        self,
        rank: int,
        slot: Sequence[int],
        some: Sequence[int],
        got: Mapping[int, int],
        used: Mapping[int, int],
        size: int,
    ) -> list[tuple[float, float, int, int]]:
        if rank == 1:
            return [
                ((self.counts[m] + got[m] + 0.5) / self.after[m], used[m] / self.after[m], order, m)
                for order, m in enumerate(some)
                if m not in slot
            ]
        rest = self.total - sum([self.after[m] for m in slot])
        return [
            (got[m] * rest >= size * self.after[m], (used[m] + 0.5) / self.after[m], order, m)
            for order, m in enumerate(some)
            if m not in slot
        ]

    def result(self, away: Set[int]) -> SlotTable:
        depth = min(RANKS, len(self.after))
        ranks = tuple(tuple([slot[rank] for slot in self.lists]) for rank in range(depth))
        homes = tuple(
            [
                home if home in away and slot not in self.reassigned else ranks[0][slot]
                for slot, home in enumerate(self.homes)
            ]
        )
        return replace(self.table, ranks=ranks, homes=() if homes == ranks[0] else homes)

    def _prefer(self, slot: int, member: int, rank: int) -> None:
        """Put the member at this rank of the slot's list; the others keep their order."""
        members = self.lists[slot]
        before = members[:1]
        if member in members:
            members.remove(member)
        members.insert(rank, member)
        del members[RANKS:]
        if members[:1] != before:
            self.counts.subtract(before)
            self.counts[members[0]] += 1

    def _replace_removed(self) -> None:
        """Give slots of removed members to new ones, up to their share: the next member in a list returns its surplus.
        Members that replace others therefore move no client of remaining members."""
        queues: dict[int, list[int]] = {}
        for slot in pick_evenly(sorted(self.inherited), len(self.inherited))[::-1]:
            if (heir := self.lists[slot][0]) in self.before:
                queues.setdefault(heir, []).append(slot)
        poor = [(self.surplus(member), member) for member in self.newcomers]
        rich = [(-self.surplus(heir), heir) for heir in queues]
        heapify(poor)
        heapify(rich)
        while poor and rich and poor[0][0] < 0 and rich[0][0] < 0:
            (lack, member), (most, heir) = poor[0], heappop(rich)
            if self.counts[heir] <= 1:
                continue
            slot = queues[heir].pop()
            self._prefer(slot, member, 0)
            self.reassigned.add(slot)
            heapreplace(poor, (lack + self.total, member))
            if queues[heir]:
                heappush(rich, (most + self.total, heir))

    def _take_slots(self, member: int) -> None:
        """Take slots for the member. A returning member first takes slots that others hold only while some member is
        away; it takes slots from their home members only if it would otherwise lack more than two, so a return moves no
        clients of other homes."""
        held: dict[int, list[int]] = {}
        for slot, members in enumerate(self.lists):
            if members[0] != member:
                held.setdefault(members[0], []).append(slot)
        for slots in held.values():
            slots[:] = [
                slot for *_, slot in sorted([(self.homes[slot], self.lists[slot][1:2], slot) for slot in slots])
            ]
        if member in self.returning:
            borrowed = {m: [slot for slot in slots if self.homes[slot] != m] for m, slots in held.items()}
            self._take_from(member, borrowed)
            if self.surplus(member) >= -2 * self.total:
                return
            held = {m: [slot for slot in slots if self.homes[slot] == m] for m, slots in held.items()}
        self.reassigned.update(self._take_from(member, held))

    def _take_from(self, member: int, held: Mapping[int, Sequence[int]]) -> list[int]:
        """Take slots from the members with the largest surplus, until one more would improve no share. Return them."""
        queues = {other: pick_evenly(slots, len(slots))[::-1] for other, slots in held.items()}
        surplus = {other: self.surplus(other) for other in queues}
        got = list[int]()
        while rich := [(surplus[other], -other) for other, queue in queues.items() if queue and self.counts[other] > 1]:
            most, other = max(rich)
            if self.counts[member] and most - self.surplus(member) <= self.total:
                break
            got.append(slot := queues[-other].pop())
            self._prefer(slot, member, 0)
            surplus[-other] -= self.total
        return got

    def _pass_on_slots(self, member: int) -> None:
        """Pass slots to the next member in their lists, which has them anyway while the member is down.
        The others keep their order."""
        heirs: dict[int, list[int]] = {}
        for slot, members in enumerate(self.lists):
            if members[0] == member and len(members) > 1:
                heirs.setdefault(members[1], []).append(slot)
        queues = {heir: pick_evenly(slots, len(slots))[::-1] for heir, slots in heirs.items()}
        while poor := [(self.surplus(heir), heir) for heir, queue in queues.items() if queue]:
            least, heir = min(poor)
            if self.counts[member] <= 1 or self.surplus(member) - least <= self.total:
                break
            self._prefer(queues[heir].pop(), heir, 0)

    def _enter_second(self, member: int) -> None:
        """Put the member into second ranks, so that shares are even while a list's first member does not serve."""
        groups: dict[int, dict[int, list[int]]] = {}
        for slot, members in enumerate(self.lists):
            if len(members) > 1 and members[0] != member:
                groups.setdefault(members[0], {}).setdefault(members[1], []).append(slot)
        for first, held in groups.items():
            total = self.total - self.after[first]
            queues = {m: pick_evenly(slots, len(slots))[::-1] for m, slots in held.items() if m != member}
            surplus = {
                m: (self.counts[m] + len(held.get(m, ()))) * total - self.after[m] * self.size
                for m in (*queues, member)
            }
            while rich := [(surplus[m], m) for m, queue in queues.items() if queue]:
                most, other = max(rich)
                if most - surplus[member] <= total:
                    break
                self._prefer(queues[other].pop(), member, 1)
                surplus[other] -= total
                surplus[member] += total

    def even_second(self) -> Steps[None]:
        """Even out the shares while one member does not serve. In lists of a member that is removed or lost weight, any
        member can get the second rank: only clients of the changed member move."""
        groups: dict[int, dict[int, list[int]]] = {}
        for slot in self.reassignable:
            members = self.lists[slot]
            if len(members) > 1 and members[0] not in self.reduced:
                groups.setdefault(members[0], {}).setdefault(members[1], []).append(slot)
        if not groups:
            return
        got: dict[int, defaultdict[int, int]] = {}
        for members in self.lists:
            if members[0] in groups and len(members) > 1:
                got.setdefault(members[0], defaultdict(int))[members[1]] += 1
        for first, held in groups.items():
            total = self.total - self.after[first]
            surplus = {
                m: (self.counts[m] + got[first][m]) * total - weight * self.size
                for m, weight in self.after.items()
                if m != first
            }
            while rich := [(surplus[m], m) for m, slots in held.items() if slots]:
                most, other = max(rich)
                least, poor = min([(lack, m) for m, lack in surplus.items()])
                if most - least <= total:
                    break
                self._prefer(held[other].pop(), poor, 1)
                surplus[other] -= total
                surplus[poor] += total
                yield
            yield

    def _insert_into_lists(self, member: int, more: int, rank: int) -> None:
        """Insert the member into an equal part of all lists with the same prefix. Equal distances ensure that no member
        loses more than another."""
        rows = sorted(
            [
                (members[: rank + 1], slot)
                for slot, members in enumerate(self.lists)
                if len(members) > rank and member not in members[: rank + 1]
            ]
        )
        part = 0.5
        for members, slot in rows:
            part += more / (self.total - sum([self.after[other] for other in members[:rank]]))
            if part >= 1:
                part -= 1
                self._prefer(slot, member, rank)

    def _lower_rank(self, member: int, rank: int) -> None:
        rows = sorted(
            [
                (members, slot)
                for slot, members in enumerate(self.lists)
                if len(members) > rank + 1 and members[rank] == member
            ]
        )
        part = 0.5
        for members, slot in rows:
            part += 1 - self.after[member] / self.before[member]
            if part >= 1:
                part -= 1
                self._prefer(slot, members[rank + 1], rank)

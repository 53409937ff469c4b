"""Slot tables hold their three promises for any sequence of changes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil, floor
from random import Random

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fairlead.model.slots import LARGEST, WORST_RATIO, apportion, assign_slots, choose_size, shortest_table, worst_ratio

weights = st.dictionaries(st.integers(0, 40), st.integers(1, 256), min_size=1, max_size=40)
equal = st.dictionaries(st.integers(0, 40), st.just(1), min_size=1, max_size=40)

SEQUENCES, CHANGES = 1000, 8
CHOICES: Sequence[Sequence[int]] = ([1], [1, 2, 3, 5, 10], range(1, 257))
"""Of weights, one for each sequence in turn: equal members, the weights people use, any."""


def moved(before: tuple[int, ...], after: tuple[int, ...], survivors: set[int]) -> int:
    """Slots of the wider table that led to a survivor and now lead elsewhere."""
    widened = before * (len(after) // len(before)) if before else ()
    return sum(old in survivors and old != new for old, new in zip(widened, after, strict=False))


def test_ten_equal_members_are_even_to_one_slot():
    counts = Counter(assign_slots((), dict.fromkeys(range(10), 1)))
    assert max(counts.values()) - min(counts.values()) == 1
    assert len(counts) == 10


def test_three_to_one_is_exact_in_the_smallest_table():
    assert Counter(assign_slots((), {0: 3, 1: 1})) == {0: 12, 1: 4}


def test_one_of_ten_removed_moves_no_slot_of_the_other_nine():
    before = assign_slots((), dict.fromkeys(range(10), 1))
    after = assign_slots(before, dict.fromkeys(range(9), 1))
    assert moved(before, after, set(range(9))) == 0
    assert max(Counter(after).values()) - min(Counter(after).values()) == 1


def test_nobody_leaves_no_table():
    assert assign_slots(assign_slots((), {0: 1}), {}) == ()


def test_a_grown_table_repeats_itself():
    before = assign_slots((), {0: 1, 1: 1})
    after = assign_slots(before, {0: 1, 1: 1, 2: 1})
    assert (len(before), len(after)) == (16, 32)
    assert moved(before, after, {0, 1}) == Counter(after)[2]


@given(weights)
def test_a_fresh_table_is_the_optimal_apportionment(members):
    table = assign_slots((), members)
    assert Counter(table) == Counter(apportion(members, len(table)))
    total = sum(members.values())
    assume(min(members.values()) * len(table) >= total)
    for member, count in apportion(members, len(table)).items():
        assert abs(count - members[member] * len(table) / total) < 1
    assert len(table) == LARGEST or worst_ratio(Counter(table), members) <= WORST_RATIO


@settings(max_examples=300)
@given(st.lists(weights | equal, min_size=2, max_size=12))
def test_any_sequence_stays_within_one_slot_of_the_optimum(states):
    table: tuple[int, ...] = ()
    for members in states:
        table = assign_slots(table, members)
        size, total = len(table), sum(members.values())
        assert set(table) == set(members), "somebody has no slot"
        if min(members.values()) * size < total:
            table = ()  # a due below one slot is rounded up to one: shares are coarse there
            continue
        for member, weight in members.items():
            due = weight * size / total
            assert int(due) - 1 <= Counter(table)[member] <= due + 1


@settings(max_examples=300, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.lists(weights | equal, max_size=6), weights | equal, st.data())
def test_a_member_that_goes_moves_nobody_else(history, members, data):
    table: tuple[int, ...] = ()
    for state in [*history, members]:
        table = assign_slots(table, state)
        assume(min(state.values()) * len(table) >= sum(state.values()))
    gone = data.draw(st.sampled_from(sorted(members)))
    rest = {member: weight for member, weight in members.items() if member != gone}
    if rest and choose_size(rest) <= len(table):
        assert moved(table, assign_slots(table, rest), set(rest)) == 0


@given(equal, st.integers(41, 50))
def test_an_equal_newcomer_takes_only_what_it_gets(members, newcomer):
    table = assign_slots((), members)
    after = assign_slots(table, {**members, newcomer: 1})
    assert moved(table, after, set(members)) == Counter(after)[newcomer]


@given(weights)
def test_the_shortest_table_is_the_same_table(members):
    table = assign_slots((), members)
    short = shortest_table(table)
    assert short * (len(table) // len(short)) == table


def test_equal_pairs_need_two_buckets():
    assert shortest_table(assign_slots((), {0: 5, 1: 5})) == (0, 1)


def test_nobody_is_left_without_a_slot():
    assert set(assign_slots((), {0: 256, 1: 256, 2: 1})) == {0, 1, 2}
    assert len(set(assign_slots((), {member: 1 + 255 * (member < 3) for member in range(200)}))) == 200


def test_members_that_come_one_by_one_are_as_even_as_those_that_come_at_once():
    table: tuple[int, ...] = ()
    for count in range(1, 65):
        members = dict.fromkeys(range(count), 1)
        table = assign_slots(table, members)
        assert sorted(Counter(table).values()) == sorted(apportion(members, len(table)).values())


def test_a_thousand_random_sequences_of_single_changes():
    """Members are added, removed, drained and re-weighted one at a time, and after each change

    * everybody has its due rounded down or up, or one slot less than that; equal members, never less;
    * a key moves from or to the member that changed, and between two others only where one of them would hold more
      than its due rounded up; with equal members, never;
    * of a member that goes or is drained, the keys move and no other key does, unless the table grows.
    """
    grown = 0
    for number in range(SEQUENCES):
        random, choices = Random(number), CHOICES[number % len(CHOICES)]
        members = {member: random.choice(choices) for member in range(random.randint(2, 12))}
        table = assign_slots((), members)
        for _ in range(CHANGES):
            members, who = change_one(random, members, choices)
            before, table = table, assign_slots(table, serving(members))
            grown += len(table) > len(before)
            check_change(before, table, serving(members), who)
    assert grown > SEQUENCES / 10, "tables that double are hardly tried"


def serving(members: Mapping[int, int]) -> dict[int, int]:
    return {member: weight for member, weight in members.items() if weight}


def change_one(random: Random, members: Mapping[int, int], choices: Sequence[int]) -> tuple[dict[int, int], int]:
    """All members after the change, drained ones with weight 0, and the one that changed. One at least serves."""
    who = random.choice(sorted(members))
    others = {member: weight for member, weight in members.items() if member != who}
    newcomer = max(members) + 1
    match random.choice(["add", "remove", "drain", "re-weight"]):
        case "remove" if serving(others):
            return others, who
        case "drain" if serving(others):
            return {**members, who: 0}, who
        case "re-weight":
            return {**members, who: random.choice(choices)}, who
    return {**members, newcomer: random.choice(choices)}, newcomer


def check_change(before: tuple[int, ...], after: tuple[int, ...], members: Mapping[int, int], who: int) -> None:
    widened = before * (len(after) // len(before))
    held, counts, total = Counter(widened), Counter(after), sum(members.values())
    assert len(after) == len(widened), "a table shrank, or is no multiple of what it was"
    assert set(counts) == set(members), "somebody has no slot"
    if min(members.values()) * len(after) < total:
        return  # a due below one slot is rounded up to one: shares are coarse there
    due = {member: Fraction(weight * len(after), total) for member, weight in members.items()}
    are_equal = len(set(members.values())) == 1
    for member, share in due.items():
        assert floor(share) - (not are_equal) <= counts[member] <= ceil(share)
    for old, new in set(zip(widened, after, strict=True)):
        if old != new and who not in (old, new):
            assert not are_equal
            assert held[old] > ceil(due[old])
    if who not in members and len(before) == len(after):
        assert moved(before, after, set(members)) == 0

"""Slots of L7 policies: what a process has, what commands change in it, and when another one is needed."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.dataplane.haproxy import Frontend
from fairlead.dataplane.haproxy_commands import MAX_POLICY_COMMANDS, SlotChange, commands, escaped, part_without_reload
from fairlead.dataplane.haproxy_policies import (
    FREE_RANK,
    MAX_PROCESS_SPARE_PATTERNS,
    MAX_SLOTS,
    MAX_SPARE_PATTERNS,
    Condition,
    DesiredPolicies,
    Policy,
    Slots,
    assign_all_policy_slots,
    is_loaded,
    map_text,
    patterns,
    policy_lines,
    spare_patterns,
    table,
)
from fairlead.dataplane.haproxy_policies import assign_policy_slots as arrange_wanted
from fairlead.dataplane.haproxy_words import MAX_WORDS, Unwritable
from fairlead.dataplane.rows import diff
from fairlead.model.documents.sizes import MAX_L7POLICIES, MAX_L7RULES

NEW = Slots(number=1, policies=(), ranks=())
FRONTEND = Frontend(name="f", process="net", connections=10, lines=(("mode", "http"), ("default_backend", "b")))


def arrange(before: Slots, policies: tuple[Policy, ...]) -> Slots:
    return arrange_wanted(before, DesiredPolicies(policies=policies))


def condition(value: str | None = "/a", sample: str = "path", **known: object) -> Condition:
    return Condition(samples=(sample,), matching=("-m", "beg"), value=value, **known)  # type: ignore[arg-type]


def policy(value: str = "/a", action: str = "deny", *more: Condition) -> Policy:
    return Policy(action=action, conditions=(condition(value), *more))


def in_force(slots: Slots) -> tuple[Policy, ...]:
    """What a request meets, in its order."""
    used = sorted((order, each) for order, each in zip(slots.ranks, slots.policies, strict=True) if order != FREE_RANK)
    return tuple(each for _, each in used)


def texts(after: tuple[Policy, ...], before: Slots, row: Frontend = FRONTEND) -> list[str] | None:
    slots = SlotChange(before={"f": before}, after={"f": arrange(before, after)})
    old, new = replace(row, policies=in_force(before)), replace(row, policies=after)
    told = commands(diff({new.key: new}, {old.key: old}), slots)
    return None if told is None else [command.text for command in told]


def test_a_new_process_has_as_many_free_slots_as_slots_in_use() -> None:
    other = policy("/c", "deny", condition(sample="hdr(a)"))
    slots = arrange(NEW, (policy("/a"), policy("/b"), other))
    assert [0, 1, 2, *[FREE_RANK] * 4] == list(slots.ranks)
    assert {slots.policies[0].shape: 4, other.shape: 3} == {
        each.shape: [one.shape for one in slots.policies].count(each.shape) for each in slots.policies
    }


def test_new_policy_value_is_written_to_a_free_slot_before_the_table() -> None:
    """So no request meets a rule of before with an action of after, and no policy is away for a moment."""
    slots = arrange(NEW, (policy("/a"),))
    identities = [identity for *_, identity in patterns(slots)]
    assert texts((policy("/b", "pool:x"),), slots) == [
        f"clear acl #{identities[1]}",
        f"add acl #{identities[1]} /b",
        "set map policies/f 1 pool:x",
        "set map policies/f now 999999:100001:999999",
    ]


def test_removed_policy_leaves_the_table_and_returns_by_the_table() -> None:
    both = policy("/a"), policy("/b")
    slots = arrange(NEW, both)
    assert texts(both[1:], slots) == ["set map policies/f now 999999:100001:999999:999999"]
    assert texts(both[::-1], slots) == ["set map policies/f now 101000:100001:999999:999999"]
    assert texts((), slots) == ["set map policies/f now 999999:999999:999999:999999"]
    gone = arrange(slots, both[1:])
    assert texts(both, gone) == ["set map policies/f now 100000:101001:999999:999999"]


@pytest.mark.parametrize(
    "other",
    [condition(sample="url"), condition(inverted=True), condition(None), replace(condition(), matching=("-i",))],
)
def test_condition_of_a_new_shape_needs_a_new_process_once(other: Condition) -> None:
    slots, changed = arrange(NEW, (policy(),)), (Policy(action="deny", conditions=(other,)),)
    assert texts(changed, slots) is None
    after = arrange(slots, changed)
    assert texts((policy(),), after) is not None, "the slot of before is there still"
    assert texts(changed, arrange(after, (policy(),))) is not None


def test_policy_value_that_the_socket_cannot_carry_needs_a_process() -> None:
    slots = arrange(NEW, (policy(),))
    assert texts((policy("/" + "a" * 9_000),), slots) is None
    assert texts((policy("/\ta"),), slots) is None


def test_other_frontend_changes_need_a_new_process() -> None:
    slots = arrange(NEW, (policy(),))
    change = diff(*[{row.key: row} for row in (replace(FRONTEND, policies=(policy("/b"),), connections=9), FRONTEND)])
    assert commands(change, SlotChange(before={"f": slots}, after={"f": arrange(slots, (policy("/b"),))})) is None
    assert texts((policy("/b"),), slots, replace(FRONTEND, backends=("b",))) is not None


def test_policy_change_is_not_sent_before_the_rest() -> None:
    before, after = replace(FRONTEND, policies=(policy(),)), replace(FRONTEND, policies=(policy("/b"),))
    assert not part_without_reload(diff({after.key: after}, {before.key: before}), {before.key: before})


def test_a_change_of_too_many_values_needs_a_process() -> None:
    """A new value takes three commands, and the table one."""
    most = (MAX_POLICY_COMMANDS - 1) // 3
    policies = tuple(policy(f"/{number}") for number in range(most + 1))
    slots = Slots(number=1, policies=policies * 2, ranks=(*range(most + 1), *[FREE_RANK] * (most + 1)))
    new = tuple(policy(f"/new/{number}", "pool:x") for number in range(most + 1))
    told = texts(new[:most], slots)
    assert told is not None
    assert 3 * most + 1 == len(told) <= MAX_POLICY_COMMANDS
    assert texts(new, slots) is None


def test_policy_values_of_all_listeners_share_one_limit() -> None:
    """Each of them alone would need no process."""
    number = MAX_POLICY_COMMANDS // 3 // 2 + 1
    slots = {
        name: Slots(
            number=at,
            policies=tuple(policy(f"/{each}") for each in range(number)) * 2,
            ranks=(*range(number), *[FREE_RANK] * number),
        )
        for at, name in enumerate(("f", "g"))
    }
    wanted = tuple(policy(f"/new/{each}", "pool:x") for each in range(number))
    rows = {name: replace(FRONTEND, name=name) for name in slots}
    arranged = SlotChange(before=slots, after={name: arrange(its, wanted) for name, its in slots.items()})
    change = diff(
        {row.key: replace(row, policies=wanted) for row in rows.values()},
        {row.key: replace(row, policies=in_force(slots[name])) for name, row in rows.items()},
    )
    assert commands(change, arranged) is None
    first = replace(change, updates={key: each for key, each in change.updates.items() if key[1] == "f"})
    assert commands(first, arranged) is not None


def test_the_slot_that_has_been_free_longest_is_used_first() -> None:
    """Requests that still evaluate the policies of before have most probably ended by then."""
    slots = Slots(number=1, policies=(policy(),) * 4, ranks=(FREE_RANK,) * 4)
    used = []
    for number in range(8):
        slots = arrange(slots, (policy(f"/{number}"),))
        used.append(slots.ranks.index(0))
    assert used == [0, 1, 2, 3, 0, 1, 2, 3]
    slots = replace(slots, freed=(2, 1))
    assert list(slots.free) == [0, 2, 1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/a;b", "/a\\;b"),
        ("a b", "a\\ b"),
        ("<<", "\\<\\<"),
        ("\\", "\\\\"),
        ("'\"#", "\\'\\\"\\#"),
        ("\u00e9", "\u00e9"),
    ],
)
def test_socket_argument_is_escaped(text: str, said: str) -> None:
    assert escaped(text) == said


def test_each_printable_character_is_escaped_independently() -> None:
    """Also the last one of a text, and all at once."""
    printable = "".join(map(chr, range(33, 127)))
    assert escaped(printable) == "".join(map(escaped, printable))
    plain = {char for char in printable if escaped(char) == char}
    assert plain == {*"_./:[]=@,!+-"} | {char for char in printable if char.isalnum()}
    assert all(escaped(char) == f"\\{char}" for char in {*printable, " "} - plain)


def test_frontend_numbers_are_unique_and_reused() -> None:
    some, none = DesiredPolicies(policies=(policy(),)), DesiredPolicies()
    first = assign_all_policy_slots({}, {"a": some, "b": none, "c": some})
    assert {"a": 1, "c": 2} == {key: each.number for key, each in first.items()}
    wanted = {"b": some, "c": none, "d": some}
    later = assign_all_policy_slots(first, wanted)
    assert {"b": 1, "c": 2, "d": 3} == {key: each.number for key, each in later.items()}
    assert assign_all_policy_slots(later, wanted) == later


def test_prepared_shapes_need_no_new_process() -> None:
    other = policy("/b", "deny", condition(sample="url"))
    slots = arrange_wanted(NEW, DesiredPolicies(policies=(policy(),), prepared=(other, policy("/c"))))
    assert 5 == len(slots.policies)
    assert texts((policy("/d"), replace(other, action="pool:x")), slots) is not None


def test_policy_action_with_a_space_is_rejected() -> None:
    with pytest.raises(Unwritable):
        map_text(arrange(NEW, (policy("/a", "location-302:http://a/ b"),)))


def test_policy_slots_are_bounded_over_any_changes() -> None:
    slots, many = NEW, tuple(policy(f"/{number}") for number in range(MAX_L7POLICIES))
    for number in range(20):
        some = tuple(
            policy("/a", "deny", *[condition(sample=f"hdr({number})")] * each) for each in range(MAX_L7POLICIES // 2)
        )
        slots = arrange(arrange(slots, some), many)
        assert len(slots.policies) <= MAX_SLOTS
        assert sum(each.patterns for each in slots.policies) <= 2 * MAX_L7POLICIES + MAX_SPARE_PATTERNS
        assert len(table(slots)) < 2_000


def test_largest_listener_fits_the_line_and_identity_limits() -> None:
    several = tuple(Condition(samples=("a", "b"), matching=("-m", "str"), value=f"/{at}") for at in range(MAX_L7RULES))
    slots = arrange(
        replace(NEW, number=2), tuple(Policy(action="deny", conditions=several) for _ in range(MAX_L7POLICIES))
    )
    assert max(map(len, policy_lines("f", slots))) <= MAX_WORDS
    found = [identity for *_, identity in patterns(slots)]
    assert (len(set(found)), found[-1] < 3 * 2**16) == (2 * MAX_L7RULES * MAX_L7POLICIES + MAX_SPARE_PATTERNS, True)


@given(st.lists(st.lists(st.sampled_from(range(100)), max_size=8), min_size=50, max_size=100))
def test_many_policy_changes_need_few_new_processes(states: list[list[int]]) -> None:
    """Of two shapes, with at most eight policies each: each time more free slots, until there are enough."""
    slots = NEW
    for numbers in states:
        shapes = (condition(), condition(inverted=True))
        slots = arrange(slots, tuple(Policy(action=f"pool:{at}", conditions=(shapes[at % 2],)) for at in numbers))
    assert slots.build <= 10


def test_alternating_policy_changes_stop_needing_new_processes() -> None:
    """From eight policies to five others and back: thirteen slots are needed, more than twice what the five use."""
    slots = NEW
    for number in range(12):
        few = tuple(policy(f"/{number}/{at}") for at in range(5))
        slots = arrange(slots, few)
        before = arrange(slots, (*few, *(policy(f"/{number}/{at}") for at in range(5, 8))))
        slots = before
    assert slots.build <= 4


def test_free_slots_of_a_process_are_bounded() -> None:
    """All listeners together, and large shapes leave room for small ones."""
    large = Policy(action="deny", conditions=tuple(condition(f"/{at}") for at in range(MAX_L7RULES)))
    wanted = DesiredPolicies(
        policies=tuple(replace(large, action=f"pool:{at}") for at in range(10)),
        prepared=(policy("/a", "deny", condition(sample="url")),),
    )
    found = assign_all_policy_slots({}, {f"f{number}": wanted for number in range(20)})
    assert sum(map(spare_patterns, found.values())) <= MAX_PROCESS_SPARE_PATTERNS
    first = found["f0"]
    assert [each.patterns for each in first.policies].count(2) == 2
    later = assign_all_policy_slots(
        found, {f"f{number}": replace(wanted, policies=wanted.policies[1:]) for number in range(20)}
    )
    assert sum(map(spare_patterns, later.values())) <= MAX_PROCESS_SPARE_PATTERNS + 20 * large.patterns
    assert {each.build for each in later.values()} == {1}


@cache
def choices() -> tuple[Policy, ...]:
    return tuple(
        policy(value, action, *more)
        for value in ("/a", "/b", "/c")
        for action in ("deny", "pool:p")
        for more in ((), (condition(sample="url"),), (condition(inverted=True),))
    )


@given(st.lists(st.lists(st.sampled_from(choices()), max_size=6).map(tuple), max_size=12))
def test_slots_hold_the_wanted_policies_and_used_slots_stay(states: list[tuple[Policy, ...]]) -> None:
    slots = NEW
    for wanted in states:
        after = arrange(slots, wanted)
        assert in_force(after) == wanted
        assert arrange(after, wanted) == after
        if is_loaded(slots, after):
            used = [at for at, order in enumerate(slots.ranks) if order != FREE_RANK]
            assert [slots.policies[at] for at in used] == [after.policies[at] for at in used]
            assert [each.shape for each in slots.policies] == [each.shape for each in after.policies]
        slots = after

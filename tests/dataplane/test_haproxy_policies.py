"""Slots of L7 policies: what a process has, what commands change in it, and when another one is needed."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.dataplane.haproxy import Frontend
from fairlead.dataplane.haproxy_commands import MAX_POLICY_COMMANDS, Arranged, commands, escaped, tellable
from fairlead.dataplane.haproxy_policies import (
    FREE,
    MAX_PROCESS_SPARE_PATTERNS,
    MAX_SLOTS,
    MAX_SPARE_PATTERNS,
    Condition,
    Policy,
    Slots,
    Wanted,
    arrange_all,
    is_loaded,
    map_text,
    patterns,
    policy_lines,
    spare_patterns,
    table,
)
from fairlead.dataplane.haproxy_policies import arrange as arrange_wanted
from fairlead.dataplane.haproxy_words import MOST_WORDS, Unwritable
from fairlead.dataplane.rows import diff
from fairlead.model.documents.sizes import POLICIES, RULES

NEW = Slots(number=1, policies=(), ranks=())
FRONTEND = Frontend(name="f", process="net", connections=10, lines=(("mode", "http"), ("default_backend", "b")))


def arrange(before: Slots, policies: tuple[Policy, ...]) -> Slots:
    return arrange_wanted(before, Wanted(policies=policies))


def condition(value: str | None = "/a", sample: str = "path", **known: object) -> Condition:
    return Condition(samples=(sample,), matching=("-m", "beg"), value=value, **known)  # type: ignore[arg-type]


def policy(value: str = "/a", action: str = "deny", *more: Condition) -> Policy:
    return Policy(action=action, conditions=(condition(value), *more))


def in_force(slots: Slots) -> tuple[Policy, ...]:
    """What a request meets, in its order."""
    used = sorted((order, each) for order, each in zip(slots.ranks, slots.policies, strict=True) if order != FREE)
    return tuple(each for _, each in used)


def texts(after: tuple[Policy, ...], before: Slots, row: Frontend = FRONTEND) -> list[str] | None:
    slots = Arranged(before={"f": before}, after={"f": arrange(before, after)})
    old, new = replace(row, policies=in_force(before)), replace(row, policies=after)
    told = commands(diff({new.key: new}, {old.key: old}), slots)
    return None if told is None else [command.text for command in told]


def test_a_new_process_has_as_many_free_slots_as_slots_in_use() -> None:
    other = policy("/c", "deny", condition(sample="hdr(a)"))
    slots = arrange(NEW, (policy("/a"), policy("/b"), other))
    assert [0, 1, 2, *[FREE] * 4] == list(slots.ranks)
    assert {slots.policies[0].shape: 4, other.shape: 3} == {
        each.shape: [one.shape for one in slots.policies].count(each.shape) for each in slots.policies
    }


def test_another_value_is_written_into_a_free_slot_before_the_table_names_it() -> None:
    """So no request meets a rule of before with an action of after, and no policy is away for a moment."""
    slots = arrange(NEW, (policy("/a"),))
    identities = [identity for *_, identity in patterns(slots)]
    assert texts((policy("/b", "pool:x"),), slots) == [
        f"clear acl #{identities[1]}",
        f"add acl #{identities[1]} /b",
        "set map policies/f 1 pool:x",
        "set map policies/f now 999999:100001:999999",
    ]


def test_a_policy_that_goes_is_out_of_the_table_and_comes_back_by_it() -> None:
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
def test_a_condition_of_another_shape_needs_a_process_once(other: Condition) -> None:
    slots, changed = arrange(NEW, (policy(),)), (Policy(action="deny", conditions=(other,)),)
    assert texts(changed, slots) is None
    after = arrange(slots, changed)
    assert texts((policy(),), after) is not None, "the slot of before is there still"
    assert texts(changed, arrange(after, (policy(),))) is not None


def test_what_the_socket_cannot_carry_needs_a_process() -> None:
    slots = arrange(NEW, (policy(),))
    assert texts((policy("/" + "a" * 9_000),), slots) is None
    assert texts((policy("/\ta"),), slots) is None


def test_the_rest_of_a_frontend_needs_a_process() -> None:
    slots = arrange(NEW, (policy(),))
    change = diff(*[{row.key: row} for row in (replace(FRONTEND, policies=(policy("/b"),), connections=9), FRONTEND)])
    assert commands(change, Arranged(before={"f": slots}, after={"f": arrange(slots, (policy("/b"),))})) is None
    assert texts((policy("/b"),), slots, replace(FRONTEND, backends=("b",))) is not None


def test_policies_are_not_told_before_the_rest() -> None:
    before, after = replace(FRONTEND, policies=(policy(),)), replace(FRONTEND, policies=(policy("/b"),))
    assert not tellable(diff({after.key: after}, {before.key: before}), {before.key: before})


def test_a_change_of_too_many_values_needs_a_process() -> None:
    """A new value takes three commands, and the table one."""
    most = (MAX_POLICY_COMMANDS - 1) // 3
    policies = tuple(policy(f"/{number}") for number in range(most + 1))
    slots = Slots(number=1, policies=policies * 2, ranks=(*range(most + 1), *[FREE] * (most + 1)))
    new = tuple(policy(f"/new/{number}", "pool:x") for number in range(most + 1))
    told = texts(new[:most], slots)
    assert told is not None
    assert 3 * most + 1 == len(told) <= MAX_POLICY_COMMANDS
    assert texts(new, slots) is None


def test_values_of_all_listeners_count_together() -> None:
    """Each of them alone would need no process."""
    number = MAX_POLICY_COMMANDS // 3 // 2 + 1
    slots = {
        name: Slots(
            number=at,
            policies=tuple(policy(f"/{each}") for each in range(number)) * 2,
            ranks=(*range(number), *[FREE] * number),
        )
        for at, name in enumerate(("f", "g"))
    }
    wanted = tuple(policy(f"/new/{each}", "pool:x") for each in range(number))
    rows = {name: replace(FRONTEND, name=name) for name in slots}
    arranged = Arranged(before=slots, after={name: arrange(its, wanted) for name, its in slots.items()})
    change = diff(
        {row.key: replace(row, policies=wanted) for row in rows.values()},
        {row.key: replace(row, policies=in_force(slots[name])) for name, row in rows.items()},
    )
    assert commands(change, arranged) is None
    first = replace(change, updates={key: each for key, each in change.updates.items() if key[1] == "f"})
    assert commands(first, arranged) is not None


def test_the_slot_that_has_been_free_longest_is_used_first() -> None:
    """Requests that still evaluate the policies of before have most probably ended by then."""
    slots = Slots(number=1, policies=(policy(),) * 4, ranks=(FREE,) * 4)
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
def test_an_argument_is_one_for_the_socket(text: str, said: str) -> None:
    assert escaped(text) == said


def test_each_character_is_escaped_by_itself() -> None:
    """Also the last one of a text, and all at once."""
    printable = "".join(map(chr, range(33, 127)))
    assert escaped(printable) == "".join(map(escaped, printable))
    plain = {char for char in printable if escaped(char) == char}
    assert plain == {*"_./:[]=@,!+-"} | {char for char in printable if char.isalnum()}
    assert all(escaped(char) == f"\\{char}" for char in {*printable, " "} - plain)


def test_frontends_have_numbers_of_their_own() -> None:
    some, none = Wanted(policies=(policy(),)), Wanted()
    first = arrange_all({}, {"a": some, "b": none, "c": some})
    assert {"a": 1, "c": 2} == {key: each.number for key, each in first.items()}
    wanted = {"b": some, "c": none, "d": some}
    later = arrange_all(first, wanted)
    assert {"b": 1, "c": 2, "d": 3} == {key: each.number for key, each in later.items()}
    assert arrange_all(later, wanted) == later


def test_shapes_that_are_prepared_need_no_process() -> None:
    other = policy("/b", "deny", condition(sample="url"))
    slots = arrange_wanted(NEW, Wanted(policies=(policy(),), prepared=(other, policy("/c"))))
    assert 5 == len(slots.policies)
    assert texts((policy("/d"), replace(other, action="pool:x")), slots) is not None


def test_an_action_is_one_word() -> None:
    with pytest.raises(Unwritable):
        map_text(arrange(NEW, (policy("/a", "location-302:http://a/ b"),)))


def test_slots_are_bounded_whatever_comes_and_goes() -> None:
    slots, many = NEW, tuple(policy(f"/{number}") for number in range(POLICIES))
    for number in range(20):
        some = tuple(
            policy("/a", "deny", *[condition(sample=f"hdr({number})")] * each) for each in range(POLICIES // 2)
        )
        slots = arrange(arrange(slots, some), many)
        assert len(slots.policies) <= MAX_SLOTS
        assert sum(each.patterns for each in slots.policies) <= 2 * POLICIES + MAX_SPARE_PATTERNS
        assert len(table(slots)) < 2_000


def test_the_largest_listener_fits_into_lines_and_identities() -> None:
    several = tuple(Condition(samples=("a", "b"), matching=("-m", "str"), value=f"/{at}") for at in range(RULES))
    slots = arrange(replace(NEW, number=2), tuple(Policy(action="deny", conditions=several) for _ in range(POLICIES)))
    assert max(map(len, policy_lines("f", slots))) <= MOST_WORDS
    found = [identity for *_, identity in patterns(slots)]
    assert (len(set(found)), found[-1] < 3 * 2**16) == (2 * RULES * POLICIES + MAX_SPARE_PATTERNS, True)


@given(st.lists(st.lists(st.sampled_from(range(100)), max_size=8), min_size=50, max_size=100))
def test_of_many_changes_few_are_processes(states: list[list[int]]) -> None:
    """Of two shapes, with at most eight policies each: each time more free slots, until there are enough."""
    slots = NEW
    for numbers in states:
        shapes = (condition(), condition(inverted=True))
        slots = arrange(slots, tuple(Policy(action=f"pool:{at}", conditions=(shapes[at % 2],)) for at in numbers))
    assert slots.build <= 10


def test_changes_that_alternate_end_in_no_new_process() -> None:
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
    large = Policy(action="deny", conditions=tuple(condition(f"/{at}") for at in range(RULES)))
    wanted = Wanted(
        policies=tuple(replace(large, action=f"pool:{at}") for at in range(10)),
        prepared=(policy("/a", "deny", condition(sample="url")),),
    )
    found = arrange_all({}, {f"f{number}": wanted for number in range(20)})
    assert sum(map(spare_patterns, found.values())) <= MAX_PROCESS_SPARE_PATTERNS
    first = found["f0"]
    assert [each.patterns for each in first.policies].count(2) == 2
    later = arrange_all(found, {f"f{number}": replace(wanted, policies=wanted.policies[1:]) for number in range(20)})
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
def test_whatever_changes_the_slots_have_it_and_those_in_use_stay(states: list[tuple[Policy, ...]]) -> None:
    slots = NEW
    for wanted in states:
        after = arrange(slots, wanted)
        assert in_force(after) == wanted
        assert arrange(after, wanted) == after
        if is_loaded(slots, after):
            used = [at for at, order in enumerate(slots.ranks) if order != FREE]
            assert [slots.policies[at] for at in used] == [after.policies[at] for at in used]
            assert [each.shape for each in slots.policies] == [each.shape for each in after.policies]
        slots = after

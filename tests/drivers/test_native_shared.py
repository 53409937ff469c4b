"""Ids of contents shared by services: one id per distinct content."""

import random

from fairlead.dataplane.rows import Key
from fairlead.drivers.native.shared_values import Plan, SharedValues


def _do(shared: SharedValues[str], wanted: dict[Key, str | None]) -> Plan[str]:
    plan = shared.plan(wanted)
    shared.commit(plan)
    return plan


def test_equal_contents_share_one_number() -> None:
    shared = SharedValues[str]()
    assert _do(shared, {("a",): "x", ("b",): "x", ("c",): "y"}).changes == {1: (None, "x"), 2: (None, "y")}
    assert _do(shared, {("d",): "y"}).changes == {}
    assert shared.numbers == {"x": 1, "y": 2}


def test_number_is_released_with_its_last_holder() -> None:
    shared = SharedValues[str]()
    _do(shared, {("a",): "x", ("b",): "x"})
    assert _do(shared, {("a",): None}).changes == {}
    assert _do(shared, {("b",): None}).changes == {1: ("x", None)}
    assert _do(shared, {("c",): "z"}).numbers == {"z": 1}


def test_content_changed_by_all_holders_is_changed_in_place() -> None:
    shared = SharedValues[str]()
    _do(shared, {("a",): "x", ("b",): "x"})
    assert _do(shared, {("a",): "y", ("b",): "y"}).changes == {1: ("x", "y")}
    assert _do(shared, {("a",): "z"}).changes == {2: (None, "z")}, "the other one stays"
    assert _do(shared, {("a",): "y"}).changes == {2: ("z", None)}, "to what there is"


def test_random_changes_keep_one_number_per_content() -> None:
    chance, shared, holds = random.Random(3), SharedValues[str](), dict[Key, str]()
    held = dict[int, str]()
    for _ in range(3_000):
        wanted: dict[Key, str | None] = {
            (str(chance.randrange(12)),): chance.choice(["a", "b", "c", "d", "e", None]) for _ in range(3)
        }
        plan = _do(shared, wanted)
        for number, (before, after) in plan.changes.items():
            assert held.get(number) == before
            held.pop(number, None)
            held |= {number: after} if after is not None else {}
        holds = {key: content for key, content in {**holds, **wanted}.items() if content is not None}
        assert held == {number: content for content, number in shared.numbers.items()}
        assert set(held.values()) == set(holds.values())
        assert max(held, default=0) <= 12

"""The checker of histories: it accepts possible histories and finds impossible ones."""

from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.linearizability import UNKNOWN, Operation, contradictions


def register(state: Hashable, operation: Operation) -> tuple[Hashable, ...]:
    """Specification of a register with writes and reads."""
    if operation.action == "write":
        return (operation.value,)
    return (state,) if state == operation.value else ()


def of(*operations: tuple[str, int, float, float]) -> list[str]:
    """Check a history of (action, value, request time, response time)."""
    history = [Operation(key="x", action=a, value=v, called_at=b, returned_at=e) for a, v, b, e in operations]
    return contradictions(history, 0, register)


@pytest.mark.parametrize(
    "history",
    [
        [],
        [("read", 0, 0, 1)],
        [("write", 1, 0, 1), ("read", 1, 2, 3)],
        [("write", 1, 0, 9), ("read", 0, 1, 2), ("read", 1, 3, 4)],  # the write took effect between the reads
        [("write", 1, 0, 9), ("write", 2, 0, 9), ("read", 2, 10, 11), ("read", 2, 12, 13)],
        [("write", 1, 0, UNKNOWN), ("read", 0, 1, 2)],  # never, or later
        [("write", 1, 0, UNKNOWN), ("read", 0, 1, 2), ("read", 1, 3, 4)],
        [("write", 1, 0, UNKNOWN), ("write", 2, 5, 6), ("read", 2, 7, 8), ("read", 1, 9, 10)],
    ],
)
def test_possible_history_is_accepted(history: list[tuple[str, int, float, float]]):
    assert of(*history) == []


@pytest.mark.parametrize(
    "history",
    [
        [("read", 1, 0, 1)],
        [("write", 1, 0, 1), ("read", 0, 2, 3)],  # stale read
        [("write", 1, 0, 9), ("read", 1, 1, 2), ("read", 0, 3, 4)],  # the value went back
        [("write", 1, 0, 1), ("write", 2, 2, 3), ("read", 1, 4, 5)],  # lost update
        [("write", 1, 0, UNKNOWN), ("read", 1, 1, 2), ("read", 0, 3, 4)],
        [("write", 1, 0, 9), ("write", 2, 0, 9), ("read", 1, 10, 11), ("read", 2, 12, 13)],
        [("write", 1, 5, UNKNOWN), ("read", 1, 0, 1)],  # read before the write's request
    ],
)
def test_impossible_history_is_found(history: list[tuple[str, int, float, float]]):
    assert of(*history) == ["x"]


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.floats(0, 1)), max_size=30),
    st.randoms(use_true_random=False),
)
def test_sequential_history_is_accepted_with_any_overlap(drawn, random):  # type: ignore[no-untyped-def]
    """Sequential histories are accepted with any overlap: each operation takes effect between its request and its
    response."""
    state, history = 0, []
    for moment, (writes, before, after) in enumerate(drawn):
        state = moment + 1 if writes else state
        answered = UNKNOWN if writes and random.random() < 0.2 else moment + 5 * after
        history.append(("write" if writes else "read", state, moment - 5 * before, answered))
    assert of(*history) == []


def test_keys_of_a_history_are_checked_independently():
    right = Operation(key="a", action="read", value=0, called_at=0, returned_at=1)
    wrong = Operation(key="b", action="read", value=7, called_at=0, returned_at=1)
    assert contradictions([wrong, right], 0, register) == ["b"]

"""Transactions of any size fit etcd's limit on operations: no list, including nested ones, exceeds it."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.store.etcd_requests import MAX_OPERATIONS, has_room, nest, put
from fairlead.store.interface import TooLarge

LARGEST = 42 * 43 * 43


def depth(operations: Sequence[Any], beside: int = 0) -> int:
    """Return etcd's count of operations: the longest list of each level, summed over levels."""
    below = max((depth(each.txn.success) for each in operations if each.WhichOneof("request") == "txn"), default=0)
    return max(len(operations), beside) + below


def leaves(operations: Sequence[Any]) -> Iterator[bytes]:
    for each in operations:
        if each.WhichOneof("request") == "txn":
            yield from leaves(each.txn.success)
        else:
            yield each.put.key


@given(st.integers(0, 140), st.integers(0, 3_000))
def test_nested_transaction_keeps_order_and_the_etcd_operation_limit(beside: int, number: int):
    keys = [b"%d" % each for each in range(number)]
    operations = [put(key, b"") for key in keys]
    if not has_room(beside, number):
        with pytest.raises(TooLarge, match="split it"):
            nest(operations, beside)
        return
    done = nest(operations, beside)
    assert depth(done, beside) <= MAX_OPERATIONS
    assert list(leaves(done)) == keys


@pytest.mark.parametrize(
    ("beside", "most"), [(0, LARGEST), (42, LARGEST), (105, 105 * 11 * 12), (125, 250), (127, 128), (128, 128)]
)
def test_transaction_capacity_shrinks_with_the_number_of_comparisons(beside: int, most: int):
    assert has_room(beside, most)
    assert not has_room(beside, most + 1)
    assert not has_room(MAX_OPERATIONS + 1, 1)

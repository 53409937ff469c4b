"""The bound on how long one piece of work may hold an event loop, for each front end and each part of an agent."""

from collections.abc import Mapping
from pathlib import Path

from harness.rules import TESTS

MAX_STEPS: Mapping[str, int] = {
    "api/lxd": 200_000,
    "api": 150_000,
    "node": 150_000,
    "server": 150_000,
    "drivers": 150_000,
    "reconciler": 150_000,
    "store": 150_000,
}
"""Steps (harness.step_counter) between two returns to the event loop, by the folder of the tests. 150,000 steps are
about 30 ms, a little more than what the largest accepted request takes today; the product promises 50 ms."""


def max_steps_of(test: Path) -> int | None:
    """The bound of the innermost folder that has one; None where no event loop of the product is tested."""
    for folder in test.relative_to(TESTS).parents:
        if (bound := MAX_STEPS.get(str(folder))) is not None:
            return bound
    return None

"""Limit on the steps between two returns to the event loop, for each front end and each part of an agent."""

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
"""Steps (harness.step_counter) between two returns to the event loop, by folder of the tests.

150,000 steps take about 30 ms, slightly more than the largest accepted request takes; the documented limit is 50 ms.
"""


def max_steps_of(test: Path) -> int | None:
    """Limit of the innermost folder that has one, or None for tests without an event loop of the product."""
    for folder in test.relative_to(TESTS).parents:
        if (bound := MAX_STEPS.get(str(folder))) is not None:
            return bound
    return None

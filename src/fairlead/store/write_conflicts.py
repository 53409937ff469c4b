"""Back-off after a write conflict: exponential with a bound and jitter.

Without jitter, two servers that write continuously would keep the same distance, and the same one would always lose.
"""

import random

MAX_PAUSE = 0.05
"""Seconds. Other requests of this server wait during it."""


def backoff(lost: int) -> float:
    """Return the seconds to wait after this many lost races."""
    return random.uniform(0, min(0.001 * 2 ** min(lost, 10), MAX_PAUSE))  # noqa: S311 - jitter needs no secrecy

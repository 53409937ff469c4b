"""How long who has lost a race to write stays away: each time longer, within a bound, and by chance.

Two servers that write without a rest would else be as far apart each time, and the same one would lose each time.
"""

import random

LONGEST_PAUSE = 0.05
"""Seconds: others of this server wait meanwhile."""


def pause(lost: int) -> float:
    """Seconds, after so many lost races."""
    return random.uniform(0, min(0.001 * 2 ** min(lost, 10), LONGEST_PAUSE))  # noqa: S311 - nobody gains by guessing it

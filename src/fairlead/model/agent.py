"""The agents of nodes, as servers hear them: the values of the fact `AGENTS` (`model/facts.py`).

An agent says again and again that it lives, to every server. One that was silent for three of these heartbeats is
*stale*: what it said last holds, and is nobody's word any more (`model/covering.py`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

SILENCES = 3
"""Heartbeats that an agent may leave out before it is stale."""
SHORTEST_HEARTBEAT, LONGEST_HEARTBEAT = 100, 60_000
"""Milliseconds."""
MOST_UNAPPLIED = 1_000
"""That an agent tells of at once: the first ones, by their owners."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unapplied:
    """What a node could not apply."""

    dataplane: str
    owner: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    name: str
    """Of its chassis."""
    version: str = ""
    host: str = ""
    """As the machine calls itself."""
    since: datetime
    """When it began."""
    heartbeat: float
    """Seconds."""
    heard: bool = True
    """False: it is stale."""
    away: bool = False
    """Whether it has hung up and not come again, as one that was killed: what it said of its proxies is nobody's word
    any more. All else that it said holds until it is stale."""
    told: bool = False
    """Whether it has told this server all that it sees, when it was known what its node has."""
    unapplied: tuple[Unapplied, ...] = ()


def find_stale(
    silences: Mapping[str, float], heartbeats: Mapping[str, float], stale: Collection[str]
) -> frozenset[str]:
    """Who is silent for too long, given for how many seconds each is silent and how often each speaks.

    If more than half of those that were heard until now fall silent together, it is the server that hears nobody: none
    of them is taken for stale then. So of two one may be.
    """
    silent = frozenset(name for name, seconds in silences.items() if seconds > SILENCES * heartbeats[name])
    fresh = silent - frozenset(stale)
    lived = len(silences) - len(silent) + len(fresh)
    return silent if 2 * len(fresh) <= lived or lived == 1 else silent - fresh

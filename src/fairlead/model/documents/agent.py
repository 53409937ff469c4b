"""Agents of nodes as a server sees them: the values of the fact `AGENTS` (`model/registry/facts.py`).

An agent sends heartbeats to every server. An agent that misses three of them is *stale*: its last reports remain valid
until another node probes in its place (`model/queries/delegated_probing.py`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

MAX_MISSED_HEARTBEATS = 3
"""Heartbeats that an agent may miss before it is stale."""
MIN_HEARTBEAT_MS, MAX_HEARTBEAT_MS = 100, 60_000
"""Bounds of the heartbeat interval, in milliseconds."""
MAX_REPORTED_FAILURES = 1_000
"""Maximum failed owners in one report; the first ones, sorted by owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyFailure:
    """Owner that a node failed to apply, with its error."""

    dataplane: str
    owner: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    name: str
    """Name of the agent's chassis."""
    version: str = ""
    host: str = ""
    """Host name that the machine reports."""
    since: datetime
    """Start time of the agent's process."""
    heartbeat: float
    """Heartbeat interval in seconds."""
    is_responsive: bool = True
    """False if the agent is stale."""
    is_disconnected: bool = False
    """Whether the agent closed its connection and has not reconnected, as a killed agent does. Its reports of proxies
    are then void; all other reports are valid until the agent is stale."""
    has_full_report: bool = False
    """Whether the agent has sent this server a complete report since the server knows the node's ports."""
    apply_failures: tuple[ApplyFailure, ...] = ()


def find_stale(
    silences: Mapping[str, float], heartbeats: Mapping[str, float], stale: Collection[str]
) -> frozenset[str]:
    """Return the stale agents, given the seconds since the last heartbeat and the heartbeat interval of each agent.

    If more than half of the agents that were responsive become unresponsive together, the server's own connectivity is
    the likely cause, so none of them is marked stale. A single agent, or
    one of two, may be marked.
    """
    silent = frozenset(name for name, seconds in silences.items() if seconds > MAX_MISSED_HEARTBEATS * heartbeats[name])
    fresh = silent - frozenset(stale)
    lived = len(silences) - len(silent) + len(fresh)
    return silent if 2 * len(fresh) <= lived or lived == 1 else silent - fresh

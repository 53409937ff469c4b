"""What agents count of their own work, for monitoring: declared once, for the reports of agents and for the metrics.

Each number begins at 0 with its agent. A name in a report never changes its meaning: agents and servers may be of
different releases, and leave out names that they do not know.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCounter:
    name: str
    """In a report."""
    metric: str
    """Without the ending of counters."""
    meaning: str
    """Of the metric."""
    reason: str = ""
    """The value of the label `reason`; empty if the metric does not have it."""
    is_gauge: bool = False
    """Whether it is a present number; otherwise it only grows."""


_FLUSHES = "fairlead_agent_conntrack_flushes"
_FLUSHED = "Flushes of tracked connections: of members that are gone, or of attempts that no member answered."
_DISCARDED = "fairlead_agent_probes_discarded"
_DISCARD = "Probes without an answer that do not count against the member, because its node or agent had no time."
FLUSHED_MEMBERS = AgentCounter(name="flushed_members", metric=_FLUSHES, meaning=_FLUSHED, reason="member")
"""Of members that are down, disabled or removed."""
FLUSHED_ATTEMPTS = AgentCounter(name="flushed_attempts", metric=_FLUSHES, meaning=_FLUSHED, reason="unanswered")
OWNERS_LEFT_OUT = AgentCounter(
    name="owners_left_out",
    metric="fairlead_agent_haproxy_owners_left_out",
    meaning="Load balancers that are left out of configurations because HAProxy does not load them.",
    is_gauge=True,
)
MEMORY_LIMIT_REACHED = AgentCounter(
    name="memory_limit_reached",
    metric="fairlead_agent_haproxy_memory_limit_reached",
    meaning="Times that an HAProxy began to refuse connections because it had all of agent.haproxy_memory_limit.",
)
DISCARDED_STARVED = AgentCounter(name="discarded_starved", metric=_DISCARDED, meaning=_DISCARD, reason="starved")
"""This agent was not given the processor."""
DISCARDED_BUSY = AgentCounter(name="discarded_busy", metric=_DISCARDED, meaning=_DISCARD, reason="busy")
"""Members that answer took longer than usual too."""
STARVED = AgentCounter(
    name="starved",
    metric="fairlead_agent_starved",
    meaning="1 while an agent is not given the processor in time for its probes.",
    is_gauge=True,
)
AGENT_COUNTERS = (
    FLUSHED_MEMBERS,
    FLUSHED_ATTEMPTS,
    OWNERS_LEFT_OUT,
    MEMORY_LIMIT_REACHED,
    DISCARDED_STARVED,
    DISCARDED_BUSY,
    STARVED,
)
Counts: TypeAlias = Mapping[AgentCounter, int]

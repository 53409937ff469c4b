"""Counters of agents about their own work, declared once for reports of agents and for metrics.

Each counter starts at 0 with the agent. A name in a report never changes its meaning, because agents and servers may
run different releases; unknown names are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCounter:
    name: str
    """Name in reports."""
    metric: str
    """Metric name without the suffix of counters."""
    help_text: str
    """Help text of the metric."""
    reason: str = ""
    """Value of the label `reason`; empty if the metric does not have the label."""
    is_gauge: bool = False
    """Whether the value is a gauge; otherwise it is a counter."""


_FLUSHES_METRIC = "fairlead_agent_conntrack_flushes"
_FLUSHES_HELP = "Flushes of tracked connections: of unavailable members, or of unanswered connection attempts."
_DISCARDED_METRIC = "fairlead_agent_probes_discarded"
_DISCARDED_HELP = (
    "Probes that timed out and do not count against the member, because its node was busy or its agent starved."
)
FLUSHED_MEMBERS = AgentCounter(name="flushed_members", metric=_FLUSHES_METRIC, help_text=_FLUSHES_HELP, reason="member")
"""Flushes for members that are down, disabled or removed."""
FLUSHED_ATTEMPTS = AgentCounter(
    name="flushed_attempts", metric=_FLUSHES_METRIC, help_text=_FLUSHES_HELP, reason="unanswered"
)
OWNERS_LEFT_OUT = AgentCounter(
    name="owners_left_out",
    metric="fairlead_agent_haproxy_owners_left_out",
    help_text="Load balancers excluded from the HAProxy configuration because HAProxy rejects them.",
    is_gauge=True,
)
MEMORY_LIMIT_REACHED = AgentCounter(
    name="memory_limit_reached",
    metric="fairlead_agent_haproxy_memory_limit_reached",
    help_text="Times that an HAProxy process reached agent.haproxy_memory_limit and began to refuse connections.",
)
DISCARDED_STARVED = AgentCounter(
    name="discarded_starved", metric=_DISCARDED_METRIC, help_text=_DISCARDED_HELP, reason="starved"
)
"""Discarded because the agent had no CPU time."""
DISCARDED_BUSY = AgentCounter(name="discarded_busy", metric=_DISCARDED_METRIC, help_text=_DISCARDED_HELP, reason="busy")
"""Discarded because responses of other members were slow, too."""
STARVED = AgentCounter(
    name="starved",
    metric="fairlead_agent_starved",
    help_text="1 while an agent gets too little CPU time for its probes.",
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

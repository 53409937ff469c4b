"""Last reports of unresponsive nodes, stored for servers that start later.

Servers keep the reports of agents in memory. A server that starts after a node became unresponsive would have no
reports of it, and return other results than the others. The last counters and probe results of a node are therefore
stored as a document until the node is responsive again.
"""

from dataclasses import dataclass
from datetime import datetime

from fairlead.model.documents.health import Endpoint
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.model.documents.traffic_counters import TrafficCounters

MAX_STORED_LISTENERS = 2_000
"""Maximum listeners of one node, those with most connections; bounded by the size of a document."""
MAX_STORED_ENDPOINTS = 1_000
"""Maximum endpoints of one node, those that are down first."""
MAX_STORED_TOTAL = 100_000
"""Maximum listeners and endpoints of all such nodes; each server keeps all of them in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnresponsiveNode:
    name: str
    """Name of the node's chassis."""
    since: datetime
    """Time of the last report."""
    counted: tuple[tuple[str, TrafficCounters], ...] = ()
    """Listener id and total counters, sorted by id; `active` is 0."""
    told: tuple[tuple[str, TrafficCounters], ...] = ()
    """Last reported counters of listeners that the node counts from zero again, because it lost its file."""
    seen: tuple[tuple[Endpoint, ProbeResult], ...] = ()
    """Last probe results of the node, for endpoints that no other node has probed since."""

    @property
    def size(self) -> int:
        return len(self.counted) + len(self.told) + len(self.seen)

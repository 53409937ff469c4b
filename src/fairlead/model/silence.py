"""Nodes that have fallen silent: what they had told, for servers that never heard them.

What agents tell is in the memory of the servers that hear it. Of a node that is gone a server that begins later would
know less than the others, and say something else. So what a node had counted and seen is a document from when it falls
silent until it is heard again.
"""

from dataclasses import dataclass
from datetime import datetime

from fairlead.model.figures import Figures
from fairlead.model.health import Endpoint
from fairlead.model.sighting import Sighting

MOST_COUNTED = 2_000
"""Listeners of one node: those with most connections. A document has to fit into what a store takes."""
MOST_SEEN = 1_000
"""Endpoints of one node: those that are down first."""
MOST_KEPT = 100_000
"""Listeners and endpoints of all silent nodes together: each server has all of them in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentNode:
    name: str
    """Of its chassis."""
    since: datetime
    """When it was heard last."""
    counted: tuple[tuple[str, Figures], ...] = ()
    """Listener -> what it comes to, in the order of their ids; nothing is open any more."""
    told: tuple[tuple[str, Figures], ...] = ()
    """Of those that the node began anew to count, because it had lost its file: what it had told last."""
    seen: tuple[tuple[Endpoint, Sighting], ...] = ()
    """Whom it had seen last, and nobody else since."""

    @property
    def size(self) -> int:
        return len(self.counted) + len(self.told) + len(self.seen)

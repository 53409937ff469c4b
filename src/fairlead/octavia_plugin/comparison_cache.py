"""Record of compared load balancers, so that each pair of states in Octavia and Fairlead is compared once.

A difference has to last before it is repaired, and neither side may change in that time, because a request that changes
attributes is written in Fairlead before Octavia commits it. The record is a cache and may be lost.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple


class StatePair(NamedTuple):
    digest: str
    """Digest of Octavia's state."""
    revision: int
    """Fairlead's revision of the load balancer."""


def digest_of(whole: Mapping[str, Any]) -> str:
    return sha256(json.dumps(whole, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Differing:
    state: StatePair
    since: float
    differences: Sequence[Mapping[str, Any]]
    """Differences as returned by Fairlead's API."""


@dataclass(slots=True)
class ComparisonCache:
    """Records by load balancer."""

    same: dict[str, StatePair] = field(default_factory=dict)
    differing: dict[str, Differing] = field(default_factory=dict)
    rejected: dict[str, StatePair] = field(default_factory=dict)
    """States that Fairlead rejected; not sent again until either side changes."""
    rejected_creates: dict[str, str] = field(default_factory=dict)
    """Digest of Octavia's state that Fairlead rejected when it had lost a part, or all of it."""

    def forget(self, balancer_id: str) -> None:
        for known in (self.same, self.differing, self.rejected, self.rejected_creates):
            known.pop(balancer_id, None)

    def clear_rejections(self) -> None:
        """Forget rejections, because Fairlead may accept the load balancers now."""
        self.rejected.clear()
        self.rejected_creates.clear()

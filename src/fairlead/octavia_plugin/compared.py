"""Which load balancers were compared with what Octavia has of them, so that each state of both is compared once.

A difference has to last before anything is done about it, and neither side may change meanwhile: a request that changes
values is written in Fairlead before Octavia commits it. This is a memory of questions: whoever has lost it asks again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple


class State(NamedTuple):
    digest: str
    """Of what Octavia has."""
    revision: int
    """Of what Fairlead has."""


def digest_of(whole: Mapping[str, Any]) -> str:
    return sha256(json.dumps(whole, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Differing:
    state: State
    since: float
    differences: Sequence[Mapping[str, Any]]
    """As Fairlead's door says them."""


@dataclass(slots=True)
class Compared:
    """By load balancer."""

    same: dict[str, State] = field(default_factory=dict)
    differing: dict[str, Differing] = field(default_factory=dict)
    refused: dict[str, State] = field(default_factory=dict)
    """What Fairlead does not take is not offered to it again until one of both has changed."""
    not_made: dict[str, str] = field(default_factory=dict)
    """The digest of what Fairlead refused when it had lost a part, or all of it."""

    def forget(self, balancer_id: str) -> None:
        for known in (self.same, self.differing, self.refused, self.not_made):
            known.pop(balancer_id, None)

    def try_again(self) -> None:
        """What was refused may be taken by now."""
        self.refused.clear()
        self.not_made.clear()

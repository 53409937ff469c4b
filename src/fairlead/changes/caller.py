"""Caller of a change to a load balancer, with the time and the state that rules need in addition to the snapshot."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from fairlead.changes.identity import Identity
from fairlead.compilers.providers import Names
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.status import Applied


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    identity: Identity
    now: datetime
    applied: Callable[[Owner], Applied]
    """Returns the applied state of an owner: a load balancer that is still being applied must not be changed."""
    providers: Names

"""Who asks for a change of a load balancer, when, and what its rules look at besides the snapshot."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from fairlead.changes.identity import Identity
from fairlead.compilers.providers import Names
from fairlead.model.owner import Owner
from fairlead.model.status import Applied


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    identity: Identity
    now: datetime
    applied: Callable[[Owner], Applied]
    """What of a load balancer has arrived: what is still on its way is not changed again."""
    providers: Names

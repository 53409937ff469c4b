"""Caller of a change to a load balancer, with the time and the state that rules need in addition to the snapshot."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from fairlead.changes.identity import Identity
from fairlead.compilers.providers import ProviderNames
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.status import AppliedState


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeContext:
    identity: Identity
    now: datetime
    applied: Callable[[Owner], AppliedState]
    """Returns the applied state of an owner: a load balancer that is still being applied must not be changed."""
    providers: ProviderNames

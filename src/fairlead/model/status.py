"""Status is derived: nobody assigns ACTIVE, and nothing can be left PENDING by a crash.

What was applied is known of each owner and central dataplane. An owner is ACTIVE when each of these has its newest
generation. What nodes could not apply their agents say (`model/agent.py`): it takes nothing from the others, and shows
as DEGRADED, an operating status (`model/standing.py`).
The words are Octavia's (API reference, "Status Codes").
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class ProvisioningStatus(StrEnum):
    ACTIVE = "ACTIVE"
    ERROR = "ERROR"
    PENDING_CREATE = "PENDING_CREATE"
    PENDING_UPDATE = "PENDING_UPDATE"


class OperatingStatus(StrEnum):
    DEGRADED = "DEGRADED"
    DRAINING = "DRAINING"
    ERROR = "ERROR"
    NO_MONITOR = "NO_MONITOR"
    OFFLINE = "OFFLINE"
    ONLINE = "ONLINE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What a reconciler knows of an owner. `generation` is the newest one the dataplane took; 0 is none yet."""

    generation: int = 0
    error: str | None = None
    """Why the newest attempt failed; None when it did not."""
    stalled: bool = False
    """Whether it waits for a dataplane that nothing has come of for a while: a caller who waits for it waits in
    vain."""


NEVER_APPLIED = Applied()


def combine(known: Mapping[str, Applied], newest: int) -> Applied:
    """What is known of an owner in all its central dataplanes together, by their names. One that none of them has is
    nowhere to be waited for: its newest generation counts as applied.
    """
    errors = {name: applied.error for name, applied in known.items() if applied.error is not None}
    told = (f"{name}: {error}" if len(known) > 1 else error for name, error in sorted(errors.items()))
    return Applied(
        generation=min((applied.generation for applied in known.values()), default=newest),
        error="; ".join(told) if errors else None,
        stalled=any(applied.stalled for applied in known.values()),
    )


def derive_provisioning_status(generation: int, applied: Applied) -> ProvisioningStatus:
    """ACTIVE when the newest generation is in the dataplane; ERROR while attempts fail (they go on); else PENDING."""
    if applied.error is not None:
        return ProvisioningStatus.ERROR
    if applied.generation >= generation:
        return ProvisioningStatus.ACTIVE
    return ProvisioningStatus.PENDING_UPDATE if applied.generation else ProvisioningStatus.PENDING_CREATE

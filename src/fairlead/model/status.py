"""Status is derived: nobody assigns ACTIVE, and nothing can be left PENDING by a crash.

The words are Octavia's (API reference, "Status Codes").
"""

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
    """Whether it waits for a dataplane that nothing has come of for a while: who waits for it waits in vain."""


NEVER_APPLIED = Applied()


def derive_provisioning_status(generation: int, applied: Applied) -> ProvisioningStatus:
    """ACTIVE when the newest generation is in the dataplane; ERROR while attempts fail (they go on); else PENDING."""
    if applied.error is not None:
        return ProvisioningStatus.ERROR
    if applied.generation >= generation:
        return ProvisioningStatus.ACTIVE
    return ProvisioningStatus.PENDING_UPDATE if applied.generation else ProvisioningStatus.PENDING_CREATE

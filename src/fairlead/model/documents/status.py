"""Status is derived: no code assigns ACTIVE, and a crash cannot leave an object PENDING.

The applied state is recorded per owner and central dataplane. An owner is ACTIVE when every central dataplane has its
newest generation. Agents report the owners that their node failed to apply (`model/documents/agent.py`): such a failure
does not affect other nodes, and shows as DEGRADED, an operating status (`model/queries/balancer_state.py`).

The terms are Octavia's (API reference, "Status Codes").
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
class AppliedState:
    """Applied state of an owner. `generation` is the newest one that the dataplane accepted; 0 for none yet."""

    generation: int = 0
    error: str | None = None
    """Error of the last attempt; None if it succeeded."""
    stalled: bool = False
    """Whether the dataplane has been unavailable for a while, so requests must not wait for it."""


NEVER_APPLIED = AppliedState()


def combine_applied(known: Mapping[str, AppliedState], newest: int) -> AppliedState:
    """Combine the applied states of an owner in its central dataplanes, by dataplane name. An owner that no central
    dataplane has counts as applied."""
    errors = {name: applied.error for name, applied in known.items() if applied.error is not None}
    told = (f"{name}: {error}" if len(known) > 1 else error for name, error in sorted(errors.items()))
    return AppliedState(
        generation=min((applied.generation for applied in known.values()), default=newest),
        error="; ".join(told) if errors else None,
        stalled=any(applied.stalled for applied in known.values()),
    )


def derive_provisioning_status(generation: int, applied: AppliedState) -> ProvisioningStatus:
    """Return ACTIVE if the newest generation is applied, ERROR while retries fail, otherwise PENDING."""
    if applied.error is not None:
        return ProvisioningStatus.ERROR
    if applied.generation >= generation:
        return ProvisioningStatus.ACTIVE
    return ProvisioningStatus.PENDING_UPDATE if applied.generation else ProvisioningStatus.PENDING_CREATE

"""Probe results of agents: the values of the fact `PROBE_RESULTS` (`model/registry/facts.py`)."""

from dataclasses import dataclass, replace
from datetime import datetime

from fairlead.model.documents.health import Health

MAX_ERROR_LENGTH = 200
"""Maximum length of an error, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    health: Health
    chassis: str
    """Chassis of the agent that probed."""
    since: datetime
    """Time of the last change of state."""
    error: str = ""
    """Last error, human-readable."""
    latency: float | None = None
    """Response time of the last successful probe, in seconds."""


def next_result(last: ProbeResult | None, seen: ProbeResult) -> ProbeResult:
    """Return the result that follows `last`. UNPROBED updates the error only,
    because it is no statement about the endpoint."""
    return seen if last is None or seen.health is not Health.UNPROBED else replace(last, error=seen.error)

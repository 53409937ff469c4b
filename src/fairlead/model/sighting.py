"""What an agent saw of an endpoint that it probes: the values of the fact `SIGHTINGS` (`model/facts.py`)."""

from dataclasses import dataclass, replace
from datetime import datetime

from fairlead.model.health import Health

LONGEST_ERROR = 200
"""Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    health: Health
    chassis: str
    """Whose agent saw it."""
    since: datetime
    """Since when it is so."""
    error: str = ""
    """What went wrong last, in words for people."""
    latency: float | None = None
    """Seconds that the last good answer took."""


def after(last: Sighting | None, seen: Sighting) -> Sighting:
    """What is known after this. Who cannot probe says why, and nothing of whether it answers."""
    return seen if last is None or seen.health is not Health.UNPROBED else replace(last, error=seen.error)

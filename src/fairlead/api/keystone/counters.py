"""Counters of token validations, by result and without identities."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class ValidationResult(StrEnum):
    """Result of a request to Keystone."""

    VALID = "good"
    REFUSED = "refused"
    NO_RESPONSE = "no_answer"


class CacheHit(StrEnum):
    """Reason why Keystone was not requested."""

    FRESH = "fresh"
    REFUSED = "refused"
    OUTAGE = "outage"
    """The token was recently valid, and Keystone is unavailable."""


@dataclass(slots=True)
class TokenCounters:
    requests: Counter[ValidationResult] = field(default_factory=Counter)
    seconds: float = 0.0
    """Total duration of the requests."""
    cache_hits: Counter[CacheHit] = field(default_factory=Counter)

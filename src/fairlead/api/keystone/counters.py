"""Counters of token validations, by result and without identities."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Asked(StrEnum):
    """Result of a request to Keystone."""

    GOOD = "good"
    REFUSED = "refused"
    NOBODY = "no_answer"


class Known(StrEnum):
    """Reason why Keystone was not requested."""

    FRESH = "fresh"
    REFUSED = "refused"
    OUTAGE = "outage"
    """The token was recently valid, and Keystone is unavailable."""


@dataclass(slots=True)
class TokenFigures:
    asked: Counter[Asked] = field(default_factory=Counter)
    seconds: float = 0.0
    """Total duration of the requests."""
    known: Counter[Known] = field(default_factory=Counter)

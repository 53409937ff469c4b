"""What is counted of tokens, for monitoring: by what was found, never by whose they are."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Asked(StrEnum):
    """What came of a question to Keystone."""

    GOOD = "good"
    REFUSED = "refused"
    NOBODY = "no_answer"


class Known(StrEnum):
    """Why nobody was asked about a token."""

    FRESH = "fresh"
    REFUSED = "refused"
    OUTAGE = "outage"
    """It was good lately, and nobody can be asked."""


@dataclass(slots=True)
class TokenFigures:
    asked: Counter[Asked] = field(default_factory=Counter)
    seconds: float = 0.0
    """That these questions took."""
    known: Counter[Known] = field(default_factory=Counter)

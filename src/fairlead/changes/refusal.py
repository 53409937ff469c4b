"""Refusals: values that describe why a change is rejected, with the ids and numbers for a message.

Each API front end has its own messages and error codes for them. Each module of `changes` declares its own refusals.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Reason why a change is rejected."""


class Refused(Exception):
    """Raised when a change is rejected; nothing is written. `why` is the reason."""

    def __init__(self, why: Refusal) -> None:
        super().__init__(why)
        self.why = why

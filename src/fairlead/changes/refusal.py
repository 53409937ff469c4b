"""A refusal is a value: what is wrong with a change, with the ids and figures that a door needs to say so.

Its text belongs to the door, which has its own words and codes for each. Each subject of `changes` declares its own.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a change is not made."""


class Refused(Exception):
    """The change is not made, and nothing is written. `why` says what would have to be different."""

    def __init__(self, why: Refusal) -> None:
        super().__init__(why)
        self.why = why

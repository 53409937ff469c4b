"""What a dataplane of a node says when it is asked for its counts, and how growth is told from a new beginning."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fairlead.model.statistics import CountedService

SAME_COUNTER = 1.0
"""Seconds by which two looks may differ about when a counter was made, besides how long it took to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Of one counter, since it was made: a flow of a switch, or an element of a kernel's set."""

    value: int
    cookie: int
    """Names what it was made for: the logical flow (ovn-architecture(7)), or the table. Another one is another
    counter."""
    created: float
    """When, on the clock of the reader, and as exactly as it can be asked for: at the earliest. 0 where the cookie
    says it."""
    slack: float = 0.0
    """Seconds by which it may have been made later: as long as it took to answer."""

    def goes_on(self, before: "Count") -> bool:
        """Whether both are of one counter: one of the same cookie that was made anew was made later."""
        apart = max(self.created - before.created - before.slack, before.created - self.created - self.slack)
        return self.cookie == before.cookie and self.value >= before.value and apart < SAME_COUNTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Of one service in one place."""

    counts: Mapping[str, Count] = field(default_factory=dict)
    """By `connections`, `errors`, `bytes_in`, `bytes_out`."""
    active: int = 0


Readings: TypeAlias = Mapping[CountedService, Reading]

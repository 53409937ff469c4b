"""Samples of a node's dataplane counters, with detection of counter resets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fairlead.model.queries.statistics import CountedService

MAX_CREATION_SKEW_SECONDS = 1.0
"""Maximum difference in seconds between two estimates of a counter's creation time,
in addition to the response times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterValue:
    """Value of one counter since its creation: a flow of a switch, or an element of a kernel set."""

    value: int
    cookie: int
    """Identity of the counter: the cookie of the logical flow (ovn-architecture(7)), or the table.
    Another cookie is another counter."""
    created: float
    """Earliest possible creation time in seconds,
    by the reader's clock. 0 if the cookie identifies the counter alone."""
    slack: float = 0.0
    """Uncertainty of `created` in seconds, from the response time: the counter may be that much younger."""

    def is_same_counter(self, before: "CounterValue") -> bool:
        """Return whether both samples are of one counter.
        A counter that was recreated with the same cookie has a later creation time."""
        apart = max(self.created - before.created - before.slack, before.created - self.created - self.slack)
        return self.cookie == before.cookie and self.value >= before.value and apart < MAX_CREATION_SKEW_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSample:
    """Sample of one service in one place."""

    counts: Mapping[str, CounterValue] = field(default_factory=dict)
    """Counters by name: `connections`, `errors`, `bytes_in`, `bytes_out`."""
    active: int = 0


CounterSamples: TypeAlias = Mapping[CountedService, CounterSample]

"""What is observed of a proxy: the values of the fact `PROXIES` (`model/facts.py`)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """What an agent says of a proxy on its node; None of one that does not run."""

    serving: frozenset[int] = frozenset()
    """The ports of listeners at which it takes connections."""

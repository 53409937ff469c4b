"""What is observed of proxies: the values of the facts `PROXIES` and `WANTED_PROXIES` (`model/facts.py`)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """What an agent says of a proxy on its node; None of one that does not run."""

    serving: frozenset[int] = frozenset()
    """The ports of listeners at which it takes connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedProxies:
    """In what the ports of a place of proxies on a network of others differ from what should be."""

    come: tuple[str, ...] = ()
    """Chassis on which there is to be a port."""
    go: tuple[str, ...] = ()
    """Ids of ports."""

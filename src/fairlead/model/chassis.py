"""The compute nodes that there are, as somebody observes them."""

from dataclasses import dataclass
from typing import TypeAlias

from immutables import Map

Ports: TypeAlias = Map[str, bool]
"""Id of a port that a chassis has -> whether its packets flow there. A router's gateway is called by the port that it
is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chassis:
    name: str
    host: str = ""
    """Its host name; empty if it says none."""
    zones: frozenset[str] = frozenset()
    """Availability zones, as Neutron has them: none, one or several."""
    alive: bool = True
    """Whether it confirms what it is asked. One that nobody asks counts as alive."""
    ports: Ports = Map()

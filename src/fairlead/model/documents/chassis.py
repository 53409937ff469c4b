"""Compute nodes, as observed by OVN or by agents."""

from dataclasses import dataclass
from typing import TypeAlias

from immutables import Map

PortBindings: TypeAlias = Map[str, bool]
"""Port id -> whether its packets flow on this chassis. The gateway of a router is listed by its gateway port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chassis:
    name: str
    host: str = ""
    """Host name; empty if the chassis reports none."""
    zones: frozenset[str] = frozenset()
    """Availability zones as Neutron defines them: none, one or several."""
    alive: bool = True
    """Whether the chassis confirms `NB_Global.nb_cfg`. A chassis that is not checked counts as alive."""
    ports: PortBindings = Map()

"""Orphan ports: those that Octavia made in Neutron for VIPs of load balancers that it does not have.

Octavia makes the port of a VIP before it calls the provider. If the provider refuses the load balancer, or cannot be
reached, Octavia rolls back its own row and leaves the port, whatever the provider. So does a request that is killed in
between. Such a port keeps an address and a place in the project's quota of ports.

A request that is on its way has a port and no committed row either. So a port counts only after its load balancer has
been missing for a while (`doubt`). One that Fairlead still has is no orphan: the agent deletes it there first.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from fairlead.octavia_plugin.findings import Finding, Hear, What

BRAKE_PORTS, BRAKE_SHARE = 20, 0.3
"""Ports, and their share of all ports of VIPs: more of both are not deleted, unless Octavia's database is known to be
the right one and no old copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VipPort:
    id: str
    balancer: str
    """The id of the load balancer that Octavia made it for."""
    network: str
    addresses: tuple[str, ...]


class Ports(Protocol):
    """Both raise NotAnswered."""

    def made(self) -> Sequence[VipPort]:
        """All that Octavia has made for VIPs."""

    def delete(self, port_id: str) -> None:
        """One that is not there is deleted already."""


class Octavia(Protocol):
    def having(self, ids: Collection[str]) -> set[str]:
        """Those of these load balancers that Octavia has, whatever their provider."""


class TooMany(Exception):
    """The message says of what, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    ports: Ports
    octavia: Octavia
    in_fairlead: Callable[[str], bool]
    """Whether Fairlead has a load balancer with this id."""

    def suspects(self) -> frozenset[str]:
        """The ids of ports that may be orphans, or belong to requests that are on their way."""
        return frozenset(each.id for each in self._without_balancer(self.ports.made()))

    def find(self, suspects: frozenset[str]) -> Sequence[VipPort]:
        """Those of these that still may be, and of which Fairlead has nothing, in the order of their load balancers."""
        still = [each for each in self._without_balancer(self.ports.made()) if each.id in suspects]
        return sorted((each for each in still if not self.in_fairlead(each.balancer)), key=lambda each: each.balancer)

    def settle(self, orphans: Sequence[VipPort], hear: Hear, *, deletes: bool, is_dry: bool) -> None:
        """Reports each orphan, and deletes it if requested. Raises NotAnswered."""
        for port in orphans:
            seen = {"network": port.network, "addresses": list(port.addresses)}
            what = What.ORPHAN if deletes else What.KEPT_ORPHAN
            hear(Finding(what=what, balancer=port.balancer, kind="ports", id=port.id, octavia=seen))
            if deletes and not is_dry:
                self.ports.delete(port.id)

    def check_share(self, orphans: Sequence[VipPort]) -> None:
        """Raises TooMany where it rather is the database that is wrong."""
        made = len(self.ports.made())
        if len(orphans) > max(BRAKE_PORTS, BRAKE_SHARE * made):
            raise TooMany(
                f"Octavia's database has no load balancer for {len(orphans)} of {made} ports of VIPs: none is deleted."
                " If it is the right database and no old copy, say so by --delete-old."
            )

    def _without_balancer(self, made: Sequence[VipPort]) -> Sequence[VipPort]:
        """The ports are read before the database: what Octavia has committed by then has a row."""
        known = self.octavia.having({each.balancer for each in made})
        return [each for each in made if each.balancer not in known]

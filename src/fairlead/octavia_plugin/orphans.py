"""Orphan ports: Neutron ports that Octavia created for VIPs of load balancers that it does not have.

Octavia creates the VIP's port before it calls the provider. If the provider rejects the load balancer or is
unreachable, Octavia rolls back its row and leaves the port, with any provider. A request that is killed in between does
the same. Such a port occupies an address and counts against the project's port quota.

A request in progress also has a port and no committed row. So a port counts as an orphan only after its load balancer
has been missing for a while (`doubt`), and only if Fairlead does not have it either, because the agent deletes it there
first.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from fairlead.octavia_plugin.findings import Finding, FindingType, OnFinding

MASS_DELETE_MIN_PORTS, MASS_DELETE_MIN_SHARE = 20, 0.3
"""Limits of the mass-deletion guard: ports, and their share of all VIP ports. Above both, ports are deleted only if the
operator confirms that Octavia's database is no outdated copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OctaviaVipPort:
    id: str
    balancer: str
    """Id of the load balancer that the port was created for."""
    network: str
    addresses: tuple[str, ...]


class OrphanPorts(Protocol):
    """Both methods raise NotAnswered."""

    def made(self) -> Sequence[OctaviaVipPort]:
        """Return all ports created for VIPs."""

    def delete(self, port_id: str) -> None:
        """Delete a port. A missing one counts as deleted."""


class OrphanDatabase(Protocol):
    def having(self, ids: Collection[str]) -> set[str]:
        """Return those of these load balancers that Octavia has, of any provider."""


class TooManyDeletions(Exception):
    """Too many ports would be deleted; the message has the numbers and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    ports: OrphanPorts
    octavia: OrphanDatabase
    in_fairlead: Callable[[str], bool]
    """Whether Fairlead has a load balancer with this id."""

    def suspects(self) -> frozenset[str]:
        """Return the ids of ports that are orphans or belong to requests in progress."""
        return frozenset(each.id for each in self._without_balancer(self.ports.made()))

    def find(self, suspects: frozenset[str]) -> Sequence[OctaviaVipPort]:
        """Return the suspects that still have no load balancer in Octavia or Fairlead, ordered by load balancer."""
        still = [each for each in self._without_balancer(self.ports.made()) if each.id in suspects]
        return sorted((each for each in still if not self.in_fairlead(each.balancer)), key=lambda each: each.balancer)

    def settle(self, orphans: Sequence[OctaviaVipPort], hear: OnFinding, *, deletes: bool, is_dry: bool) -> None:
        """Report each orphan, and delete it if requested. Raises NotAnswered."""
        for port in orphans:
            seen = {"network": port.network, "addresses": list(port.addresses)}
            what = FindingType.ORPHAN if deletes else FindingType.KEPT_ORPHAN
            hear(Finding(what=what, balancer=port.balancer, kind="ports", id=port.id, octavia=seen))
            if deletes and not is_dry:
                self.ports.delete(port.id)

    def check_share(self, orphans: Sequence[OctaviaVipPort]) -> None:
        """Raise TooMany if Octavia's database is more likely to be wrong."""
        made = len(self.ports.made())
        if len(orphans) > max(MASS_DELETE_MIN_PORTS, MASS_DELETE_MIN_SHARE * made):
            raise TooManyDeletions(
                f"Octavia's database has no load balancer for {len(orphans)} of {made} VIP ports, so none was deleted."
                " If it is the right database and not an outdated copy, use --delete-old."
            )

    def _without_balancer(self, made: Sequence[OctaviaVipPort]) -> Sequence[OctaviaVipPort]:
        """Return the ports without a load balancer. Reads the ports first, so each committed request has a row."""
        known = self.octavia.having({each.balancer for each in made})
        return [each for each in made if each.balancer not in known]

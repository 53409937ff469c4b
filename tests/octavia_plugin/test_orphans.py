"""Orphaned ports of Octavia in Neutron are listed when no request can need them any more, and deleted on request."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pytest

from fairlead.octavia_plugin.findings import Finding, FindingType, sentence
from fairlead.octavia_plugin.orphans import MASS_DELETE_MIN_PORTS, OctaviaVipPort, Orphans, TooManyDeletions


@dataclass
class World:
    """Load balancers with a port in Neutron, and those in Octavia and in Fairlead."""

    neutron: list[str] = field(default_factory=list)
    octavia: set[str] = field(default_factory=set)
    fairlead: set[str] = field(default_factory=set)
    heard: list[Finding] = field(default_factory=list)

    def made(self) -> Sequence[OctaviaVipPort]:
        addresses = ("10.0.0.7", "fd00::7")
        return [
            OctaviaVipPort(id=f"port of {each}", balancer=each, network="net", addresses=addresses)
            for each in self.neutron
        ]

    def delete(self, port_id: str) -> None:
        self.neutron.remove(port_id.removeprefix("port of "))

    def having(self, ids: Collection[str]) -> set[str]:
        return self.octavia & set(ids)

    @property
    def orphans(self) -> Orphans:
        return Orphans(ports=self, octavia=self, in_fairlead=self.fairlead.__contains__)

    def settle(
        self, suspects: frozenset[str], *, deletes: bool = False, is_dry: bool = False
    ) -> list[tuple[FindingType, str]]:
        found = self.orphans.find(suspects)
        self.orphans.settle(found, self.heard.append, deletes=deletes, is_dry=is_dry)
        return [(each.what, each.balancer) for each in self.heard]


def test_port_without_a_load_balancer_is_reported_and_kept():
    world = World(neutron=["web", "left"], octavia={"web"}, fairlead={"web"})
    assert [(FindingType.KEPT_ORPHAN, "left")] == world.settle(world.orphans.suspects())
    assert ["web", "left"] == world.neutron
    assert sentence(world.heard[0]) == (
        "port port of left of load balancer left, which is not in Octavia, has 10.0.0.7, fd00::7 on network net;"
        " --delete-ports deletes the port in Neutron"
    )


@pytest.mark.parametrize(("is_dry", "left"), [(False, ["web"]), (True, ["web", "left"])])
def test_orphan_port_is_deleted_on_request(is_dry: bool, left: list[str]):
    world = World(neutron=["web", "left"], octavia={"web"})
    assert [(FindingType.ORPHAN, "left")] == world.settle(world.orphans.suspects(), deletes=True, is_dry=is_dry)
    assert left == world.neutron


def test_port_of_a_request_in_flight_is_no_orphan():
    """Its load balancer is committed during the wait; another port is created in the meantime."""
    world = World(neutron=["coming"])
    suspects = world.orphans.suspects()
    world.octavia.add("coming")
    world.neutron.append("newer")
    assert [] == world.settle(suspects, deletes=True)


def test_port_of_a_load_balancer_in_fairlead_is_no_orphan():
    world = World(neutron=["old"], fairlead={"old"})
    suspects = world.orphans.suspects()
    assert [] == world.settle(suspects, deletes=True)
    world.fairlead.clear()
    assert [(FindingType.ORPHAN, "old")] == world.settle(suspects, deletes=True)


@pytest.mark.parametrize(
    ("left", "known", "stopped"), [(MASS_DELETE_MIN_PORTS, 0, False), (21, 0, True), (21, 60, False)]
)
def test_guard_stops_port_deletion_for_the_wrong_octavia_database(left: int, known: int, stopped: bool):
    names = [f"known{number}" for number in range(known)]
    world = World(neutron=[*names, *(f"left{number}" for number in range(left))], octavia=set(names))
    orphans = world.orphans
    found = orphans.find(orphans.suspects())
    assert len(found) == left
    if stopped:
        with pytest.raises(TooManyDeletions, match="no load balancer for 21 of 21 VIP ports"):
            orphans.check_share(found)
    else:
        orphans.check_share(found)

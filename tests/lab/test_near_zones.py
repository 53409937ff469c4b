"""End to end: clients without a member on their chassis reach those in their zone, in a lab of three chassis."""

from collections.abc import Iterator

import pytest

from fairlead.lab import Protocol
from harness.lab.labs import lab_of
from harness.lab.near import answers, wait_answers
from harness.lab.site import LabSite, open_site

pytestmark = [pytest.mark.lab, pytest.mark.ovn, pytest.mark.extended]

MEMBERS = {"one": "chassis1", "two": "chassis2", "three": "chassis3"}
CLIENTS = {"oak1": "chassis1", "oak2": "chassis2", "oak3": "chassis3"}


@pytest.fixture(scope="module")
def site(machine: None) -> Iterator[LabSite]:
    with lab_of("zones", chassis=3) as lab:
        site = open_site(lab)
        site.network("oaks", "10.0.0.0/24", "fd00:a::/64")
        site.machines("oaks", MEMBERS, serve=[8080])
        site.machines("oaks", CLIENTS)
        yield site
        site.close()


def set_zones(site: LabSite, *zones: str) -> None:
    for node, zone in zip(site.lab.record.chassis, zones, strict=True):
        site.lab.set_zones(node.name, *filter(None, [zone]))


def all_answers(site: LabSite, vip: str, protocol: Protocol = Protocol.TCP) -> dict[str, set[str]]:
    return {client: answers(site, client, vip, protocol) for client in CLIENTS}


@pytest.mark.parametrize(("version", "protocol"), [(4, Protocol.TCP), (4, Protocol.UDP), (6, Protocol.TCP)])
def test_members_are_preferred_by_chassis_then_zone_then_anywhere(site: LabSite, version: int, protocol: Protocol):
    """A chassis may change or remove its zone at any time."""
    set_zones(site, "a", "a", "b")
    words = {"protocol": protocol.value.upper(), "version": version, "locality": "CHASSIS"}
    with site.balancer(f"oaks-v{version}", ["one", "three"], **words) as balancer:
        wait_answers(site, "oak2", balancer.vip, {"one"}, protocol)
        assert all_answers(site, balancer.vip, protocol) == {"oak1": {"one"}, "oak2": {"one"}, "oak3": {"three"}}
        set_zones(site, "a", "b", "b")
        wait_answers(site, "oak2", balancer.vip, {"three"}, protocol)
        set_zones(site, "a", "", "b")
        wait_answers(site, "oak2", balancer.vip, {"one", "three"}, protocol)
        assert answers(site, "oak1", balancer.vip, protocol) == {"one"}


def test_zone_locality_uses_all_members_in_the_clients_zone(site: LabSite):
    set_zones(site, "a", "a", "b")
    with site.balancer("oaks-v4", [*MEMBERS], locality="ZONE") as balancer:
        wait_answers(site, "oak1", balancer.vip, {"one", "two"})
        assert all_answers(site, balancer.vip) == {"oak1": {"one", "two"}, "oak2": {"one", "two"}, "oak3": {"three"}}
        set_zones(site, "", "", "")
        wait_answers(site, "oak3", balancer.vip, {*MEMBERS})

"""End to end: machines with a cached MAC address of a port follow when its address becomes a Local IP, and back.

Each has resolved the address just before, and would keep the entry for at least half an hour (arp(7), half of
base_reachable_time). Only an agent changes it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fairlead.lab import Lab, Protocol, Traffic, agents
from fairlead.model.documents.addresses import derive_mac
from harness.lab.site import PORT, LabSite, open_site
from harness.waiting import wait_equal

pytestmark = [pytest.mark.lab, pytest.mark.ovn]

BOTH = pytest.mark.parametrize("version", [4, 6])
CLIENTS = ("near", "far")


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    """The owner is on chassis1, with a replica and a client on each chassis."""
    site = open_site(lab)
    site.network("sepia", "10.0.0.0/24", "fd00:a::/64")
    site.machines("sepia", {"holder": "chassis1", "copy1": "chassis1", "copy2": "chassis2"}, serve=[PORT])
    site.machines("sepia", {"near": "chassis1", "far": "chassis2"})
    for client in CLIENTS:
        for family in ("ipv4", "ipv6"):
            site.lab.exec(client, ["sysctl", "-qw", f"net.{family}.neigh.eth0.base_reachable_time_ms=3600000"])
    yield site
    for name in ("holder", "copy1", "copy2", "near", "far"):
        lab.remove_workload(name)
    site.close()


@pytest.fixture(scope="module")
def nodes(site: LabSite) -> Iterator[dict[str, agents.LabAgent]]:
    with site.counting() as found:
        yield found


def port(site: LabSite, name: str) -> Any:
    return site.cloud.network.find_port(name, ignore_missing=False)


@contextmanager
def local_ip(site: LabSite, version: int, *replicas: str) -> Iterator[Callable[[], None]]:
    """A Local IP at the owner's address. Yields a function that deletes it."""
    address, made = site.address("holder", version), list[Any]()

    def delete() -> None:
        for each in made:
            for name in replicas:
                site.cloud.network.delete_local_ip_association(each, port(site, name).id)
            site.cloud.network.delete_local_ip(each)
        made.clear()

    made.append(site.cloud.network.create_local_ip(local_port_id=port(site, "holder").id, local_ip_address=address))
    try:
        for name in replicas:
            fixed = site.address(name, version)
            site.cloud.network.create_local_ip_association(made[0], fixed_port_id=port(site, name).id, fixed_ip=fixed)
        yield delete
    finally:
        delete()


def learn(site: LabSite, client: str, version: int) -> None:
    """Resolve the address again, independently of earlier announcements."""
    address = site.address("holder", version)
    site.lab.exec(client, ["ip", "neigh", "flush", "to", address])
    assert ask(site, client, version) == {"holder"}


def known(site: LabSite, client: str, version: int) -> str:
    found = site.lab.exec(client, ["ip", "neigh", "show", "to", site.address("holder", version)]).split()
    return found[found.index("lladdr") + 1] if "lladdr" in found else ""


def ask(site: LabSite, client: str, version: int, protocol: Protocol = Protocol.TCP) -> set[str]:
    """Names that answer ten connections to the owner's address."""
    traffic = Traffic(
        to=site.address("holder", version), port=PORT, count=10, concurrency=5, protocol=protocol, timeout=30
    )
    result = site.lab.traffic(client, traffic)
    assert result.errors == {}
    return set(result.answers)


def all_know(site: LabSite, version: int, mac: str) -> None:
    for client in CLIENTS:
        wait_equal(lambda client=client: known(site, client, version), mac)


@BOTH
def test_neighbour_caches_follow_creation_and_deletion_of_a_local_ip(
    site: LabSite, nodes: dict[str, agents.LabAgent], version: int
):
    owner = port(site, "holder")
    for client in CLIENTS:
        learn(site, client, version)
    all_know(site, version, owner.mac_address)
    with local_ip(site, version) as delete:
        all_know(site, version, derive_mac(owner.network_id))
        for client in CLIENTS:
            assert ask(site, client, version) == ask(site, client, version, Protocol.UDP) == {"holder"}
        assert known(site, "holder", version) == "", "who has the address is told nothing"
        delete()
        all_know(site, version, owner.mac_address)
        site.lab.wait_synced()
        for client in CLIENTS:
            assert ask(site, client, version) == {"holder"}


@BOTH
def test_clients_with_a_cached_owner_mac_reach_the_replica_on_their_chassis(
    site: LabSite, nodes: dict[str, agents.LabAgent], version: int
):
    owner = port(site, "holder")
    for client in CLIENTS:
        learn(site, client, version)
    with local_ip(site, version, "copy1", "copy2"):
        all_know(site, version, derive_mac(owner.network_id))
        site.lab.wait_synced()
        for client, replica in zip(CLIENTS, ("copy1", "copy2"), strict=True):
            wait_equal(lambda c=client: ask(site, c, version), {replica})


@BOTH
@pytest.mark.extended
def test_local_ip_changes_made_without_agents_are_announced_on_agent_start(
    site: LabSite, nodes: dict[str, agents.LabAgent], version: int
):
    """Both the creation and the deletion of the Local IP are announced later."""
    owner = port(site, "holder")
    for client in CLIENTS:
        learn(site, client, version)
    for agent in nodes.values():
        agent.stop()
    with local_ip(site, version) as delete:
        site.lab.wait_synced()
        assert known(site, "near", version) == owner.mac_address
        nodes.update({each.chassis: each for each in agents.start(site.lab.layout, site.url)})
        all_know(site, version, derive_mac(owner.network_id))
        for agent in nodes.values():
            agent.stop()
        delete()
        nodes.update({each.chassis: each for each in agents.start(site.lab.layout, site.url)})
        all_know(site, version, owner.mac_address)

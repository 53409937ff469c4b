"""The agent has ports for probes in Neutron on exactly the networks with probed members, despite kills."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from fairlead.http.server_client import ServerError
from fairlead.octavia_plugin.adoption import ServiceFailed
from fairlead.octavia_plugin.provision import MAX_NETWORKS_PER_STEP, RETRY_INTERVAL, PortProvisioner, PortType


@dataclass
class World:
    """Fairlead's front end and Neutron."""

    wanted: dict[str, Sequence[str]] = field(default_factory=dict)
    there: dict[str, Sequence[str]] = field(default_factory=dict)
    fails: Exception | None = None
    settled: list[str] = field(default_factory=list)
    now: float = 0.0

    def probe_subnets(self, network_id: str) -> Sequence[str] | None:
        return self.wanted.get(network_id)

    def networks(self) -> Iterable[str]:
        if self.fails:
            raise self.fails
        return list(self.there)

    def settle(self, network_id: str, cidrs: Sequence[str] | None) -> None:
        if self.fails:
            raise self.fails
        self.settled.append(network_id)
        self.there.pop(network_id, None)
        if cidrs is not None:
            self.there[network_id] = cidrs

    refused: list[tuple[str, str]] = field(default_factory=list)

    def probing(self) -> PortProvisioner[Sequence[str] | None]:
        def hear(network_id: str, reason: str) -> None:
            self.refused.append((network_id, reason))

        sort = PortType(
            title="ports", status_key="probed_networks", wanted=self.probe_subnets, ports=self, on_failure=hear
        )
        return PortProvisioner(sort, lambda: self.now)


def told(*networks: str, cidr: str = "10.0.0.0/24", ready: bool = True) -> dict[str, object]:
    return {"probed_networks": [{"id": each, "cidrs": [cidr], "is_ready": ready} for each in networks]}


def test_probe_port_exists_from_the_first_monitor_to_the_last():
    world = World(wanted={"net": ["10.0.0.0/24"]})
    probing = world.probing()
    probing.record_statuses("one", told("net", ready=False))
    probing.record_statuses("two", told("net", ready=False))
    assert (probing.step(), world.there, world.settled) == (0, world.wanted, ["net"])
    probing.record_statuses("one", told())
    probing.step()
    assert world.there == world.wanted
    world.wanted = {}
    probing.record_statuses("two", None)
    probing.step()
    assert world.there == {}


def test_unchanged_probe_networks_are_not_checked_again():
    world = World(wanted={"net": ["10.0.0.0/24"]})
    probing = world.probing()
    for _ in range(3):
        probing.record_statuses("one", told("net"))
        probing.step()
    assert world.settled == ["net"]
    probing.record_statuses("one", told("net", cidr="10.9.0.0/24"))
    probing.step()
    probing.record_statuses("one", told("net", cidr="10.9.0.0/24", ready=False))
    probing.step()
    assert world.settled == ["net"] * 3, "another subnet; and somebody took the port away"


def test_leftover_probe_ports_are_deleted_at_start_and_full_check():
    world = World(there={"old": ["10.0.0.0/24"], "used": ["10.1.0.0/24"]}, wanted={"used": ["10.1.0.0/24"]})
    probing = world.probing()
    probing.step()
    assert world.there == world.wanted
    world.there["left"] = []
    probing.step()
    assert "left" in world.there
    probing.search_leftovers()
    probing.step()
    assert world.there == world.wanted


@pytest.mark.parametrize("error", [ServiceFailed("neutron", "Neutron: no"), ServerError("no", None)], ids=str)
def test_failed_probe_port_request_is_retried_after_a_pause(error: Exception):
    world = World(wanted={"net": []})
    probing = world.probing()
    probing.step()
    world.fails = error
    probing.record_statuses("one", told("net", ready=False))
    probing.step()
    world.fails = None
    probing.record_statuses("one", told("net", ready=False))
    probing.step()
    assert world.settled == [], "news of the load balancer is no reason to ask sooner"
    world.now += RETRY_INTERVAL
    probing.step()
    assert world.settled == ["net"]


def test_leftover_ports_are_searched_again_when_neutron_answers():
    world = World(there={"old": []}, fails=ServiceFailed("neutron", "Neutron: no"))
    probing = world.probing()
    probing.step()
    world.fails = None
    world.now += RETRY_INTERVAL
    probing.step()
    assert world.there == {}


def test_probe_networks_per_step_are_bounded():
    networks = [f"net{number}" for number in range(MAX_NETWORKS_PER_STEP + 3)]
    world = World(wanted=dict.fromkeys(networks, ()))
    probing = world.probing()
    probing.record_statuses("one", told(*networks, ready=False))
    assert (probing.step(), len(world.settled)) == (3, MAX_NETWORKS_PER_STEP)
    assert (probing.step(), len(world.there)) == (0, MAX_NETWORKS_PER_STEP + 3)


def test_older_server_without_probe_networks_is_accepted():
    probing = World().probing()
    probing.record_statuses("one", {})
    assert probing.step() == 0


def test_neutron_error_is_reported_with_its_reason_and_cleared():
    world = World(wanted={"net": []})
    probing = world.probing()
    probing.step()
    world.fails = ServiceFailed("neutron", "Neutron: no address left")
    probing.record_statuses("one", told("net", ready=False))
    probing.step()
    world.fails = None
    world.now += RETRY_INTERVAL
    probing.step()
    world.now += RETRY_INTERVAL
    probing.step()
    assert world.refused == [("net", "Neutron: no address left"), ("net", "")]

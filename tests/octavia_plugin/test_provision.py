"""The agent has ports for probes in Neutron on exactly the networks with probed members, despite kills."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from fairlead.http.server_client import ServerError
from fairlead.octavia_plugin.adoption import NotAnswered
from fairlead.octavia_plugin.provision import AT_ONCE, PAUSE, Provision, Sort


@dataclass
class World:
    """Fairlead's front end and Neutron."""

    wanted: dict[str, Sequence[str]] = field(default_factory=dict)
    there: dict[str, Sequence[str]] = field(default_factory=dict)
    fails: Exception | None = None
    settled: list[str] = field(default_factory=list)
    now: float = 0.0

    def probed_on(self, network_id: str) -> Sequence[str] | None:
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

    def probing(self) -> Provision[Sequence[str] | None]:
        def hear(network_id: str, reason: str) -> None:
            self.refused.append((network_id, reason))

        sort = Sort(title="ports", told="probed_networks", wanted=self.probed_on, ports=self, refused=hear)
        return Provision(sort, lambda: self.now)


def told(*networks: str, cidr: str = "10.0.0.0/24", ready: bool = True) -> dict[str, object]:
    return {"probed_networks": [{"id": each, "cidrs": [cidr], "is_ready": ready} for each in networks]}


def test_a_port_comes_with_the_first_monitor_and_goes_with_the_last():
    world = World(wanted={"net": ["10.0.0.0/24"]})
    probing = world.probing()
    probing.see("one", told("net", ready=False))
    probing.see("two", told("net", ready=False))
    assert (probing.step(), world.there, world.settled) == (0, world.wanted, ["net"])
    probing.see("one", told())
    probing.step()
    assert world.there == world.wanted
    world.wanted = {}
    probing.see("two", None)
    probing.step()
    assert world.there == {}


def test_what_was_seen_so_before_is_not_looked_at_again():
    world = World(wanted={"net": ["10.0.0.0/24"]})
    probing = world.probing()
    for _ in range(3):
        probing.see("one", told("net"))
        probing.step()
    assert world.settled == ["net"]
    probing.see("one", told("net", cidr="10.9.0.0/24"))
    probing.step()
    probing.see("one", told("net", cidr="10.9.0.0/24", ready=False))
    probing.step()
    assert world.settled == ["net"] * 3, "another subnet; and somebody took the port away"


def test_what_somebody_left_is_taken_away_at_the_start_and_at_each_look_at_everything():
    world = World(there={"old": ["10.0.0.0/24"], "used": ["10.1.0.0/24"]}, wanted={"used": ["10.1.0.0/24"]})
    probing = world.probing()
    probing.step()
    assert world.there == world.wanted
    world.there["left"] = []
    probing.step()
    assert "left" in world.there
    probing.name_left()
    probing.step()
    assert world.there == world.wanted


@pytest.mark.parametrize("error", [NotAnswered("neutron", "Neutron: no"), ServerError("no", None)], ids=str)
def test_who_does_not_answer_is_asked_again_later(error: Exception):
    world = World(wanted={"net": []})
    probing = world.probing()
    probing.step()
    world.fails = error
    probing.see("one", told("net", ready=False))
    probing.step()
    world.fails = None
    probing.see("one", told("net", ready=False))
    probing.step()
    assert world.settled == [], "news of the load balancer is no reason to ask sooner"
    world.now += PAUSE
    probing.step()
    assert world.settled == ["net"]


def test_what_is_left_is_looked_for_again_when_neutron_answers():
    world = World(there={"old": []}, fails=NotAnswered("neutron", "Neutron: no"))
    probing = world.probing()
    probing.step()
    world.fails = None
    world.now += PAUSE
    probing.step()
    assert world.there == {}


def test_no_more_at_once_than_load_balancers_can_wait_for():
    networks = [f"net{number}" for number in range(AT_ONCE + 3)]
    world = World(wanted=dict.fromkeys(networks, ()))
    probing = world.probing()
    probing.see("one", told(*networks, ready=False))
    assert (probing.step(), len(world.settled)) == (3, AT_ONCE)
    assert (probing.step(), len(world.there)) == (0, AT_ONCE + 3)


def test_an_older_server_says_nothing_of_networks():
    probing = World().probing()
    probing.see("one", {})
    assert probing.step() == 0


def test_that_neutron_refuses_is_told_with_its_reason_and_so_is_the_end_of_it():
    world = World(wanted={"net": []})
    probing = world.probing()
    probing.step()
    world.fails = NotAnswered("neutron", "Neutron: no address left")
    probing.see("one", told("net", ready=False))
    probing.step()
    world.fails = None
    world.now += PAUSE
    probing.step()
    world.now += PAUSE
    probing.step()
    assert world.refused == [("net", "Neutron: no address left"), ("net", "")]

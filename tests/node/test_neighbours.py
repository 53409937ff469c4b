"""Pending announcements of a node, given earlier ones and the neighbours that it receives."""

from collections.abc import Mapping
from ipaddress import ip_address
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.queries.neighbours import Neighbour, Neighbourhood
from fairlead.node.neighbours import Announcement, Memory, Said
from harness.neighbours import OWNERS, VIRTUAL, local_ip, ordinary

BOTH = ("10.0.0.200", "fd00:a::200")
L, L6 = ip_address("10.0.0.200"), ip_address("fd00:a::200")


def network(ports: str, *neighbours: Neighbour) -> Mapping[str, Neighbourhood]:
    return {"net1": Neighbourhood(ports=frozenset(ports.split()), neighbours=neighbours)}


def hear(memory: Memory, networks: Mapping[str, Neighbourhood]) -> None:
    memory.hear(networks, frozenset(memory.said))


def say(memory: Memory, *virtual: str) -> list[tuple[str, str, str]]:
    """Pending announcements: address, MAC and ports. OVN answers these addresses with the virtual MAC."""
    answers = {(ip_address(each), VIRTUAL) for each in virtual}
    due = [each for each in memory.due() if each.is_ready(answers)]
    memory.note(due)
    return [(str(each.key[1]), each.mac, " ".join(each.ports)) for each in due]


def test_a_local_ip_is_said_once_to_every_port_but_those_that_have_it():
    memory = Memory()
    hear(memory, network("a b owner", local_ip(unheard=("owner",)), local_ip("fd00:a::200")))
    assert say(memory) == []
    assert say(memory, "fd00:a::200") == [("fd00:a::200", VIRTUAL, "a b owner")]
    assert say(memory, *BOTH) == [("10.0.0.200", VIRTUAL, "a b")]
    assert say(memory, *BOTH) == []
    assert memory.remembered() == {"net1": [L, L6]}


def test_a_port_that_comes_is_told_and_one_that_comes_back_too():
    """A machine that moved to this node may have missed the announcement on the previous one."""
    memory = Memory()
    for ports, said in (("a", "a"), ("a b", "b"), ("b", ""), ("a b", "a")):
        hear(memory, network(ports, local_ip()))
        assert say(memory, *BOTH) == ([("10.0.0.200", VIRTUAL, said)] if said else [])
        memory.hear(memory.networks, frozenset(memory.said))


def test_when_a_local_ip_goes_the_ports_own_mac_is_said_and_then_all_is_forgotten():
    memory = Memory()
    hear(memory, network("a owner", local_ip(unheard=("owner",))))
    say(memory, *BOTH)
    hear(memory, network("a owner", ordinary(unheard=("owner",))))
    assert memory.remembered() == {"net1": [L]}
    assert say(memory, *BOTH) == [("10.0.0.200", OWNERS, "a")]
    assert say(memory, *BOTH) == []
    assert memory.remembered() == {"net1": [L]}
    assert say(memory) == [("10.0.0.200", OWNERS, "a")], "who has asked OVN meanwhile knows the old one"
    assert memory.remembered() == {}
    hear(memory, {})
    assert (memory.said, say(memory)) == ({}, [])


def test_an_address_that_nobody_has_any_more_is_forgotten():
    memory = Memory(said={("net1", L): Said(mac=VIRTUAL)})
    assert memory.remembered() == {"net1": [L]}
    hear(memory, {})
    assert (memory.said, memory.remembered(), say(memory)) == ({}, {}, [])


def test_what_was_said_while_a_server_was_asked_is_asked_about_the_next_time():
    """The Local IP was deleted before the server's answer, and the request did not contain the announcement."""
    memory = Memory()
    hear(memory, network("a", local_ip()))
    before = frozenset(memory.said)
    say(memory, *BOTH)
    memory.hear({}, before)
    assert memory.remembered() == {"net1": [L]}
    hear(memory, network("a", ordinary()))
    assert say(memory) == [("10.0.0.200", OWNERS, "a")]


def test_after_a_start_all_is_said_once_more_and_an_end_that_was_missed_too():
    memory = Memory(said={("net1", L): Said(mac=VIRTUAL), ("net1", L6): Said(mac=VIRTUAL)})
    assert memory.remembered() == {"net1": [L, L6]}
    hear(memory, network("a b", local_ip(), ordinary("fd00:a::200")))
    assert say(memory, *BOTH) == [("10.0.0.200", VIRTUAL, "a b"), ("fd00:a::200", OWNERS, "a b")]


ADDRESSES = ("10.0.0.200", "10.0.0.201", "fd00:a::200")
EVENTS = st.lists(
    st.sampled_from(
        ["come", "go", "holder", "plug", "unplug", "learn", "apply", "ask", "answer", "say", "half", "restart"]
    ),
    min_size=1,
    max_size=60,
)


class World:
    """A network of the model, and the neighbour caches of machines on one node that never send a request again."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.local_ips: set[str] = set()
        self.holders = dict.fromkeys(ADDRESSES, OWNERS)
        self.tables: dict[str, dict[str, str]] = {"a": dict(self.holders)}
        self.ovn: set[str] = set()
        """Local IPs that OVN answers, which lag behind the model."""
        self.memory = Memory()
        self.asked = (frozenset[object](), frozenset[str]())

    def learned(self, address: str) -> str:
        """MAC that a machine learns from a request.

        Machines request no Local IP that the agent has not received, because it cannot know of one that is created and
        deleted while it is not connected.
        """
        known = ("net1", ip_address(address)) in self.memory.said
        return VIRTUAL if address in self.ovn and known else self.holders[address]

    def do(self, event: str) -> None:
        address, name = self.random.choice(ADDRESSES), self.random.choice("abc")
        match event:
            case "come":
                self.local_ips.add(address)
            case "go":
                self.local_ips.discard(address)
            case "holder":
                self.holders[address] = self.random.choice([OWNERS, "02:00:00:00:00:c9"])
            case "plug":
                self.tables.setdefault(name, {each: self.learned(each) for each in ADDRESSES})
            case "unplug":
                self.tables.pop(name, None)
            case "learn" if name in self.tables:
                self.tables[name][address] = self.learned(address)
            case "apply":
                self.ovn = set(self.local_ips)
            case "ask":
                remembered = self.memory.remembered().get("net1", ())
                self.asked = frozenset(self.memory.said), frozenset(map(str, remembered))
            case "answer":
                self.answer()
                self.do("ask")
            case "say" | "half":
                answers = {(ip_address(each), VIRTUAL) for each in self.ovn}
                due = [each for each in self.memory.due() if each.is_ready(answers)]
                self.announce(due if event == "say" else due[: len(due) // 2])
            case "restart":
                self.memory = Memory(said={key: Said(mac=mac) for key, mac in self.memory.macs.items()})
                self.do("ask")

    def answer(self) -> None:
        before, remembered = self.asked
        found = [local_ip(each) for each in ADDRESSES if each in self.local_ips]
        found += [
            Neighbour(address=ip_address(each), mac=mac, lasting=False)
            for each in sorted(remembered - self.local_ips)
            if (mac := self.holders.get(each))
        ]
        self.memory.hear(network(" ".join(self.tables), *found) if found and self.tables else {}, before)  # type: ignore[arg-type]

    def announce(self, due: list[Announcement]) -> None:
        for each in due:
            for port in each.ports:
                if port in self.tables:
                    self.tables[port][str(each.key[1])] = each.mac
        self.memory.note(due)


@given(EVENTS, st.randoms(use_true_random=False))
def test_whatever_happens_in_between_machines_come_to_know_the_truth(events: list[str], random: Random):
    """After the last event every cache has the right MAC for each address, and no announcement is pending."""
    world = World(random)
    world.do("ask")
    for event in events:
        world.do(event)
    world.do("apply")
    for _ in range(4):
        world.do("ask")
        world.answer()
        world.do("say")
    for table in world.tables.values():
        assert {each for each in ADDRESSES if table[each] == VIRTUAL} == world.local_ips
    assert list(world.memory.due()) == []
    assert {str(address) for _, address in world.memory.said} <= world.local_ips


@pytest.mark.parametrize("step", range(3))
def test_a_local_ip_that_goes_between_any_two_steps_leaves_nobody_with_its_mac(step: int):
    world = World(Random(1))
    world.do("ask")
    world.local_ips.add("10.0.0.200")
    world.do("apply")
    for number, event in enumerate(("answer", "say", "answer", "say", "answer", "say", "answer", "say")):
        if number == step + 1:
            world.local_ips.clear()
            world.do("apply")
        world.do(event)
    assert world.tables["a"]["10.0.0.200"] == OWNERS

"""Pending announcements of a node, given earlier ones and the neighbours that it receives."""

from collections.abc import Mapping
from ipaddress import ip_address
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.queries.neighbours import Neighbour, NetworkAnnouncements
from fairlead.node.announcement_log import AnnouncedMac, Announcement, AnnouncementLog
from harness.neighbours import OWNER_MAC, VIRTUAL_MAC, local_ip, ordinary

BOTH = ("10.0.0.200", "fd00:a::200")
L, L6 = ip_address("10.0.0.200"), ip_address("fd00:a::200")


def network(ports: str, *neighbours: Neighbour) -> Mapping[str, NetworkAnnouncements]:
    return {"net1": NetworkAnnouncements(ports=frozenset(ports.split()), neighbours=neighbours)}


def hear(memory: AnnouncementLog, networks: Mapping[str, NetworkAnnouncements]) -> None:
    memory.set_desired(networks, frozenset(memory.announced))


def say(memory: AnnouncementLog, *virtual: str) -> list[tuple[str, str, str]]:
    """Pending announcements: address, MAC and ports. OVN answers these addresses with the virtual MAC."""
    answers = {(ip_address(each), VIRTUAL_MAC) for each in virtual}
    due = [each for each in memory.due() if each.is_ready(answers)]
    memory.record(due)
    return [(str(each.key[1]), each.mac, " ".join(each.ports)) for each in due]


def test_local_ip_is_announced_once_to_every_port_except_its_owner():
    memory = AnnouncementLog()
    hear(memory, network("a b owner", local_ip(unheard=("owner",)), local_ip("fd00:a::200")))
    assert say(memory) == []
    assert say(memory, "fd00:a::200") == [("fd00:a::200", VIRTUAL_MAC, "a b owner")]
    assert say(memory, *BOTH) == [("10.0.0.200", VIRTUAL_MAC, "a b")]
    assert say(memory, *BOTH) == []
    assert memory.pending_addresses() == {"net1": [L, L6]}


def test_new_and_returning_ports_receive_announcements():
    """A machine that moved to this node may have missed the announcement on the previous one."""
    memory = AnnouncementLog()
    for ports, said in (("a", "a"), ("a b", "b"), ("b", ""), ("a b", "a")):
        hear(memory, network(ports, local_ip()))
        assert say(memory, *BOTH) == ([("10.0.0.200", VIRTUAL_MAC, said)] if said else [])
        memory.set_desired(memory.networks, frozenset(memory.announced))


def test_owner_mac_is_announced_after_deletion_of_a_local_ip_and_then_dropped():
    memory = AnnouncementLog()
    hear(memory, network("a owner", local_ip(unheard=("owner",))))
    say(memory, *BOTH)
    hear(memory, network("a owner", ordinary(unheard=("owner",))))
    assert memory.pending_addresses() == {"net1": [L]}
    assert say(memory, *BOTH) == [("10.0.0.200", OWNER_MAC, "a")]
    assert say(memory, *BOTH) == []
    assert memory.pending_addresses() == {"net1": [L]}
    assert say(memory) == [("10.0.0.200", OWNER_MAC, "a")], "who has asked OVN meanwhile knows the old one"
    assert memory.pending_addresses() == {}
    hear(memory, {})
    assert (memory.announced, say(memory)) == ({}, [])


def test_address_without_an_owner_is_dropped():
    memory = AnnouncementLog(announced={("net1", L): AnnouncedMac(mac=VIRTUAL_MAC)})
    assert memory.pending_addresses() == {"net1": [L]}
    hear(memory, {})
    assert (memory.announced, memory.pending_addresses(), say(memory)) == ({}, {}, [])


def test_announcement_made_during_a_request_is_part_of_the_next_request():
    """The Local IP was deleted before the server's answer, and the request did not contain the announcement."""
    memory = AnnouncementLog()
    hear(memory, network("a", local_ip()))
    before = frozenset(memory.announced)
    say(memory, *BOTH)
    memory.set_desired({}, before)
    assert memory.pending_addresses() == {"net1": [L]}
    hear(memory, network("a", ordinary()))
    assert say(memory) == [("10.0.0.200", OWNER_MAC, "a")]


def test_restart_repeats_announcements_and_sends_a_missed_deletion():
    memory = AnnouncementLog(
        announced={("net1", L): AnnouncedMac(mac=VIRTUAL_MAC), ("net1", L6): AnnouncedMac(mac=VIRTUAL_MAC)}
    )
    assert memory.pending_addresses() == {"net1": [L, L6]}
    hear(memory, network("a b", local_ip(), ordinary("fd00:a::200")))
    assert say(memory, *BOTH) == [("10.0.0.200", VIRTUAL_MAC, "a b"), ("fd00:a::200", OWNER_MAC, "a b")]


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
        self.holders = dict.fromkeys(ADDRESSES, OWNER_MAC)
        self.tables: dict[str, dict[str, str]] = {"a": dict(self.holders)}
        self.ovn: set[str] = set()
        """Local IPs that OVN answers, which lag behind the model."""
        self.memory = AnnouncementLog()
        self.asked = (frozenset[object](), frozenset[str]())

    def learned(self, address: str) -> str:
        """MAC that a machine learns from a request.

        Machines request no Local IP that the agent has not received, because it cannot know of one that is created and
        deleted while it is not connected.
        """
        known = ("net1", ip_address(address)) in self.memory.announced
        return VIRTUAL_MAC if address in self.ovn and known else self.holders[address]

    def do(self, event: str) -> None:
        address, name = self.random.choice(ADDRESSES), self.random.choice("abc")
        match event:
            case "come":
                self.local_ips.add(address)
            case "go":
                self.local_ips.discard(address)
            case "holder":
                self.holders[address] = self.random.choice([OWNER_MAC, "02:00:00:00:00:c9"])
            case "plug":
                self.tables.setdefault(name, {each: self.learned(each) for each in ADDRESSES})
            case "unplug":
                self.tables.pop(name, None)
            case "learn" if name in self.tables:
                self.tables[name][address] = self.learned(address)
            case "apply":
                self.ovn = set(self.local_ips)
            case "ask":
                remembered = self.memory.pending_addresses().get("net1", ())
                self.asked = frozenset(self.memory.announced), frozenset(map(str, remembered))
            case "answer":
                self.answer()
                self.do("ask")
            case "say" | "half":
                answers = {(ip_address(each), VIRTUAL_MAC) for each in self.ovn}
                due = [each for each in self.memory.due() if each.is_ready(answers)]
                self.announce(due if event == "say" else due[: len(due) // 2])
            case "restart":
                self.memory = AnnouncementLog(
                    announced={key: AnnouncedMac(mac=mac) for key, mac in self.memory.macs.items()}
                )
                self.do("ask")

    def answer(self) -> None:
        before, remembered = self.asked
        found = [local_ip(each) for each in ADDRESSES if each in self.local_ips]
        found += [
            Neighbour(address=ip_address(each), mac=mac, lasting=False)
            for each in sorted(remembered - self.local_ips)
            if (mac := self.holders.get(each))
        ]
        self.memory.set_desired(network(" ".join(self.tables), *found) if found and self.tables else {}, before)  # type: ignore[arg-type]

    def announce(self, due: list[Announcement]) -> None:
        for each in due:
            for port in each.ports:
                if port in self.tables:
                    self.tables[port][str(each.key[1])] = each.mac
        self.memory.record(due)


@given(EVENTS, st.randoms(use_true_random=False))
def test_neighbour_caches_converge_after_any_sequence_of_events(events: list[str], random: Random):
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
        assert {each for each in ADDRESSES if table[each] == VIRTUAL_MAC} == world.local_ips
    assert list(world.memory.due()) == []
    assert {str(address) for _, address in world.memory.announced} <= world.local_ips


@pytest.mark.parametrize("step", range(3))
def test_local_ip_deleted_between_any_two_steps_leaves_no_stale_mac(step: int):
    world = World(Random(1))
    world.do("ask")
    world.local_ips.add("10.0.0.200")
    world.do("apply")
    for number, event in enumerate(("answer", "say", "answer", "say", "answer", "say", "answer", "say")):
        if number == step + 1:
            world.local_ips.clear()
            world.do("apply")
        world.do(event)
    assert world.tables["a"]["10.0.0.200"] == OWNER_MAC

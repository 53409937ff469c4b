"""Record of the node's neighbour announcements, and the announcements that are due. Pure.

Announcements are compared with the desired neighbours each time. Missed updates and a change of the server therefore do
not matter, and an agent without a record announces everything once.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.queries.neighbours import AnnouncedAddresses, Neighbour, NetworkAnnouncements

Answer: TypeAlias = tuple[IPAddress, str | None]
"""Address and the MAC in OVN's answer for it; None if OVN does not answer."""
Key: TypeAlias = tuple[str, IPAddress]
"""Network id and address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedMac:
    mac: str
    ports: frozenset[str] = frozenset()
    """Ports that received the announcement; unknown after a restart."""
    replaced: str | None = None
    """Previous MAC. OVN may still have answered with it after the announcement, so machines may have resolved it
    again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """Announcement that is due, and the ports that will have received it."""

    key: Key
    mac: str
    lasting: bool
    ports: tuple[str, ...]
    recipients: frozenset[str]
    previous_mac: str | None = None
    """Previously announced MAC."""
    is_repeat: bool = False
    """True if it was announced before, while OVN may still have answered with the old MAC."""

    def is_ready(self, answers: Container[Answer]) -> bool:
        """Return whether the announcement may be sent, given OVN's answers on this node. A Local IP is announced once
        OVN answers for it. A port's MAC may be announced at any time, and is final once OVN has ceased to answer with
        the old one."""
        address = self.key[1]
        if self.lasting:
            return (address, self.mac) in answers
        return not self.is_repeat or (address, self.previous_mac) not in answers


@dataclass(slots=True)
class AnnouncementLog:
    """Record of announcements and desired neighbours. Only its methods change it."""

    announced: dict[Key, AnnouncedMac] = field(default_factory=dict)
    networks: Mapping[str, NetworkAnnouncements] = field(default_factory=dict)
    """Desired neighbours from the last answer of a server."""

    @property
    def macs(self) -> dict[Key, str]:
        return {key: said.mac for key, said in self.announced.items()}

    def pending_addresses(self) -> AnnouncedAddresses:
        """Return the addresses by network that may need a further announcement: all except those announced finally."""
        found: dict[str, list[IPAddress]] = {}
        done = {
            (network_id, each.address)
            for network_id, each in self._neighbours()
            if not each.lasting and self._is_final(network_id, each)
        }
        for network_id, address in self.announced.keys() - done:
            found.setdefault(network_id, []).append(address)
        return {network_id: sorted(addresses, key=str) for network_id, addresses in sorted(found.items())}

    def set_desired(self, networks: Mapping[str, NetworkAnnouncements], before: Set[Key]) -> None:
        """Take the desired neighbours. Entries announced before the request (`before`) and absent from the answer are
        forgotten. A port that has left is removed from the recipients, because its name may return as another
        machine."""
        self.networks = networks
        for key in before - {(network_id, each.address) for network_id, each in self._neighbours()}:
            self.announced.pop(key, None)
        for key, said in self.announced.items():
            if key[0] in networks and not said.ports <= networks[key[0]].ports:
                self.announced[key] = replace(said, ports=said.ports & networks[key[0]].ports)

    def due(self) -> Iterator[Announcement]:
        for network_id, neighbour in self._neighbours():
            key, wanted = (network_id, neighbour.address), self._recipients(network_id, neighbour)
            said = self.announced.get(key)
            same = said is not None and said.mac == neighbour.mac
            heard = said.ports if said is not None and same else frozenset()
            again = said is not None and same and said.replaced is not None
            if not same or wanted - heard or again:
                yield Announcement(
                    key=key,
                    mac=neighbour.mac,
                    lasting=neighbour.lasting,
                    ports=tuple(sorted(wanted if again else wanted - heard)),
                    recipients=wanted,
                    previous_mac=None if said is None else (said.replaced if same else said.mac),
                    is_repeat=again,
                )

    def record(self, announcements: Iterable[Announcement]) -> None:
        """Record sent announcements."""
        for each in announcements:
            replaced = None if each.is_repeat or each.lasting else each.previous_mac
            self.announced[each.key] = AnnouncedMac(mac=each.mac, ports=each.recipients, replaced=replaced)

    def _is_final(self, network_id: str, neighbour: Neighbour) -> bool:
        said = self.announced.get((network_id, neighbour.address))
        return said is not None and said.mac == neighbour.mac and said.replaced is None

    def _recipients(self, network_id: str, neighbour: Neighbour) -> frozenset[str]:
        return self.networks[network_id].ports.difference(neighbour.unheard)

    def _neighbours(self) -> Iterator[tuple[str, Neighbour]]:
        return ((network_id, each) for network_id, one in self.networks.items() for each in one.neighbours)

"""Record of the node's neighbour announcements, and the announcements that are due. Pure.

Announcements are compared with the desired neighbours each time. Missed updates and a change of the server therefore do
not matter, and an agent without a record announces everything once.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.queries.neighbours import Neighbour, Neighbourhood, Remembered

Answer: TypeAlias = tuple[IPAddress, str | None]
"""Address and the MAC in OVN's answer for it; None if OVN does not answer."""
Key: TypeAlias = tuple[str, IPAddress]
"""Network id and address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
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
    heard: frozenset[str]
    replaces: str | None = None
    """Previously announced MAC."""
    again: bool = False
    """True if it was announced before, while OVN may still have answered with the old MAC."""

    def is_ready(self, answers: Container[Answer]) -> bool:
        """Return whether the announcement may be sent, given OVN's answers on this node. A Local IP is announced once
        OVN answers for it. A port's MAC may be announced at any time, and is final once OVN has ceased to answer with
        the old one."""
        address = self.key[1]
        if self.lasting:
            return (address, self.mac) in answers
        return not self.again or (address, self.replaces) not in answers


@dataclass(slots=True)
class Memory:
    """Record of announcements and desired neighbours. Only its methods change it."""

    said: dict[Key, Said] = field(default_factory=dict)
    networks: Mapping[str, Neighbourhood] = field(default_factory=dict)
    """Desired neighbours from the last answer of a server."""

    @property
    def macs(self) -> dict[Key, str]:
        return {key: said.mac for key, said in self.said.items()}

    def remembered(self) -> Remembered:
        """Return the addresses by network that may need a further announcement: all except those announced finally."""
        found: dict[str, list[IPAddress]] = {}
        done = {
            (network_id, each.address)
            for network_id, each in self._neighbours()
            if not each.lasting and self._is_said(network_id, each)
        }
        for network_id, address in self.said.keys() - done:
            found.setdefault(network_id, []).append(address)
        return {network_id: sorted(addresses, key=str) for network_id, addresses in sorted(found.items())}

    def hear(self, networks: Mapping[str, Neighbourhood], before: Set[Key]) -> None:
        """Take the desired neighbours. Entries announced before the request (`before`) and absent from the answer are
        forgotten. A port that has left is removed from the recipients, because its name may return as another
        machine."""
        self.networks = networks
        for key in before - {(network_id, each.address) for network_id, each in self._neighbours()}:
            self.said.pop(key, None)
        for key, said in self.said.items():
            if key[0] in networks and not said.ports <= networks[key[0]].ports:
                self.said[key] = replace(said, ports=said.ports & networks[key[0]].ports)

    def due(self) -> Iterator[Announcement]:
        for network_id, neighbour in self._neighbours():
            key, wanted = (network_id, neighbour.address), self._hearers(network_id, neighbour)
            said = self.said.get(key)
            same = said is not None and said.mac == neighbour.mac
            heard = said.ports if said is not None and same else frozenset()
            again = said is not None and same and said.replaced is not None
            if not same or wanted - heard or again:
                yield Announcement(
                    key=key,
                    mac=neighbour.mac,
                    lasting=neighbour.lasting,
                    ports=tuple(sorted(wanted if again else wanted - heard)),
                    heard=wanted,
                    replaces=None if said is None else (said.replaced if same else said.mac),
                    again=again,
                )

    def note(self, announcements: Iterable[Announcement]) -> None:
        """Record sent announcements."""
        for each in announcements:
            replaced = None if each.again or each.lasting else each.replaces
            self.said[each.key] = Said(mac=each.mac, ports=each.heard, replaced=replaced)

    def _is_said(self, network_id: str, neighbour: Neighbour) -> bool:
        said = self.said.get((network_id, neighbour.address))
        return said is not None and said.mac == neighbour.mac and said.replaced is None

    def _hearers(self, network_id: str, neighbour: Neighbour) -> frozenset[str]:
        return self.networks[network_id].ports.difference(neighbour.unheard)

    def _neighbours(self) -> Iterator[tuple[str, Neighbour]]:
        return ((network_id, each) for network_id, one in self.networks.items() for each in one.neighbours)

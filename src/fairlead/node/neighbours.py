"""What a node has said to its machines of their neighbours, and what it has to say next. Pure.

What was said is compared with what should be known, again and again. So it does not matter what was missed, or which
server says it: who knows of nothing says all of it once.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fairlead.model.addresses import IPAddress
from fairlead.model.neighbours import Neighbour, Neighbourhood, Remembered

Answer: TypeAlias = tuple[IPAddress, str | None]
"""An address, and a MAC by which OVN answers for it."""
Key: TypeAlias = tuple[str, IPAddress]
"""A network and an address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    mac: str
    ports: frozenset[str] = frozenset()
    """That have heard it. Nobody knows which those are after a start."""
    replaced: str | None = None
    """The MAC that was said before, by which OVN may have answered after this one was said: machines that have asked
    meanwhile know that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What these machines are to be told, and who has heard it then."""

    key: Key
    mac: str
    lasting: bool
    ports: tuple[str, ...]
    heard: frozenset[str]
    replaces: str | None = None
    """The MAC that was said of the address before."""
    again: bool = False
    """Whether it has been said before OVN did not answer with the old MAC any more."""

    def is_ready(self, answers: Container[Answer]) -> bool:
        """Given what OVN answers on this node. A Local IP is said when OVN answers for it. The MAC of a port is good at
        any time, and good for ever when OVN has ceased to answer with another."""
        address = self.key[1]
        if self.lasting:
            return (address, self.mac) in answers
        return not self.again or (address, self.replaces) not in answers


@dataclass(slots=True)
class Memory:
    """A value that only its own methods change."""

    said: dict[Key, Said] = field(default_factory=dict)
    networks: Mapping[str, Neighbourhood] = field(default_factory=dict)
    """What servers have told last."""

    @property
    def macs(self) -> dict[Key, str]:
        return {key: said.mac for key, said in self.said.items()}

    def remembered(self) -> Remembered:
        """The addresses of which something may have to be said yet: all but those that were said for the last time."""
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
        """What should be known. Of the keys that something was said of `before` the question, those that are not among
        it are forgotten; and a port that has left has heard nothing: it may come back as somebody else's."""
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
        """They are made."""
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

"""Networks, routers, ports and floating IPs that others wrote into the dataplane: facts, in the shape of documents.

They stand in the snapshot beside the documents that are stored, under the same keys, so whatever finds its way through
networks finds it through these too. They are never stored, have no rows of ours and count in no quota; no door shows
or changes them: whose they are has an API of its own. A load balancer may be on those of writers in `SERVED`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, TypeGuard

from fairlead.model.network import FloatingIP, Network, Port, PortUse, Router


class Writer(StrEnum):
    """Who writes networks into the same database."""

    NEUTRON = "neutron"
    """OpenStack's, by its driver ML2/OVN."""
    LXD = "lxd"
    INCUS = "incus"

    @property
    def program(self) -> str:
        """Its name, for people."""
        return {Writer.NEUTRON: "Neutron", Writer.LXD: "LXD", Writer.INCUS: "Incus"}[self]


SERVED = frozenset({Writer.NEUTRON})
"""On whose networks somebody makes the ports that load balancers need (Octavia's provider agent in Neutron)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignNetwork(Network):
    row: str
    """Of the dataplane: the name that the writer gave it, `@`, and what the dataplane finds it by."""
    writer: Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignRouter(Router):
    row: str
    writer: Writer


PROXY_OWNER = "fairlead:load_balancer_proxy"
"""The `device_owner` of a proxy's port in Neutron. Of one that begins with "network:" and has no port security Neutron
writes no MAC, so routers would have to ask for it, and remember it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignPort(Port):
    row: str
    writer: Writer

    @property
    def use(self) -> PortUse:
        return PortUse.PROXY if self.device_owner == PROXY_OWNER else Port.use.__get__(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFloatingIP(FloatingIP):
    row: str
    writer: Writer


def is_managed_elsewhere(network: object) -> TypeGuard[ForeignNetwork]:
    """Whether load balancers there are only its writer's own."""
    return isinstance(network, ForeignNetwork) and network.writer not in SERVED


Foreign: TypeAlias = ForeignNetwork | ForeignRouter | ForeignPort | ForeignFloatingIP
FOREIGN = (ForeignNetwork, ForeignRouter, ForeignPort, ForeignFloatingIP)


def is_foreign(document: object) -> TypeGuard[Foreign]:
    return isinstance(document, FOREIGN)


def called(document: object) -> list[str]:
    """The name that others gave its row, as nodes report it; nothing of ours, whose rows have their ids for names."""
    return [document.row.partition("@")[0]] if is_foreign(document) else []


def row_of(document: Network | Router | Port) -> str:
    """How a dataplane calls it: ours by their ids."""
    return document.row if is_foreign(document) else document.id

"""Unmanaged networks, routers, ports and floating IPs, which other programs write into the OVN database.

They are facts in the shape of documents, in the snapshot beside the stored documents, under the same keys, so every
lookup through networks includes them. They are never stored, get no rows from Fairlead and count in no quota. No API of
Fairlead shows or changes them, because their manager has its own API. Load balancers can be on networks of the writers
in `SERVED`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, TypeGuard

from fairlead.model.documents.network import FloatingIP, Network, Port, PortUse, Router


class Writer(StrEnum):
    """Program that writes networks into the same Northbound database."""

    NEUTRON = "neutron"
    """OpenStack Neutron with the driver ML2/OVN."""
    LXD = "lxd"
    INCUS = "incus"

    @property
    def program(self) -> str:
        """Display name of the program."""
        return {Writer.NEUTRON: "Neutron", Writer.LXD: "LXD", Writer.INCUS: "Incus"}[self]


SUPPORTED_WRITERS = frozenset({Writer.NEUTRON})
"""Writers on whose networks an agent creates the ports
that load balancers need (Octavia's provider agent in Neutron)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmanagedNetwork(Network):
    row: str
    """Name in the dataplane: `<name given by the writer>@<UUID of the row>`."""
    writer: Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmanagedRouter(Router):
    row: str
    writer: Writer


PROXY_DEVICE_OWNER = "fairlead:load_balancer_proxy"
"""`device_owner` of a proxy's port in Neutron. It must not start with "network:", because Neutron writes no MAC for
such a port without port security, so routers would resolve and cache its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmanagedPort(Port):
    row: str
    writer: Writer

    @property
    def use(self) -> PortUse:
        return PortUse.PROXY if self.device_owner == PROXY_DEVICE_OWNER else Port.use.__get__(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmanagedFloatingIP(FloatingIP):
    row: str
    writer: Writer


def is_managed_elsewhere(network: object) -> TypeGuard[UnmanagedNetwork]:
    """Return whether load balancers on the network are reserved for its own manager."""
    return isinstance(network, UnmanagedNetwork) and network.writer not in SUPPORTED_WRITERS


UnmanagedObject: TypeAlias = UnmanagedNetwork | UnmanagedRouter | UnmanagedPort | UnmanagedFloatingIP
UNMANAGED_TYPES = (UnmanagedNetwork, UnmanagedRouter, UnmanagedPort, UnmanagedFloatingIP)


def is_unmanaged(document: object) -> TypeGuard[UnmanagedObject]:
    return isinstance(document, UNMANAGED_TYPES)


def row_names(document: object) -> list[str]:
    """Return the row's name given by the writer, as nodes report it.
    Rows of managed objects have none: they are named by their ids."""
    return [document.row.partition("@")[0]] if is_unmanaged(document) else []


def row_name(document: Network | Router | Port) -> str:
    """Return the object's name in the dataplane: the id for managed objects."""
    return document.row if is_unmanaged(document) else document.id

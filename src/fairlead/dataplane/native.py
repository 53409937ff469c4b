"""Rows of a plain Linux host: its VIPs, the slot tables of their services, and tunnels to other hosts.

Each port of each VIP has 256 slots, equal on all hosts of a deployment. The hash of a packet's addresses and ports
gives its slot, so every host that receives a packet knows its destination. A slot of another host is forwarded there
through a tunnel; a slot of this host is translated (DNAT) to the member.
"""

import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from fairlead.dataplane.rows import Key
from fairlead.model.documents.addresses import IPAddress, IPNetwork, render_endpoint
from fairlead.model.documents.loadbalancer import Transport

TUNNEL_PORTS = 4790, 4791, 4792
"""UDP ports of the tunnels between hosts. Packets of the host itself to them carry no mark and go to no VIP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTunnel:
    """Tunnel to another host."""

    host: int
    """Number of the host, used in rows of services."""
    address: IPAddress
    """The host's own address, the endpoint of the tunnel."""

    @property
    def key(self) -> Key:
        return ("Way", str(self.host))

    def __str__(self) -> str:
        return f"Way {self.host} {self.address}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMemberAddress:
    """Address of this host that an operator has declared as a member address.

    Services never send packets to the host's other addresses, so its own sockets are not reachable through a VIP.
    """

    address: IPAddress

    @property
    def key(self) -> Key:
        return ("Own", str(self.address))

    def __str__(self) -> str:
        return f"Own {self.address}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vip:
    """VIP with slots that are known to this host."""

    address: IPAddress
    is_local: bool
    """Whether the host has the address itself, so that its routing daemon announces it: a serving member is here."""
    is_received: bool = False
    """Whether packets to it are received here without an announcement: a proxy still has older connections."""

    @property
    def key(self) -> Key:
        return vip_key(self.address)

    def __str__(self) -> str:
        return f"Vip {self.address}{' held' if self.is_local else ''}{' taken' if self.is_received else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMember:
    """Member on this host, the destination of the translation."""

    address: IPAddress
    port: int

    def __str__(self) -> str:
        return render_endpoint(self.address, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherHost:
    """Another host, by number. That host selects the member itself."""

    host: int

    def __str__(self) -> str:
        return f"host {self.host}"


Target: TypeAlias = LocalMember | OtherHost


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Service: one port of one VIP."""

    vip: IPAddress
    transport: Transport
    port: int
    by_source: bool
    """Whether the source address alone determines the slot."""
    slots: bytes
    """Target of each of the 256 slots, as an index into `targets`. Empty if no member is available; the host then
    rejects packets.

    Targets are numbered in the order of their first slot, so that slot tables assigned in the same way are equal even
    if the members differ.
    """
    targets: tuple[Target, ...]
    previous_owners: tuple[tuple[int, int], ...] = ()
    """Slots with a previous owner, sorted: the slot, and the number of the host that owned it before this host."""
    clients: tuple[IPNetwork, ...] | None = None
    """Allowed CIDRs, sorted, none contained in another; None for all clients."""

    @property
    def key(self) -> Key:
        return ("Service", str(self.vip), self.transport.value, str(self.port))

    def __str__(self) -> str:
        counts = Counter(self.slots)
        parts = [f"{target} {counts[place]}" for place, target in enumerate(self.targets)] or ["nobody"]
        dealt = f" dealt {zlib.crc32(self.slots):08x}" if self.slots else ""
        source = " by source" if self.by_source else ""
        before = (
            f" before {' '.join(f'{slot}:{host}' for slot, host in self.previous_owners)}"
            if self.previous_owners
            else ""
        )
        clients = "" if self.clients is None else f" clients {' '.join(map(str, self.clients)) or 'none'}"
        where = f"{self.transport.value} {render_endpoint(self.vip, self.port)}"
        return f"Service {where}{source} -> {', '.join(parts)}{dealt}{before}{clients}"


NativeRow: TypeAlias = HostTunnel | LocalMemberAddress | Vip | Service


def references(row: NativeRow) -> Iterable[Key]:
    """Return the keys of the VIP and the tunnels that a service needs."""
    if isinstance(row, Service):
        return [vip_key(row.vip), *(("Way", str(host)) for host in sorted(tunnel_hosts(row)))]
    return []


def tunnel_hosts(row: Service) -> set[int]:
    """Return the numbers of the hosts that a service needs tunnels to."""
    return {target.host for target in row.targets if isinstance(target, OtherHost)} | {
        host for _, host in row.previous_owners
    }


def vip_key(address: IPAddress) -> Key:
    return ("Vip", str(address))

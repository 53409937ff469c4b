"""Rows of a plain Linux host: addresses that it serves, whose each slot of each port is, and the way to other hosts.

All hosts of a deployment have the same slots: 256 for each port of each VIP, one of which a packet's addresses and
ports give. So whichever host gets a packet knows whose it is. What is elsewhere is led to its host, what is here is
translated to the member.
"""

import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from fairlead.dataplane.rows import Key
from fairlead.model.addresses import IPAddress, IPNetwork, render_endpoint
from fairlead.model.loadbalancer import Transport

TUNNEL_PORTS = 4790, 4791, 4792
"""Of UDP, to which hosts lead packets to each other. What a host itself sends to them goes by no mark, to no VIP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How packets get to another host."""

    host: int
    """Its number, by which rows of services call it."""
    address: IPAddress
    """The host's own, to which they go in a tunnel."""

    @property
    def key(self) -> Key:
        return ("Way", str(self.host))

    def __str__(self) -> str:
        return f"Way {self.host} {self.address}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """An address of this host at which members may be, because an operator said so. At its other ones, which only the
    host knows, services lead nobody to its own sockets."""

    address: IPAddress

    @property
    def key(self) -> Key:
        return ("Own", str(self.address))

    def __str__(self) -> str:
        return f"Own {self.address}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vip:
    """An address of which this host knows whose each packet is."""

    address: IPAddress
    held: bool
    """Whether the host has it itself, so that its routing daemon announces it: a member that serves is here."""
    taken: bool = False
    """Whether packets to it end here though nobody is told so: a proxy has connections that it got before."""

    @property
    def key(self) -> Key:
        return vip_key(self.address)

    def __str__(self) -> str:
        return f"Vip {self.address}{' held' if self.held else ''}{' taken' if self.taken else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """A member on this host, to which packets are translated."""

    address: IPAddress
    port: int

    def __str__(self) -> str:
        return render_endpoint(self.address, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class There:
    """A member on another host, which knows by itself which one: the number of the host."""

    host: int

    def __str__(self) -> str:
        return f"host {self.host}"


Target: TypeAlias = Here | There


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One port of one VIP."""

    vip: IPAddress
    transport: Transport
    port: int
    by_source: bool
    """Whether a client's address alone gives its slot."""
    slots: bytes
    """Of each of the 256 slots the place of its member in `targets`, which are numbered as slots come to them: tables
    that were dealt in the same way are equal, whoever the members are. Empty when nobody serves: then all are
    refused."""
    targets: tuple[Target, ...]
    before: tuple[tuple[int, int], ...] = ()
    """Of slots that are this host's since lately, sorted: the slot, and the number of the host that had it."""
    clients: tuple[IPNetwork, ...] | None = None
    """Who may connect, sorted, none of them within another; None is everybody."""

    @property
    def key(self) -> Key:
        return ("Service", str(self.vip), self.transport.value, str(self.port))

    def __str__(self) -> str:
        counts = Counter(self.slots)
        parts = [f"{target} {counts[place]}" for place, target in enumerate(self.targets)] or ["nobody"]
        dealt = f" dealt {zlib.crc32(self.slots):08x}" if self.slots else ""
        source = " by source" if self.by_source else ""
        before = f" before {' '.join(f'{slot}:{host}' for slot, host in self.before)}" if self.before else ""
        clients = "" if self.clients is None else f" clients {' '.join(map(str, self.clients)) or 'none'}"
        where = f"{self.transport.value} {render_endpoint(self.vip, self.port)}"
        return f"Service {where}{source} -> {', '.join(parts)}{dealt}{before}{clients}"


NativeRow: TypeAlias = Way | Own | Vip | Service


def references(row: NativeRow) -> Iterable[Key]:
    """A service needs its VIP, and the ways to all hosts that it leads to."""
    if isinstance(row, Service):
        return [vip_key(row.vip), *(("Way", str(host)) for host in sorted(led_to(row)))]
    return []


def led_to(row: Service) -> set[int]:
    """The numbers of the hosts to which it needs a way."""
    return {target.host for target in row.targets if isinstance(target, There)} | {host for _, host in row.before}


def vip_key(address: IPAddress) -> Key:
    return ("Vip", str(address))

"""Neighbour announcements of a node: the MAC of each address, where it has changed or can change.

The MAC of a Local IP is the virtual MAC by which OVN answers on its network, and not that of the port with the address.
A client with the port's MAC in its neighbour cache bypasses the Local IP until the entry expires. A node therefore
announces the virtual MAC when a Local IP is created, and the port's own MAC when it is deleted. Only the node stores
which addresses it has announced.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from itertools import chain
from typing import TypeAlias

from fairlead.model.documents.addresses import IPAddress, derive_mac
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.local_ip import LocalIP, Mode
from fairlead.model.documents.network import Port, PortUse
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps

MAX_LOCAL_IPS_PER_NETWORK = 2_000
"""Maximum Local IPs of one network that a node receives; the oldest ones."""
MAX_NEIGHBOURS = 10_000
"""Maximum neighbours that a node receives and stores; networks with few of them have priority."""
AnnouncedAddresses: TypeAlias = Mapping[str, Collection[IPAddress]]
"""Network id -> addresses that a node has announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    address: IPAddress
    mac: str
    lasting: bool
    """Whether the address is a Local IP. Other addresses are announced once more and can then be forgotten."""
    unheard: tuple[str, ...] = ()
    """Ports of the node with the same address, which must not receive the announcement.
    They would detect an address conflict (RFC 5227)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkAnnouncements:
    """Announcements for one network on one node."""

    ports: frozenset[str]
    """Ports of the node's machines on the network."""
    neighbours: tuple[Neighbour, ...]


def list_announcements(
    snapshot: Snapshot, port_ids: Iterable[str], remembered: AnnouncedAddresses
) -> Steps[Mapping[str, NetworkAnnouncements]]:
    """Return the announcements for networks of these ports with a Local IP or a remembered address. Remembered
    addresses on other networks are ignored."""
    ports = _by_network(snapshot, port_ids)
    yield
    found, room = dict[str, NetworkAnnouncements](), MAX_NEIGHBOURS
    for network_id in sorted(ports, key=lambda each: (len(snapshot.network_local_ips.get(each, NO_IDS)), each)):
        here, neighbours = ports[network_id], list[Neighbour]()
        asked = frozenset(remembered.get(network_id, ()))
        oldest = _oldest(snapshot, network_id, min(room, MAX_LOCAL_IPS_PER_NETWORK))
        for neighbour in chain(
            _local_ip_neighbours(network_id, oldest, here), _port_neighbours(snapshot, network_id, asked, here)
        ):
            neighbours.append(neighbour)
            yield
        neighbours = neighbours[:room]
        room -= len(neighbours)
        if neighbours:
            in_order = sorted(neighbours, key=lambda each: _sort_key(each.address))
            found[network_id] = NetworkAnnouncements(ports=here, neighbours=tuple(in_order))
    return found


def _by_network(snapshot: Snapshot, port_ids: Iterable[str]) -> Mapping[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for port in map(snapshot.ports.get, port_ids):
        if port is not None and port.use is PortUse.MACHINE:
            found.setdefault(port.network_id, set()).add(port.id)
    return {network_id: frozenset(ports) for network_id, ports in found.items()}


def _oldest(snapshot: Snapshot, network_id: str, most: int) -> list[LocalIP]:
    local_ips = [snapshot.local_ips[each] for each in snapshot.network_local_ips.get(network_id, NO_IDS)]
    return (
        local_ips if len(local_ips) <= most else nsmallest(most, local_ips, key=lambda each: (each.created_at, each.id))
    )


def _local_ip_neighbours(network_id: str, local_ips: Iterable[LocalIP], here: frozenset[str]) -> Iterator[Neighbour]:
    mac = derive_mac(network_id)
    for local_ip in local_ips:
        unheard = tuple(sorted(here.intersection(_ports_with_address(local_ip))))
        yield Neighbour(address=local_ip.address, mac=mac, lasting=True, unheard=unheard)


def _port_neighbours(
    snapshot: Snapshot, network_id: str, remembered: frozenset[IPAddress], here: frozenset[str]
) -> Iterator[Neighbour]:
    """Yield the remembered addresses that are no Local IP and that a port has."""
    if not remembered:
        return
    local_ips = {snapshot.local_ips[each].address for each in snapshot.network_local_ips.get(network_id, NO_IDS)}
    for address in sorted(remembered - local_ips, key=_sort_key):
        port = snapshot.ports.get(snapshot.addresses.get((network_id, address), ""))
        mac = None if port is None else _mac_of(port)
        if port is not None and mac is not None:
            yield Neighbour(address=address, mac=mac, lasting=False, unheard=tuple(here & {port.id}))


def _ports_with_address(local_ip: LocalIP) -> Iterator[str]:
    """Yield the ports of machines with the address."""
    yield local_ip.port_id
    if local_ip.mode is Mode.PASSTHROUGH:
        yield from local_ip.replicas


def _mac_of(port: Port) -> str | None:
    """Return the MAC of the port's addresses on its network; None if no port answers for them."""
    match port.use:
        case PortUse.MACHINE | PortUse.ROUTER_INTERFACE | PortUse.ROUTER_GATEWAY:
            return port.mac_address
        case PortUse.VIP:
            return derive_mac(port.network_id)
        case _:
            return None


def _sort_key(address: IPAddress) -> tuple[int, IPAddress]:
    return address.version, address

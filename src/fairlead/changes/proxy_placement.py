"""Placement of proxies: a port per chassis with a proxy, created on demand.

A chassis gets a proxy if its own machines reach the network, so their connections stay local. Proxies use addresses of
the tenant's subnet, so their number is limited; clients on other chassis use remote proxies.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from fairlead.changes.addresses import AddressHolder, AddressRequest, choose_fixed_ips, choose_mac
from fairlead.changes.refusal import Refused
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import Network, Port, PortUse
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.proxy_place import ProxyPlace, proxy_chassis
from fairlead.model.queries.local_datapaths import local_places
from fairlead.model.queries.proxies import choose_chassis, proxy_name, proxy_port_id, proxy_ports
from fairlead.model.queries.proxy_homes import find_proxy_network, find_proxy_subnets
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot

MAX_PROXIES, MAX_GUEST_PROXIES = 8, 2
"""Default maximum of proxies per place, on the project's own networks and on those of other projects. The latter use
the other project's addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    own: int = MAX_PROXIES
    guests: int = MAX_GUEST_PROXIES

    def of(self, snapshot: Snapshot, place: ProxyPlace) -> int:
        network = snapshot.networks.get(place.at)
        is_guest = network is not None and network.project_id != place.project_id
        return self.guests if is_guest else self.own


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyPlacement:
    """Changes of the proxies of a place."""

    create_on: tuple[str, ...] = ()
    """Chassis that need a proxy."""
    delete: tuple[Port, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.create_on or self.delete)


def find_placement(
    snapshot: Snapshot, place: ProxyPlace, near: Collection[str], most: int = MAX_PROXIES
) -> ProxyPlacement:
    """Return the required changes; `near` are the chassis that reach the network and have an agent connected to this
    server.

    A proxy is removed only if it is no longer useful on its chassis and the limit leaves no room for a chassis that
    needs one. Usefulness does not depend on the connections of this server, because two servers would otherwise undo
    each other's changes. Chassis with unknown state, after a start, keep their proxy. Duplicates on a chassis, and then
    proxies on a network that is no longer the place's, are removed first.
    """
    ports = proxy_ports(snapshot, place)
    second = set(snapshot.place_proxies.get(place, NO_IDS)) - {port.id for port in ports}
    if second:
        return ProxyPlacement(delete=tuple(snapshot.ports[each] for each in sorted(second)))
    home = find_proxy_network(snapshot, place) if place in snapshot.proxied else None
    if home is None or any(port.network_id != home.id for port in ports):
        return ProxyPlacement(delete=tuple(port for port in ports if home is None or port.network_id != home.id))
    had = {proxy_chassis(port): port for port in ports}
    serving = {name for name in near if _can_serve(snapshot, name)}
    if len(serving | had.keys()) <= most:
        return ProxyPlacement(create_on=tuple(sorted(serving - had.keys())))
    needed = serving - had.keys() | {name for name in had if _is_proxy_useful(snapshot, name, home.id)}
    chosen = choose_chassis(needed, needed & had.keys(), proxy_name(snapshot, place), most)
    idle = sorted(had.keys() - chosen)[: max(0, most - len(chosen))]
    gone = [port for name, port in had.items() if name not in chosen and name not in idle]
    return ProxyPlacement(create_on=tuple(sorted(chosen - had.keys())), delete=tuple(gone))


def place_proxies(
    snapshot: Snapshot, place: ProxyPlace, near: Collection[str], now: datetime, most: int = MAX_PROXIES
) -> Changes:
    """Create and delete ports of proxies. Chassis without a free address get no proxy;
    their clients use remote ones."""
    placement, home = find_placement(snapshot, place, near, most), find_proxy_network(snapshot, place)
    gone = tuple(Owner(Kind.PORT, port.id) for port in placement.delete)
    ports: list[Port] = []
    draft = apply_changes(snapshot, Changes(deletes=gone), snapshot.revision)
    for chassis in placement.create_on:
        assert home is not None  # noqa: S101 - otherwise `come` is empty
        try:
            port = _make(draft, place, home, chassis, now)
        except Refused:
            break
        ports.append(port)
        draft = apply_changes(draft, Changes(puts=(port,)), snapshot.revision)
    reads = (Owner(Kind.NETWORK, home.id),) if ports and home is not None else ()
    return Changes(puts=tuple(ports), deletes=gone, reads=reads)


def _can_serve(snapshot: Snapshot, chassis: str) -> bool:
    agent, node = snapshot.agents.get(chassis), snapshot.chassis.get(chassis)
    return agent is not None and agent.is_responsive and node is not None and node.alive


def _is_proxy_useful(snapshot: Snapshot, chassis: str, network_id: str) -> bool:
    agent, node = snapshot.agents.get(chassis), snapshot.chassis.get(chassis)
    is_there = node is not None and node.alive and (agent is None or agent.is_responsive)
    return is_there and _has_machines(snapshot, chassis, network_id)


def _has_machines(snapshot: Snapshot, chassis: str, network_id: str) -> bool:
    """Return whether the chassis reaches the network by ports of machines, without ports of proxies."""
    node = snapshot.chassis[chassis]
    machines = (each for each in node.ports if each in snapshot.ports and snapshot.ports[each].use is not PortUse.PROXY)
    return network_id in local_places(snapshot, machines)


def _make(snapshot: Snapshot, place: ProxyPlace, network: Network, chassis: str, now: datetime) -> Port:
    """Return the port of a proxy. Raises Refused if no address is free."""
    identity = proxy_port_id(proxy_name(snapshot, place), chassis)
    mac = choose_mac(snapshot, identity)
    asked = tuple(AddressRequest(subnet_id=subnet.id) for subnet in find_proxy_subnets(snapshot, place, network))
    return Port(
        id=identity,
        project_id=place.project_id,
        created_at=now,
        name="proxy",
        network_id=network.id,
        mac_address=mac,
        fixed_ips=choose_fixed_ips(snapshot, AddressHolder(port_id=identity, mac=mac, network=network), asked or None),
        device_id=place.at,
        device_owner=PortUse.PROXY.value,
        host=chassis,
    )

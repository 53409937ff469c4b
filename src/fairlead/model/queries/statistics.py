"""Traffic statistics: counters of nodes, and the listener that each counter belongs to.

A node does not know listeners. It counts by address and port in a place: its switch has flows in a logical datapath,
and connections in a conntrack zone. Tenants can have equal addresses, so the place decides. A plain host counts
announced addresses, which are unique everywhere.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.loadbalancer import LoadBalancer, Transport, transport
from fairlead.model.documents.port_ranges import contains_port
from fairlead.model.queries.domain import Topology
from fairlead.model.snapshot import Snapshot

CountingDomain: TypeAlias = tuple[frozenset[str], frozenset[str], str]
"""Networks and routers that the place's project, and guests on a network, can reach from it; and the place itself."""
MAX_SAMPLE_INTERVAL_SECONDS = 3600
"""Maximum interval between two samples of a node, in seconds."""
MAX_SERVICES_PER_REQUEST = 1000
"""Maximum services in one request of a node, because they are looked up in one step."""


@dataclass(frozen=True, slots=True)
class Datapath:
    """Logical switch or router."""

    key: int
    """Tunnel key of the datapath."""

    def __str__(self) -> str:
        return f"datapath:{self.key}"


@dataclass(frozen=True, slots=True)
class ConntrackZone:
    """Zone of the connection tracker."""

    name: str
    """Name of the zone in ovn-controller (ovn-controller(8), ct-zone-*): that of a port or a datapath."""

    def __str__(self) -> str:
        return f"zone:{self.name}"


@dataclass(frozen=True, slots=True)
class AnnouncedPlace:
    """Place of announced addresses, which are unique in the deployment."""

    def __str__(self) -> str:
        return "announced:"


CountingPlace: TypeAlias = Datapath | ConntrackZone | AnnouncedPlace
"""Place where a node counts."""


def parse_place(text: str) -> CountingPlace:
    """Parse the result of `str`. Raises ValueError."""
    kind, _, name = text.partition(":")
    match kind:
        case "datapath":
            return Datapath(int(name))
        case "zone":
            return ConntrackZone(name)
        case "announced":
            return AnnouncedPlace()
        case _:
            raise ValueError(f"{text!r} is none of datapath:KEY, zone:NAME and announced:")


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedService:
    """Virtual address and port in one place of a node, with a counter there."""

    place: CountingPlace
    transport: Transport
    address: IPAddress
    port: int


def find_listeners(snapshot: Snapshot, services: Iterable[tuple[str | None, CountedService]]) -> list[str | None]:
    """Return the listener of each service; None for a service that no listener has any more.

    Each service comes with the id of the network, router or port of its place, if it has one.
    """
    asked = list(services)
    topology = Topology(snapshot)
    domains = {place: _counting_domain(topology, place) for place in {place for place, _ in asked} if place is not None}
    return [None if place is None else _find_listener(topology, domains[place], service) for place, service in asked]


def _find_listener(topology: Topology, domain: CountingDomain, service: CountedService) -> str | None:
    balancers = _find_balancers(topology, domain, service.address)
    return next(filter(None, (listener_at(balancer, service) for balancer in balancers)), None)


def listener_at(balancer: LoadBalancer, service: CountedService) -> str | None:
    """Return the id of the load balancer's listener with this port; None if there is none."""
    for listener in balancer.listeners:
        if contains_port(listener.ports, service.port) and transport(listener.protocol) is service.transport:
            return listener.id
    return None


def _find_balancers(topology: Topology, domain: CountingDomain, address: IPAddress) -> Iterator[LoadBalancer]:
    """Yield the load balancers with this address as a VIP, or as a floating IP that leads to their VIP."""
    snapshot, (networks, routers, place) = topology.snapshot, domain
    gateways = (router.gateway for each in routers if (router := snapshot.routers.get(each)) is not None)
    outside = {gateway.network_id for gateway in gateways if gateway is not None}
    ports = [snapshot.addresses.get((network, address)) for network in {*networks, *outside}]
    floating = (one for router in routers for one in snapshot.router_floating_ips.get(router, NO_IDS))
    ports += (snapshot.floating_ips[one].port_id for one in floating if snapshot.floating_ips[one].address == address)
    owners = (snapshot.vip_owner.get(port) for port in ports if port is not None)
    for balancer in (snapshot.load_balancers[owner] for owner in owners if owner is not None):
        if _is_in_domain(topology, balancer, place):
            yield balancer
    yield from _balancers_behind_floating_ip(snapshot, place, address)


def _balancers_behind_floating_ip(snapshot: Snapshot, network_id: str, address: IPAddress) -> Iterator[LoadBalancer]:
    """Yield the load balancer behind a floating IP of this external network, if the address is one."""
    port = snapshot.ports.get(snapshot.addresses.get((network_id, address), ""))
    floating_ip = snapshot.floating_ips.get(port.device_id) if port is not None else None
    owner = snapshot.vip_owner.get(floating_ip.port_id or "") if floating_ip is not None else None
    if owner is not None:
        yield snapshot.load_balancers[owner]


def _is_in_domain(topology: Topology, balancer: LoadBalancer, place: str) -> bool:
    domain = topology.domain_of(balancer)
    return place == balancer.vip.network_id or place in domain.networks or place in domain.routers


def _counting_domain(topology: Topology, place: str) -> CountingDomain:
    snapshot = topology.snapshot
    place = snapshot.called.get(place, place)
    if place in snapshot.ports:
        place = snapshot.ports[place].network_id
    if place in snapshot.networks:
        found = topology.connected(place, snapshot.networks[place].project_id)
        return found.networks, found.routers, place
    interfaces = iter(snapshot.router_interfaces.get(place, NO_IDS))
    joined = next(interfaces, None)  # one interface suffices: paths through it reach all networks of the router
    if joined is None:
        return frozenset(), frozenset(), place
    start = snapshot.ports[joined].network_id
    reached = [topology.connected(start, each) for each in topology.projects_crossing(place)]
    networks = frozenset(network for each in reached for network in each.networks)
    return networks, frozenset(router for each in reached for router in each.routers), place

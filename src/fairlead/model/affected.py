"""Who depends on whom: the owners whose rows may differ after a change of documents.

This is the one place that knows. It names owners, and may name too many, never too few: what it misses stays wrong in
the dataplane until the next look at everything.
"""

from collections.abc import Iterable, Iterator
from typing import assert_never

from immutables import Map

from fairlead.model.catalog import AvailabilityZone, AvailabilityZoneProfile, Flavor, FlavorProfile
from fairlead.model.domain import Ways
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.network import (
    LOAD_BALANCER_PROBE,
    ROUTER_GATEWAY,
    ROUTER_INTERFACE,
    FloatingIP,
    Network,
    Port,
    Router,
)
from fairlead.model.owner import WITHOUT_ROWS, Kind, Owner, VipNetwork, creation_order
from fairlead.model.quota import Quota
from fairlead.model.reach import walk
from fairlead.model.snapshot import NOBODY, NONE, Ids, Snapshot, vip_network


def affected(old: Snapshot, new: Snapshot, changed: Iterable[Owner]) -> tuple[Owner, ...]:
    """The owners whose rows may differ between two snapshots that differ in the documents of `changed`.

    In an order in which they can be applied: what rows refer to is created before them and deleted after them.
    """
    owners: set[Owner] = set()
    for owner in changed:
        if owner.kind in WITHOUT_ROWS:
            continue
        owners.add(owner)
        for snapshot in (old, new):
            owners.update(_dependents(snapshot, owner))
        owners.update(_first_or_last_vip(old, new, owner))
        owners.update(_moved_network(old, new, owner))
        owners.update(_rerouted(old, new, owner))
    gone = {owner for owner in owners if not _exists(new, owner)}
    return (*sorted(owners - gone, key=creation_order), *sorted(gone, key=creation_order, reverse=True))


def _dependents(snapshot: Snapshot, owner: Owner) -> Iterator[Owner]:
    """Owners whose rows are compiled from this one's document too."""
    match snapshot.find(owner):
        case Network():
            for index in (snapshot.network_routers, snapshot.network_gateways):
                yield from (Owner(Kind.ROUTER, identity) for identity in index.get(owner.id, NONE))
            if owner.id in snapshot.network_vips:
                yield VipNetwork(owner.id).owner
        case Router():
            yield from _vip_networks_of_router(snapshot, owner.id)
            yield from _floating_ips(snapshot.router_floating_ips, owner.id)
        case Port() as port:
            yield from _dependents_of_port(snapshot, port)
        case FloatingIP(port_id=str() as port_id) if port_id in snapshot.vip_owner:
            yield Owner(Kind.LOAD_BALANCER, snapshot.vip_owner[port_id])
        case LoadBalancer() | FloatingIP() | None:
            pass
        case Flavor() | FlavorProfile() | AvailabilityZone() | AvailabilityZoneProfile() | Quota():
            pass
        case unknown:
            assert_never(unknown)


def _dependents_of_port(snapshot: Snapshot, port: Port) -> Iterator[Owner]:
    yield from _watchers(snapshot, port)
    yield from _floating_ips(snapshot.port_floating_ips, port.id)
    if port.device_owner == ROUTER_INTERFACE:
        ways = Ways(snapshot)
        yield Owner(Kind.ROUTER, port.device_id)
        yield from vip_networks(ways, port.network_id, ways.projects(port.device_id))
    if port.device_owner == ROUTER_INTERFACE or _is_gateway(snapshot, port):
        yield from _crossing(snapshot, port.network_id)
    if port.device_owner == ROUTER_GATEWAY:
        yield Owner(Kind.ROUTER, port.device_id)


def _is_gateway(snapshot: Snapshot, port: Port) -> bool:
    """Whether the port has the address by which its network is left."""
    network = snapshot.networks.get(port.network_id)
    gateways = {subnet.gateway for subnet in network.subnets} if network else set()
    return any(fixed.address in gateways for fixed in port.fixed_ips)


def _rerouted(old: Snapshot, new: Snapshot, owner: Owner) -> Iterator[Owner]:
    """What depends on where routers and gateways lead: whether members with a probe can be reached."""
    if _way_out(old, owner) == _way_out(new, owner):
        return
    for snapshot in (old, new):
        ports = list(snapshot.router_interfaces.get(owner.id, NONE))[:1]  # it joins them all
        joined = [snapshot.ports[port].network_id for port in ports]
        for network_id in (*joined, *([owner.id] if owner.id in snapshot.networks else [])):
            yield from _crossing(snapshot, network_id)


def _way_out(snapshot: Snapshot, owner: Owner) -> object:
    match snapshot.find(owner):
        case Router(gateway=gateway, routes=routes):
            return gateway, routes
        case Network(subnets=subnets):
            return tuple((subnet.id, subnet.gateway) for subnet in subnets)
        case _:
            return None


def _crossing(snapshot: Snapshot, network_id: str) -> Iterator[Owner]:
    """The load balancers with probes whose way to a member may be in this domain."""
    networks, _ = walk(snapshot, network_id) if snapshot.crossing else (frozenset(), frozenset())
    subnets = (subnet.id for network in networks for subnet in snapshot.networks[network].subnets)
    found = (each for subnet in subnets for each in snapshot.crossing.get(subnet, NONE))
    return (Owner(Kind.LOAD_BALANCER, identity) for identity in found)


def _watchers(snapshot: Snapshot, port: Port) -> Iterator[Owner]:
    """The load balancers that probe this port, or from its address."""
    ports = [port]
    if port.device_owner == LOAD_BALANCER_PROBE:
        ports += (snapshot.ports[other] for other in snapshot.network_ports.get(port.network_id, NONE))
    addresses = (fixed.address for each in ports for fixed in each.fixed_ips)
    watching = (balancer_id for address in addresses for balancer_id in snapshot.watched.get(address, NONE))
    return (Owner(Kind.LOAD_BALANCER, balancer_id) for balancer_id in watching)


def _floating_ips(index: Map[str, Ids], key: str) -> Iterator[Owner]:
    return (Owner(Kind.FLOATING_IP, identity) for identity in index.get(key, NONE))


def _vip_networks_of_router(snapshot: Snapshot, router_id: str) -> Iterator[Owner]:
    ways = Ways(snapshot)
    for port_id in list(snapshot.router_interfaces.get(router_id, NONE))[:1]:  # a way through it leads to them all
        yield from vip_networks(ways, snapshot.ports[port_id].network_id, ways.projects(router_id))


def _first_or_last_vip(old: Snapshot, new: Snapshot, owner: Owner) -> Iterator[Owner]:
    """What VIPs share comes with the first one and goes with the last; those between do not touch it."""
    for snapshot in (old, new):
        balancer = snapshot.load_balancers.get(owner.id)
        if balancer is not None:
            network_id, project_id = balancer.vip.network_id, balancer.project_id
            before, after = (each.vip_projects.get(network_id, NOBODY) for each in (old, new))
            if (project_id in before) != (project_id in after):
                yield VipNetwork(network_id).owner
                yield vip_network(snapshot, network_id, project_id).owner


def _moved_network(old: Snapshot, new: Snapshot, owner: Owner) -> Iterator[Owner]:
    """What depends on whose a network is and which addresses it has: where ways lead, and what its guests may have."""
    if owner.kind is not Kind.NETWORK or _place(old, owner.id) == _place(new, owner.id):
        return
    for snapshot in (old, new):
        network = snapshot.networks.get(owner.id)
        if network is not None:
            ways, guests = Ways(snapshot), snapshot.vip_projects.get(owner.id, NOBODY)
            yield from vip_networks(ways, owner.id, {network.project_id, *guests, *ways.at(owner.id)})
            for balancers in guests.values():
                yield from (Owner(Kind.LOAD_BALANCER, identity) for identity in balancers)


def _place(snapshot: Snapshot, network_id: str) -> object:
    network = snapshot.networks.get(network_id)
    cidrs = None if network is None else tuple(subnet.cidr for subnet in network.subnets)
    return network and (network.project_id, network.shared, network.external, cidrs)


def _exists(snapshot: Snapshot, owner: Owner) -> bool:
    if owner.kind is Kind.VIP_NETWORK:
        found = VipNetwork.of(owner)
        projects = snapshot.vip_projects.get(found.network_id, NOBODY)
        return bool(projects) if found.guest is None else found.guest in projects
    return snapshot.find(owner) is not None


def vip_networks(ways: Ways, network_id: str, projects: Iterable[str]) -> Iterator[Owner]:
    """Those whose load balancers may have rows on this network or beyond it."""
    snapshot = ways.snapshot
    for project_id in projects:
        for identity in ways.walk(network_id, project_id).networks:
            found = snapshot.vip_projects.get(identity, NOBODY)
            if project_id in found or (found and snapshot.networks[identity].project_id == project_id):
                yield vip_network(snapshot, identity, project_id).owner

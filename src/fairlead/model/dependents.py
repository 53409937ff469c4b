"""Which owners depend on a document, by kind: those besides its own whose rows may differ when it has changed.

Each function gets the snapshots before and after. It may name too many, never too few: what it misses stays wrong
in the dataplane until the next look at everything.
"""

from collections.abc import Iterable, Iterator

from immutables import Map

from fairlead.model.domain import Topology
from fairlead.model.indexes import NO_IDS, Ids
from fairlead.model.network import Port, PortUse
from fairlead.model.owner import Kind, Owner, VipNetwork
from fairlead.model.reach import joined_with
from fairlead.model.snapshot import Snapshot, vip_network


def of_network(old: Snapshot, new: Snapshot, owner: Owner) -> Iterator[Owner]:
    for snapshot in (old, new):
        if owner.id in snapshot.networks:
            for index in (snapshot.network_routers, snapshot.network_gateways):
                yield from (Owner(Kind.ROUTER, identity) for identity in index.get(owner.id, NO_IDS))
            if owner.id in snapshot.network_vips:
                yield VipNetwork(owner.id).owner
    yield from _moved_network(old, new, owner.id)
    if _gateways(old, owner.id) != _gateways(new, owner.id):
        for snapshot in (old, new):
            if owner.id in snapshot.networks:
                yield from _crossing(snapshot, owner.id)


def of_router(old: Snapshot, new: Snapshot, owner: Owner) -> Iterator[Owner]:
    rerouted = _way_out(old, owner.id) != _way_out(new, owner.id)
    for snapshot in (old, new):
        if owner.id in snapshot.routers:
            yield from _vip_networks_of_router(snapshot, owner.id)
            yield from _floating_ips(snapshot.router_floating_ips, owner.id)
            yield from _vip_gateway(snapshot, owner.id)
            if rerouted:
                found = snapshot.router_vips.get(owner.id, NO_IDS)
                yield from (Owner(Kind.LOAD_BALANCER, identity) for identity in found)
        if rerouted:
            ports = list(snapshot.router_interfaces.get(owner.id, NO_IDS))[:1]  # it joins all that it has one on
            for network_id in (snapshot.ports[port].network_id for port in ports):
                yield from _crossing(snapshot, network_id)


def of_port(old: Snapshot, new: Snapshot, owner: Owner) -> Iterator[Owner]:
    for snapshot in (old, new):
        port = snapshot.ports.get(owner.id)
        if port is not None:
            yield from _dependents_of_port(snapshot, port)


def of_floating_ip(old: Snapshot, new: Snapshot, owner: Owner) -> Iterator[Owner]:
    for snapshot in (old, new):
        floating_ip = snapshot.floating_ips.get(owner.id)
        balancer_id = snapshot.vip_owner.get(floating_ip.port_id or "") if floating_ip else None
        if balancer_id is not None:
            yield Owner(Kind.LOAD_BALANCER, balancer_id)


def of_load_balancer(old: Snapshot, new: Snapshot, owner: Owner) -> Iterator[Owner]:
    """What VIPs share comes with the first one and goes with the last; those between do not touch it."""
    for snapshot in (old, new):
        balancer = snapshot.load_balancers.get(owner.id)
        if balancer is not None:
            network_id, project_id = balancer.vip.network_id, balancer.project_id
            before, after = (each.vip_projects.get(network_id, NO_IDS) for each in (old, new))
            if balancer.router_id is not None:
                if (balancer.router_id in old.router_vips) != (balancer.router_id in new.router_vips):
                    yield Owner(Kind.VIP_GATEWAY, balancer.router_id)
            elif (project_id in before) != (project_id in after):
                yield VipNetwork(network_id).owner
                yield vip_network(snapshot, network_id, project_id).owner
            near_before, near_after = (each.near_projects.get(network_id, NO_IDS) for each in (old, new))
            if (project_id in near_before) != (project_id in near_after):
                yield vip_network(snapshot, network_id, project_id).near


def _dependents_of_port(snapshot: Snapshot, port: Port) -> Iterator[Owner]:
    yield from _watchers(snapshot, port)
    yield from _floating_ips(snapshot.port_floating_ips, port.id)
    if port.use is PortUse.ROUTER_INTERFACE:
        topology = Topology(snapshot)
        yield Owner(Kind.ROUTER, port.device_id)
        yield from vip_networks(topology, port.network_id, topology.projects_through(port.device_id))
    if port.use is PortUse.ROUTER_INTERFACE or _is_gateway(snapshot, port):
        yield from _crossing(snapshot, port.network_id)
    if port.use is PortUse.ROUTER_GATEWAY:
        yield Owner(Kind.ROUTER, port.device_id)


def _is_gateway(snapshot: Snapshot, port: Port) -> bool:
    """Whether the port has the address by which its network is left."""
    network = snapshot.networks.get(port.network_id)
    gateways = {subnet.gateway for subnet in network.subnets} if network else set()
    return any(fixed.address in gateways for fixed in port.fixed_ips)


def _way_out(snapshot: Snapshot, router_id: str) -> object:
    router = snapshot.routers.get(router_id)
    return router and (router.gateway, router.routes)


def _gateways(snapshot: Snapshot, network_id: str) -> object:
    network = snapshot.networks.get(network_id)
    return network and tuple((subnet.id, subnet.gateway) for subnet in network.subnets)


def _crossing(snapshot: Snapshot, network_id: str) -> Iterator[Owner]:
    """The load balancers with probes whose way to a member may be in this domain."""
    networks, routers = joined_with(snapshot, network_id) if snapshot.crossing else (frozenset(), frozenset())
    subnets = (subnet.id for network in networks for subnet in snapshot.networks[network].subnets)
    found = (each for place in (*subnets, *routers) for each in snapshot.crossing.get(place, NO_IDS))
    return (Owner(Kind.LOAD_BALANCER, identity) for identity in found)


def _watchers(snapshot: Snapshot, port: Port) -> Iterator[Owner]:
    """The load balancers that probe this port, or from its address, and those that lead to it whoever is near."""
    ports = [port]
    if port.use is PortUse.PROBE:
        ports += (snapshot.ports[other] for other in snapshot.network_ports.get(port.network_id, NO_IDS))
    addresses = (fixed.address for each in ports for fixed in each.fixed_ips)
    watching = {
        balancer_id
        for address in addresses
        for index in (snapshot.watched, snapshot.near_members)
        for balancer_id in index.get(address, NO_IDS)
    }
    return (Owner(Kind.LOAD_BALANCER, balancer_id) for balancer_id in watching)


def _floating_ips(index: Map[str, Ids], key: str) -> Iterator[Owner]:
    return (Owner(Kind.FLOATING_IP, identity) for identity in index.get(key, NO_IDS))


def _vip_networks_of_router(snapshot: Snapshot, router_id: str) -> Iterator[Owner]:
    topology = Topology(snapshot)
    for port_id in list(snapshot.router_interfaces.get(router_id, NO_IDS))[:1]:  # a way through it leads to them all
        yield from vip_networks(topology, snapshot.ports[port_id].network_id, topology.projects_through(router_id))


def _moved_network(old: Snapshot, new: Snapshot, network_id: str) -> Iterator[Owner]:
    """What depends on who owns a network and on its addresses: what is connected, and what its guests may have."""
    if _place(old, network_id) == _place(new, network_id):
        return
    for snapshot in (old, new):
        network = snapshot.networks.get(network_id)
        if network is not None:
            topology, guests = Topology(snapshot), snapshot.vip_projects.get(network_id, NO_IDS)
            projects = {network.project_id, *guests, *topology.routers_of_projects(network_id)}
            yield from vip_networks(topology, network_id, projects)
            balancers = snapshot.network_vips.get(network_id, NO_IDS)
            yield from (Owner(Kind.LOAD_BALANCER, identity) for identity in balancers)
            for router_id in snapshot.network_gateways.get(network_id, NO_IDS):
                yield from _vip_gateway(snapshot, router_id)


def _place(snapshot: Snapshot, network_id: str) -> object:
    network = snapshot.networks.get(network_id)
    cidrs = None if network is None else tuple(subnet.cidr for subnet in network.subnets)
    return network and (network.project_id, network.shared, network.external, cidrs)


def vip_networks(topology: Topology, network_id: str, projects: Iterable[str]) -> Iterator[Owner]:
    """Those whose load balancers may have rows on this network or beyond it; and the gateways that have such VIPs."""
    snapshot = topology.snapshot
    for project_id in projects:
        connected = topology.connected(network_id, project_id)
        for identity in connected.networks:
            found = snapshot.vip_projects.get(identity, NO_IDS)
            if project_id in found or (found and snapshot.networks[identity].project_id == project_id):
                yield vip_network(snapshot, identity, project_id).owner
        for identity in connected.routers:
            yield from _vip_gateway(snapshot, identity)


def _vip_gateway(snapshot: Snapshot, router_id: str) -> Iterator[Owner]:
    """What is there if the gateway of the router has VIPs."""
    if router_id in snapshot.router_vips:
        yield Owner(Kind.VIP_GATEWAY, router_id)

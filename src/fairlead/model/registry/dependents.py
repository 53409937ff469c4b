"""Dependents of a document, by kind: the other owners with rows that may differ after it has changed.

Each function gets the topology before and after the change; a topology caches lookups for all documents of the same
change. The result may include too many owners, never too few: a missing owner keeps wrong rows until the next
resync.
"""

from collections.abc import Iterable, Iterator
from ipaddress import ip_network

from immutables import Map

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.hosts import Host
from fairlead.model.documents.indexes import NO_IDS, Ids
from fairlead.model.documents.local_ip import LocalIP, Mode
from fairlead.model.documents.network import FloatingIP, Port, PortUse
from fairlead.model.documents.owner import Kind, Owner, VipNetwork
from fairlead.model.documents.proxy_place import place_of, place_of_port
from fairlead.model.documents.unmanaged import is_unmanaged
from fairlead.model.queries.domain import Topology
from fairlead.model.queries.host_proxies import is_on_hosts, owners_with_host_proxies
from fairlead.model.queries.placement import find_balancers_in_prefixes
from fairlead.model.queries.reachability import find_connected
from fairlead.model.queries.unmanaged_probe_ports import balancers_monitoring, find_probe_port
from fairlead.model.snapshot import Snapshot, uses_gateway_addresses, vip_network


def of_network(before: Topology, after: Topology, owner: Owner) -> Iterator[Owner]:
    old, new = before.snapshot, after.snapshot
    for snapshot in (old, new):
        if owner.id in snapshot.networks:
            for index in (snapshot.network_routers, snapshot.network_gateways):
                yield from (Owner(Kind.ROUTER, identity) for identity in index.get(owner.id, NO_IDS))
            if owner.id in snapshot.vip_projects:
                yield VipNetwork(owner.id).owner
    yield from _dependents_of_changed_network(before, after, owner.id)
    yield from _dependents_of_probe_source(old, new, owner.id)
    if _gateways(old, owner.id) != _gateways(new, owner.id):
        for snapshot in (old, new):
            if owner.id in snapshot.networks:
                yield from _balancers_monitored_across(snapshot, owner.id)


def of_router(before: Topology, after: Topology, owner: Owner) -> Iterator[Owner]:
    rerouted = _gateway_and_routes(before.snapshot, owner.id) != _gateway_and_routes(after.snapshot, owner.id)
    for topology in (before, after):
        snapshot = topology.snapshot
        if owner.id in snapshot.routers:
            yield from _vip_networks_of_router(topology, owner.id)
            yield from _floating_ips(snapshot.router_floating_ips, owner.id)
            yield from _vip_gateway(snapshot, owner.id)
            if rerouted:
                found = snapshot.router_vips.get(owner.id, NO_IDS)
                yield from (Owner(Kind.LOAD_BALANCER, identity) for identity in found)
        if rerouted:
            yield from _networks_with_proxies(snapshot, owner.id)
            # One interface is enough, because the router connects all its networks.
            ports = list(snapshot.router_interfaces.get(owner.id, NO_IDS))[:1]
            for network_id in (snapshot.ports[port].network_id for port in ports):
                yield from _balancers_monitored_across(snapshot, network_id)


def of_port(before: Topology, after: Topology, owner: Owner) -> Iterator[Owner]:
    for topology in (before, after):
        port = topology.snapshot.ports.get(owner.id)
        if port is not None:
            yield from _dependents_of_port(topology, port)
            if port.use is PortUse.PROBE:
                yield from _dependents_of_probe_source(before.snapshot, after.snapshot, port.network_id)


def of_host(before: Topology, after: Topology, owner: Owner) -> Iterator[Owner]:
    """Yield the load balancers and hosts that depend on a plain host:

    * load balancers with members behind it, because their rows contain its number and draining state;
    * load balancers with members at a changed address of the host;
    * all hosts if its IP versions change, because these are in rows of the other hosts.
    """
    was, becomes = (each.snapshot.hosts.get(owner.id) for each in (before, after))
    kept = (was and _service_attributes(was)) == (becomes and _service_attributes(becomes))
    old, new = (frozenset(host.prefixes) if host is not None else frozenset() for host in (was, becomes))
    changed = [prefix.cidr for prefix in (old ^ new if kept else old | new)]
    if was and becomes:
        changed += map(ip_network, {*was.addresses} ^ {*becomes.addresses})
    if not kept:
        yield from owners_with_host_proxies(after.snapshot)
    if was and becomes and _ip_versions(was) != _ip_versions(becomes):
        yield from (Owner(Kind.HOST, each) for each in after.snapshot.hosts)
    for topology in (before, after):
        found = find_balancers_in_prefixes(topology.snapshot, changed)
        yield from (Owner(Kind.LOAD_BALANCER, identity) for identity in found)


def _service_attributes(host: Host) -> tuple[int, bool, bool]:
    """Return the attributes that service rows contain. The end of the return period is not one of them."""
    return host.number, host.draining, host.returning_until is not None


def _ip_versions(host: Host) -> set[int]:
    return {address.version for address in host.addresses}


def of_floating_ip(before: Topology, after: Topology, owner: Owner) -> Iterator[Owner]:
    for snapshot in (before.snapshot, after.snapshot):
        floating_ip = snapshot.floating_ips.get(owner.id)
        if floating_ip is not None:
            yield from _balancer_at(snapshot, floating_ip)


def of_local_ip(before: Topology, after: Topology, owner: Owner) -> Iterator[Owner]:
    """Yield the port with the address, the ports that may use it too, and owners that VIPs share. The latter change
    with the first and the last Local IP of a project only."""
    old, new = before.snapshot, after.snapshot
    was, becomes = (each.local_ips.get(owner.id) for each in (old, new))
    yield from (Owner(Kind.PORT, port_id) for port_id, _ in _passthrough_ports(was) ^ _passthrough_ports(becomes))
    for snapshot in (old, new):
        local_ip = snapshot.local_ips.get(owner.id)
        if local_ip is not None:
            yield from _shared_by_vips(old, new, snapshot, local_ip.network_id, local_ip.project_id)
            yield from _per_chassis_owners(old, new, snapshot, local_ip.network_id, local_ip.project_id)
            if (local_ip.network_id in old.network_local_ips) != (local_ip.network_id in new.network_local_ips):
                yield VipNetwork(local_ip.network_id).owner
            if (local_ip.port_id in old.port_local_ips) != (local_ip.port_id in new.port_local_ips):
                yield Owner(Kind.PORT, local_ip.port_id)


def _passthrough_ports(local_ip: LocalIP | None) -> frozenset[tuple[str, IPAddress]]:
    """Return the ports that may use the Local IP's address besides their own, each with that address."""
    if local_ip is None or local_ip.mode is not Mode.PASSTHROUGH:
        return frozenset()
    return frozenset((port_id, local_ip.address) for port_id in local_ip.replicas)


def of_load_balancer(before: Topology, after: Topology, owner: Owner) -> Iterator[Owner]:
    """Yield the owners that VIPs share, which appear with the first VIP and disappear with the last one."""
    old, new = before.snapshot, after.snapshot
    for snapshot in (old, new):
        balancer = snapshot.load_balancers.get(owner.id)
        if balancer is not None:
            network_id, project_id = balancer.vip.network_id, balancer.project_id
            place = place_of(balancer)
            if is_on_hosts(snapshot, place) and (place in old.proxied) != (place in new.proxied):
                yield Owner(Kind.NETWORK, network_id)
            if balancer.router_id is not None:
                if (balancer.router_id in old.router_vips) != (balancer.router_id in new.router_vips):
                    yield Owner(Kind.VIP_GATEWAY, balancer.router_id)
                if (balancer.router_id in old.solicited_vips) != (balancer.router_id in new.solicited_vips):
                    yield from _gateway_port(snapshot, balancer.router_id)
                if (balancer.router_id in old.near_gateways) != (balancer.router_id in new.near_gateways):
                    yield Owner(Kind.PER_CHASSIS_GATEWAY, balancer.router_id)
                continue
            yield from _shared_by_vips(old, new, snapshot, network_id, project_id)
            yield from _per_chassis_owners(old, new, snapshot, network_id, project_id)


def _gateway_port(snapshot: Snapshot, router_id: str) -> Iterator[Owner]:
    router = snapshot.routers.get(router_id)
    if router is not None and router.gateway is not None:
        yield Owner(Kind.PORT, router.gateway.port_id)


def _shared_by_vips(
    old: Snapshot, new: Snapshot, snapshot: Snapshot, network_id: str, project_id: str
) -> Iterator[Owner]:
    if _is_presence_changed(old.vip_projects, new.vip_projects, network_id, project_id):
        yield VipNetwork(network_id).owner
        yield from (each.owner for each in _candidate_vip_networks(snapshot, network_id, project_id))


def _per_chassis_owners(
    old: Snapshot, new: Snapshot, snapshot: Snapshot, network_id: str, project_id: str
) -> Iterator[Owner]:
    if _is_presence_changed(old.near_projects, new.near_projects, network_id, project_id):
        yield from (each.per_chassis_owner for each in _candidate_vip_networks(snapshot, network_id, project_id))


def _candidate_vip_networks(snapshot: Snapshot, network_id: str, project_id: str) -> tuple[VipNetwork, ...]:
    """Return the owners that VIPs of the project share on this network. The project of a deleted network is unknown, so
    the result then has both candidates."""
    if network_id in snapshot.networks:
        return (vip_network(snapshot, network_id, project_id),)
    return VipNetwork(network_id), VipNetwork(network_id, project_id)


def _is_presence_changed(old: Map[str, Ids], new: Map[str, Ids], key: str, identity: str) -> bool:
    return (identity in old.get(key, NO_IDS)) != (identity in new.get(key, NO_IDS))


def _dependents_of_port(topology: Topology, port: Port) -> Iterator[Owner]:
    snapshot = topology.snapshot
    if is_unmanaged(port) and port.id in snapshot.vip_owner:
        yield Owner(Kind.LOAD_BALANCER, snapshot.vip_owner[port.id])
    yield from _dependents_of_probed_port(snapshot, port)
    yield from _local_ips(snapshot.port_local_ips, port.id)
    yield from _floating_ips(snapshot.port_floating_ips, port.id)
    if port.use is PortUse.ROUTER_INTERFACE:
        yield Owner(Kind.ROUTER, port.device_id)
        yield from vip_networks(topology, port.network_id, topology.projects_crossing(port.device_id))
        yield from _networks_with_proxies(snapshot, port.device_id)
    if port.use is PortUse.ROUTER_INTERFACE or _is_gateway(snapshot, port):
        yield from _balancers_monitored_across(snapshot, port.network_id)
    if port.use is PortUse.ROUTER_GATEWAY:
        yield Owner(Kind.ROUTER, port.device_id)
        at_router = (snapshot.load_balancers[each] for each in snapshot.router_vips.get(port.device_id, NO_IDS))
        leads = bool(port.fixed_ips)
        yield from (
            Owner(Kind.LOAD_BALANCER, each.id)
            for each in at_router
            if not leads or uses_gateway_addresses(snapshot, each)
        )
        if not leads:
            for identity in snapshot.router_floating_ips.get(port.device_id, NO_IDS):
                yield Owner(Kind.FLOATING_IP, identity)
                yield from _balancer_at(snapshot, snapshot.floating_ips[identity])
    place = place_of_port(port)
    if place is not None:
        yield Owner(Kind.ROUTER if place.at in snapshot.routers else Kind.NETWORK, place.at)
        yield from (Owner(Kind.LOAD_BALANCER, each) for each in snapshot.proxied.get(place, NO_IDS))


def _networks_with_proxies(snapshot: Snapshot, router_id: str) -> Iterator[Owner]:
    """Yield the networks of the router that have proxies, because routes of these proxies may use the router. Proxies
    for VIPs on the router's gateway belong to the router itself."""
    ports = (snapshot.ports[each] for each in snapshot.router_interfaces.get(router_id, NO_IDS))
    yield from (Owner(Kind.NETWORK, port.network_id) for port in ports if port.network_id in snapshot.network_proxies)


def _dependents_of_probe_source(old: Snapshot, new: Snapshot, network_id: str) -> Iterator[Owner]:
    """Yield load balancers with members on an unmanaged network that are now probed from another address. Other
    ports with the same device name there change nothing."""
    if _probe_source(old, network_id) != _probe_source(new, network_id):
        for snapshot in (old, new):
            yield from (Owner(Kind.LOAD_BALANCER, each) for each in balancers_monitoring(snapshot, network_id))


def _probe_source(snapshot: Snapshot, network_id: str) -> object:
    port = find_probe_port(snapshot, network_id)
    return port and (port.id, port.mac_address, port.fixed_ips)


def _is_gateway(snapshot: Snapshot, port: Port) -> bool:
    """Return whether the port has the gateway address of one of its network's subnets."""
    network = snapshot.networks.get(port.network_id)
    gateways = {subnet.gateway for subnet in network.subnets} if network else set()
    return any(fixed.address in gateways for fixed in port.fixed_ips)


def _gateway_and_routes(snapshot: Snapshot, router_id: str) -> object:
    router = snapshot.routers.get(router_id)
    return router and (router.gateway, router.routes)


def _gateways(snapshot: Snapshot, network_id: str) -> object:
    network = snapshot.networks.get(network_id)
    return network and tuple((subnet.id, subnet.gateway) for subnet in network.subnets)


def _balancers_monitored_across(snapshot: Snapshot, network_id: str) -> Iterator[Owner]:
    """Yield load balancers with monitors and a path to a member that may cross this domain."""
    networks, routers = find_connected(snapshot, network_id) if snapshot.crossing else (frozenset(), frozenset())
    subnets = (subnet.id for network in networks for subnet in snapshot.networks[network].subnets)
    found = (each for place in (*subnets, *routers) for each in snapshot.crossing.get(place, NO_IDS))
    return (Owner(Kind.LOAD_BALANCER, identity) for identity in found)


def _dependents_of_probed_port(snapshot: Snapshot, port: Port) -> Iterator[Owner]:
    """Yield the owners that depend on a port or its addresses.

    These are load balancers that probe the port, probe from it or prefer near members there; Local IPs with the port as
    a replica or as probe source; and its network if agents probe from the port.
    """
    ports = [port]
    # On an unmanaged network any tenant can give a port this device name.
    if port.use is PortUse.PROBE and not is_unmanaged(port):
        yield Owner(Kind.NETWORK, port.network_id)
        ports += (snapshot.ports[other] for other in snapshot.network_ports.get(port.network_id, NO_IDS))
    addresses = (fixed.address for each in ports for fixed in each.fixed_ips)
    watching = {
        balancer_id
        for address in addresses
        for index in (snapshot.watched, snapshot.near_members)
        for balancer_id in index.get(address, NO_IDS)
    }
    yield from (Owner(Kind.LOAD_BALANCER, balancer_id) for balancer_id in watching)
    for each in ports:
        yield from _local_ips(snapshot.replica_local_ips, each.id)


def _local_ips(index: Map[str, Ids], key: str) -> Iterator[Owner]:
    return (Owner(Kind.LOCAL_IP, identity) for identity in index.get(key, NO_IDS))


def _floating_ips(index: Map[str, Ids], key: str) -> Iterator[Owner]:
    return (Owner(Kind.FLOATING_IP, identity) for identity in index.get(key, NO_IDS))


def _balancer_at(snapshot: Snapshot, floating_ip: FloatingIP) -> Iterator[Owner]:
    """Yield the load balancer with the VIP that the floating IP leads to, if it leads to one."""
    balancer_id = snapshot.vip_owner.get(floating_ip.port_id or "")
    if balancer_id is not None:
        yield Owner(Kind.LOAD_BALANCER, balancer_id)


def _vip_networks_of_router(topology: Topology, router_id: str) -> Iterator[Owner]:
    snapshot = topology.snapshot
    # One interface is enough, because paths through it reach all networks of the router.
    for port_id in list(snapshot.router_interfaces.get(router_id, NO_IDS))[:1]:
        yield from vip_networks(topology, snapshot.ports[port_id].network_id, topology.projects_crossing(router_id))


def _dependents_of_changed_network(before: Topology, after: Topology, network_id: str) -> Iterator[Owner]:
    """Yield connected VIP networks, load balancers, Local IPs and proxies if a network's project or subnets changed."""
    if _network_attributes(before.snapshot, network_id) == _network_attributes(after.snapshot, network_id):
        return
    for topology in (before, after):
        snapshot = topology.snapshot
        network = snapshot.networks.get(network_id)
        if network is not None:
            guests = snapshot.vip_projects.get(network_id, NO_IDS)
            projects = {network.project_id, *guests, *topology.routers_of_projects(network_id)}
            yield from vip_networks(topology, network_id, projects)
            balancers = snapshot.network_vips.get(network_id, NO_IDS)
            yield from (Owner(Kind.LOAD_BALANCER, identity) for identity in balancers)
            local_ips = snapshot.network_local_ips.get(network_id, NO_IDS)
            yield from (Owner(Kind.LOCAL_IP, identity) for identity in local_ips)
            for router_id in snapshot.network_gateways.get(network_id, NO_IDS):
                yield from _vip_gateway(snapshot, router_id)
            for router_id in snapshot.network_routers.get(network_id, NO_IDS):
                yield from _networks_with_proxies(snapshot, router_id)


def _network_attributes(snapshot: Snapshot, network_id: str) -> object:
    network = snapshot.networks.get(network_id)
    cidrs = None if network is None else tuple(subnet.cidr for subnet in network.subnets)
    return network and (network.project_id, network.shared, network.external, cidrs)


def vip_networks(topology: Topology, network_id: str, projects: Iterable[str]) -> Iterator[Owner]:
    """Yield VIP networks and gateways of load balancers that may have rows on this network or beyond it."""
    snapshot = topology.snapshot
    if not (snapshot.vip_projects or snapshot.router_vips):
        return
    for project_id in projects:
        connected = topology.connected(network_id, project_id)
        for identity in connected.networks:
            found = snapshot.vip_projects.get(identity, NO_IDS)
            if project_id in found or (found and snapshot.networks[identity].project_id == project_id):
                yield vip_network(snapshot, identity, project_id).owner
        for identity in connected.routers:
            yield from _vip_gateway(snapshot, identity)


def _vip_gateway(snapshot: Snapshot, router_id: str) -> Iterator[Owner]:
    """Yield the owner of the gateway's VIPs if there are any."""
    if router_id in snapshot.router_vips:
        yield Owner(Kind.VIP_GATEWAY, router_id)

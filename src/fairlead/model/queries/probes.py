"""Probes: the endpoints of monitors, their source addresses, and the health that follows from observations.

Load balancers with health monitors probe their members, and Local IPs probe their replicas
(`model/queries/replica_probes.py`). Observations are facts (`model/registry/facts.py`). A member that has no result
yet, or cannot be probed here, serves. A member whose machine is gone from the model is down, because nothing can
answer.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, assert_never

from immutables import Map

from fairlead.model.documents.addresses import IPAddress, derive_link_local, derive_mac
from fairlead.model.documents.checks import PLAIN, Opening, Target, check_of, make_schedule, opening_of
from fairlead.model.documents.derived_ids import id_of_name
from fairlead.model.documents.health import (
    OVN_PROBE_TRANSPORTS,
    PROBE_TRANSPORTS,
    Endpoint,
    Health,
    HealthKey,
    combine_port_health,
)
from fairlead.model.documents.loadbalancer import (
    DownMember,
    HealthMonitor,
    Listener,
    LoadBalancer,
    Member,
    Pool,
    Transport,
    listeners_by_pool,
    listeners_of,
    probed_address,
)
from fairlead.model.documents.local_ip import LocalIP, ReplicaMonitor
from fairlead.model.documents.member_ports import probed_ports, target_ports
from fairlead.model.documents.network import Network, Port, PortUse
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.quota import ProbedAddress
from fairlead.model.documents.unmanaged import UnmanagedNetwork, is_unmanaged
from fairlead.model.queries.delegated_probing import derive_endpoint_health
from fairlead.model.queries.placement import find_member_host
from fairlead.model.queries.reachability import is_unreachable
from fairlead.model.queries.replica_probes import replica_endpoints, replicas_health
from fairlead.model.queries.unmanaged_probe_ports import find_probe_source
from fairlead.model.queries.uplink import find_client_network
from fairlead.model.snapshot import Snapshot, member_network, vip_gateway, with_health

Monitored: TypeAlias = LoadBalancer | LocalIP
"""Documents that can have probes."""
_MONITORED_KINDS = (Kind.LOAD_BALANCER, Kind.LOCAL_IP)
_NAMESPACE = bytes.fromhex("5d3b5a0e5c375a528f0c6f2b7a6a1d0e")


def find_monitored(snapshot: Snapshot, owner: Owner) -> Monitored | None:
    match owner.kind:
        case Kind.LOAD_BALANCER:
            return snapshot.load_balancers.get(owner.id)
        case Kind.LOCAL_IP:
            return snapshot.local_ips.get(owner.id)
        case _:
            return None


def has_monitors(snapshot: Snapshot) -> bool:
    """Return whether any document has probes."""
    return bool(snapshot.watched or snapshot.monitored_local_ips)


def list_monitored(snapshot: Snapshot) -> Iterator[Owner]:
    """Yield the owners of all documents with probes."""
    watching = {each for ids in snapshot.watched.values() for each in ids}
    yield from (Owner(Kind.LOAD_BALANCER, each) for each in watching)
    yield from (Owner(Kind.LOCAL_IP, each) for each in snapshot.monitored_local_ips)


def enabled_monitor(balancer: LoadBalancer, pool: Pool) -> HealthMonitor | None:
    """Return the pool's monitor; None if the monitor, pool or load balancer is disabled."""
    monitor = pool.health_monitor
    works = monitor is not None and monitor.admin_state_up and pool.admin_state_up and balancer.admin_state_up
    return monitor if works else None


def probed_members(pool: Pool) -> Iterator[Member]:
    return (member for member in pool.members if member.admin_state_up)


def find_port(snapshot: Snapshot, balancer: LoadBalancer, member: Member) -> Port | None:
    """Return the port of the machine with the member's monitor address; None if there is none."""
    address = member_network(snapshot, balancer, member), probed_address(member)
    port = snapshot.ports.get(snapshot.addresses.get(address, ""))
    return port if port is not None and port.use is PortUse.MACHINE else None


def is_same_project(balancer: LoadBalancer, port: Port) -> bool:
    """Return whether the load balancer may probe the port. The port must belong to the same project, because probes are
    unsolicited packets.

    Monitors that share an endpoint therefore belong to one project; OVN uses the schedule of one of them.
    """
    return port.project_id == balancer.project_id


def find_endpoint(
    snapshot: Snapshot, balancer: LoadBalancer, monitor: HealthMonitor, member: Member, number: int
) -> Endpoint | Health:
    """Return the endpoint of this port of the member, or its health if it is not probed."""
    where = member_network(snapshot, balancer, member)
    address = probed_address(member)
    port, announced = find_port(snapshot, balancer, member), where in snapshot.announced
    if announced:
        is_there = find_member_host(snapshot, balancer, address) is not None
    else:
        is_there = port is not None or has_no_port(snapshot, balancer, member)
    if not is_there:
        return Health.GONE
    if port is not None and not is_same_project(balancer, port):
        return Health.UNPROBEABLE
    if announced and not snapshot.agents_probe:
        return Health.UNPROBEABLE
    if snapshot.agents_probe or port is None:
        over = PROBE_TRANSPORTS[monitor.type]
        return Endpoint(
            port.id if port else "", address, 0 if over is Transport.ANY else number, over, where, monitor.id
        )
    if monitor.type not in OVN_PROBE_TRANSPORTS:
        return Health.UNPROBEABLE
    return Endpoint(port.id, address, number, OVN_PROBE_TRANSPORTS[monitor.type])


def has_no_port(snapshot: Snapshot, balancer: LoadBalancer, member: Member) -> bool:
    """Return whether agents probe the member's address although no port has it. The network must belong to the project,
    so that tenants cannot scan networks of others."""
    network, address = snapshot.networks.get(member_network(snapshot, balancer, member)), probed_address(member)
    if not snapshot.agents_probe or network is None or is_unmanaged(network):
        return False
    is_own = network.project_id == balancer.project_id and not (network.external or network.announced)
    return is_own and (network.id, address) not in snapshot.addresses and _is_assignable(network, address)


def _is_assignable(network: Network, address: IPAddress) -> bool:
    """Return whether a machine can have the address (RFC 6890): not special, and not a gateway."""
    special = address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified
    return not (special or address.is_reserved or any(address == each.gateway for each in network.subnets))


def find_places_without_port(snapshot: Snapshot, balancer: LoadBalancer) -> frozenset[str]:
    """Return the places of monitored members whose address no port has."""
    members = (each for pool in balancer.pools if enabled_monitor(balancer, pool) for each in probed_members(pool))
    found = (
        f"{member_network(snapshot, balancer, member)}/{probed_address(member)}"
        for member in members
        if has_no_port(snapshot, balancer, member)
    )
    return frozenset(found) if snapshot.agents_probe else frozenset()


def probe_port_id(subnet_id: str) -> str:
    """Return the id of the port with the source address of probes on this IPv4 subnet."""
    return id_of_name(_NAMESPACE, subnet_id)


def delegate_port_id(subnet_id: str) -> str:
    """Return the id of the port with the source address of delegated probes from this subnet."""
    return id_of_name(_NAMESPACE, f"cover/{subnet_id}")


def find_source(snapshot: Snapshot, endpoint: Endpoint) -> IPAddress | None:
    """Return the source address of probes; None if it is not allocated yet. The machine must see it as a neighbour, and
    no other machine may have it.

    IPv6 uses a link-local address (RFC 4291, 2.5.6); an IPv4 subnet must allocate one. Unmanaged networks use the
    addresses of the probe port there, except IPv6 probes by OVN, which need no port.
    """
    port = snapshot.ports[endpoint.port_id]
    version = endpoint.address.version
    is_theirs = isinstance(snapshot.networks[port.network_id], UnmanagedNetwork)
    if is_theirs and (version == 4 or snapshot.agents_probe):
        return find_probe_source(snapshot, port.network_id, _subnet(port, endpoint.address), version)
    if version == 6:
        return derive_link_local(derive_mac(f"probe/{port.network_id}"))
    probe = snapshot.ports.get(probe_port_id(_subnet(port, endpoint.address)))
    return probe.fixed_ips[0].address if probe else None


def pool_endpoints(
    snapshot: Snapshot, balancer: LoadBalancer, monitor: HealthMonitor, pool: Pool
) -> Iterator[Endpoint]:
    """Yield the endpoints of the pool's members, without those that are not probed."""
    return _endpoints_of_pool(snapshot, balancer, monitor, pool, listeners_of(balancer, pool.id))


def _endpoints_of_pool(
    snapshot: Snapshot, balancer: LoadBalancer, monitor: HealthMonitor, pool: Pool, listeners: Sequence[Listener]
) -> Iterator[Endpoint]:
    """Yield the endpoints of the pool's members; `listeners` are those that lead to the pool."""
    found = (
        find_endpoint(snapshot, balancer, monitor, member, number)
        for member in probed_members(pool)
        for number in probed_ports(listeners, member)
    )
    return (endpoint for endpoint in found if isinstance(endpoint, Endpoint))


def endpoints(snapshot: Snapshot, probing: Monitored) -> Iterator[Endpoint]:
    match probing:
        case LoadBalancer():
            for pool, monitor, listeners in monitored_pools(probing):
                yield from _endpoints_of_pool(snapshot, probing, monitor, pool, listeners)
        case LocalIP():
            yield from replica_endpoints(snapshot, probing)
        case unknown:
            assert_never(unknown)


def monitored_pools(balancer: LoadBalancer) -> Iterator[tuple[Pool, HealthMonitor, Sequence[Listener]]]:
    """Yield each monitored pool with its monitor and its listeners."""
    listeners = listeners_by_pool(balancer)
    for pool in balancer.pools:
        monitor = enabled_monitor(balancer, pool)
        if monitor is not None:
            yield pool, monitor, listeners.get(pool.id, ())


def targets(snapshot: Snapshot, probing: Monitored) -> Iterator[Target]:
    """Yield the targets of this document for agents, on all nodes. Members with the same endpoint share a target."""
    match probing:
        case LoadBalancer():
            for pool, monitor, listeners in monitored_pools(probing):
                yield from _targets_of_pool(snapshot, probing, monitor, pool, listeners)
        case LocalIP():
            if probing.health_monitor is not None:
                found = (each for each in dict.fromkeys(replica_endpoints(snapshot, probing)) if each.monitor_id)
                yield from (_target(probing.health_monitor, each, probing.project_id) for each in found)
        case unknown:
            assert_never(unknown)


def _targets_of_pool(
    snapshot: Snapshot, balancer: LoadBalancer, monitor: HealthMonitor, pool: Pool, listeners: Sequence[Listener]
) -> Iterator[Target]:
    """Yield the pool's targets. At addresses and ports where any member accepts connections,
    probes use the pool's protocol."""
    opening = opening_of(pool)
    served = frozenset(_member_service_ports(snapshot, balancer, pool, listeners)) if opening != PLAIN else frozenset()
    for endpoint in dict.fromkeys(_endpoints_of_pool(snapshot, balancer, monitor, pool, listeners)):
        if endpoint.monitor_id:
            is_served = (endpoint.network_id, endpoint.address, endpoint.port) in served
            yield _target(monitor, endpoint, balancer.project_id, opening if is_served else PLAIN)


def _member_service_ports(
    snapshot: Snapshot, balancer: LoadBalancer, pool: Pool, listeners: Sequence[Listener]
) -> Iterator[tuple[str, IPAddress, int]]:
    """Yield network, address and port where members of the pool accept connections."""
    for member in pool.members:
        network_id = member_network(snapshot, balancer, member)
        yield from ((network_id, member.address, number) for number in target_ports(listeners, member))


def _target(
    monitor: HealthMonitor | ReplicaMonitor, endpoint: Endpoint, project_id: str, opening: Opening = PLAIN
) -> Target:
    check = check_of(monitor, endpoint.address, opening)
    return Target(endpoint=endpoint, check=check, schedule=make_schedule(monitor), project_id=project_id)


def probes_of_port(snapshot: Snapshot, probed: Map[ProbedAddress, int], port: Port) -> int:
    """Return the probe rate of a port by its project, in millionths of a probe per second. All its addresses count,
    whether members refer to the network or a subnet."""
    subnets = (subnet.id for subnet in snapshot.networks[port.network_id].subnets)
    places = (port.network_id, *subnets)
    return sum(probed.get((port.project_id, place, fixed.address), 0) for place in places for fixed in port.fixed_ips)


def find_probed_port(snapshot: Snapshot, place: ProbedAddress) -> Port | None:
    """Return the project's port at this place; None if there is none."""
    project_id, where, address = place
    port = snapshot.ports.get(snapshot.addresses.get((snapshot.subnet_network.get(where, where), address), ""))
    return port if port is not None and port.project_id == project_id else None


def subnets_without_probe_source(snapshot: Snapshot, probing: Monitored) -> dict[str, str]:
    """Return subnet -> network for subnets where probes of this document have no source address."""
    ports = {
        endpoint: snapshot.ports[endpoint.port_id]
        for endpoint in endpoints(snapshot, probing)
        if endpoint.port_id and find_source(snapshot, endpoint) is None
    }
    found = {_subnet(port, endpoint.address): port.network_id for endpoint, port in ports.items()}
    return found | _subnets_to_reset_from(snapshot, probing)


def _subnets_to_reset_from(snapshot: Snapshot, probing: Monitored) -> dict[str, str]:
    """Return subnet -> network for IPv6 subnets that need an address for resets. Probes use a link-local address, which
    cannot send resets to clients elsewhere."""
    if not (snapshot.agents_probe and isinstance(probing, LoadBalancer)):
        return {}
    found = (port for pool in probing.pools for port in _ports_to_reset_from(snapshot, probing, pool))
    return {
        fixed.subnet_id: port.network_id
        for port in found
        for fixed in port.fixed_ips
        if fixed.address.version == 6 and probe_port_id(fixed.subnet_id) not in snapshot.ports
    }


def _ports_to_reset_from(snapshot: Snapshot, balancer: LoadBalancer, pool: Pool) -> Iterator[Port]:
    monitor = enabled_monitor(balancer, pool)
    if monitor is None or pool.down_member is not DownMember.RESET:
        return
    for endpoint in pool_endpoints(snapshot, balancer, monitor, pool):
        port = snapshot.ports.get(endpoint.port_id)
        if port is not None and endpoint.address.version == 6 and not is_unmanaged(port):
            yield port


def changed_health(before: Snapshot, after: Snapshot, owners: Iterable[Owner]) -> tuple[Owner, ...]:
    """Return the owners with a changed set of members or replicas that are down."""
    return tuple(owner for owner in owners if after.down.get(owner.id) != before.down.get(owner.id))


def derive_health(snapshot: Snapshot, owners: Iterable[Owner]) -> Snapshot:
    """Return the snapshot with `down` and `online` of these owners derived from observations."""
    for owner in owners:
        if owner.kind in _MONITORED_KINDS:
            probing = find_monitored(snapshot, owner)
            found = dict(derive_health_of(snapshot, probing)) if probing else {}
            down = frozenset(key for key, health in found.items() if health.is_down)
            online = frozenset(key for key, health in found.items() if health is Health.ONLINE)
            hostless = (
                find_places_without_port(snapshot, probing) if isinstance(probing, LoadBalancer) else frozenset[str]()
            )
            snapshot = with_health(snapshot, owner.id, down, online, hostless)
    return snapshot


def why_down(snapshot: Snapshot, probing: Monitored) -> dict[str, Health]:
    """Map the id of each member or replica that is down, at one port at least, to its health."""
    return {identity: health for identity, health in _by_id(snapshot, probing) if health.is_failing}


def why_unknown(snapshot: Snapshot, probing: Monitored) -> dict[str, Health]:
    """Map the id of each monitored member or replica with unknown health to that health."""
    return {identity: health for identity, health in _by_id(snapshot, probing) if not health.is_known}


def _by_id(snapshot: Snapshot, probing: Monitored) -> Iterator[tuple[str, Health]]:
    return ((key, health) for key, health in derive_health_of(snapshot, probing) if isinstance(key, str))


def derive_health_of(snapshot: Snapshot, probing: Monitored) -> Iterator[tuple[HealthKey, Health]]:
    """Yield the health of each probed member or replica."""
    match probing:
        case LoadBalancer():
            yield from members_health(snapshot, probing)
        case LocalIP():
            yield from replicas_health(snapshot, probing)
        case unknown:
            assert_never(unknown)


def members_health(snapshot: Snapshot, balancer: LoadBalancer) -> Iterator[tuple[HealthKey, Health]]:
    """Yield the health of each probed member, and of each port of members that are probed at several.

    Most of a thousand members are on one network, so the path to each network is searched once. Reachability is checked
    separately, because probes are sent on the member's own link and do not test the path of clients.
    """
    apart: dict[str, bool] = {}
    start, lost = (
        find_client_network(snapshot, balancer),
        balancer.router_id is not None and vip_gateway(snapshot, balancer) is None,
    )
    listeners = listeners_by_pool(balancer)
    for pool in balancer.pools:
        monitor = enabled_monitor(balancer, pool)
        if monitor is None:
            continue
        for member in probed_members(pool):
            target = member_network(snapshot, balancer, member)
            if target not in apart:
                apart[target] = lost or is_unreachable(snapshot, start, target)
            if apart[target]:
                yield member.id, Health.UNREACHABLE
                continue
            found = {
                number: _derive_port_health(snapshot, balancer, monitor, member, number)
                for number in probed_ports(listeners.get(pool.id, ()), member)
            }
            yield member.id, combine_port_health(found.values())
            if not member.has_single_probe_port:
                yield from (((member.id, number), health) for number, health in found.items())


def _derive_port_health(
    snapshot: Snapshot, balancer: LoadBalancer, monitor: HealthMonitor, member: Member, number: int
) -> Health:
    endpoint = find_endpoint(snapshot, balancer, monitor, member, number)
    return endpoint if isinstance(endpoint, Health) else derive_endpoint_health(snapshot, endpoint)


def _subnet(port: Port, address: IPAddress) -> str:
    return next(fixed.subnet_id for fixed in port.fixed_ips if fixed.address == address)

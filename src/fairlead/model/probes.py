"""Who is probed, where and from which address, and what the observations mean for whoever asks for probes.

Load balancers with health monitors ask for probes of their members, and so do Local IPs for their replicas
(`model/replica_probes.py`). Observations are facts (`model/facts.py`). A member of which nobody has said anything yet
serves, and so does one that cannot be probed here. One whose machine is gone from the model has nothing that could
answer, and is down.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, assert_never

from immutables import Map

from fairlead.model.addresses import IPAddress, derive_mac, link_local
from fairlead.model.behind import may_be_behind
from fairlead.model.checks import PLAIN, Opening, Target, check_of, opening_of, rhythm_of
from fairlead.model.covering import known_of
from fairlead.model.derived_ids import id_of_name
from fairlead.model.foreign import ForeignNetwork, is_foreign
from fairlead.model.foreign_probing import source_there
from fairlead.model.health import ASKED_OVER, TRANSPORTS, Endpoint, Health, HealthKey, of_the_whole
from fairlead.model.loadbalancer import (
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
    probed_ports,
    target_ports,
)
from fairlead.model.local_ip import LocalIP, ReplicaMonitor
from fairlead.model.network import Network, Port, PortUse
from fairlead.model.owner import Kind, Owner
from fairlead.model.quota import ProbedAddress
from fairlead.model.reach import is_unreachable
from fairlead.model.replica_probes import replica_endpoints, replicas_health
from fairlead.model.snapshot import Snapshot, member_network, vip_gateway, with_health
from fairlead.model.uplink import origin

Probing: TypeAlias = LoadBalancer | LocalIP
"""Who may ask for probes."""
_PROBING = (Kind.LOAD_BALANCER, Kind.LOCAL_IP)
_NAMESPACE = bytes.fromhex("5d3b5a0e5c375a528f0c6f2b7a6a1d0e")


def find_probing(snapshot: Snapshot, owner: Owner) -> Probing | None:
    match owner.kind:
        case Kind.LOAD_BALANCER:
            return snapshot.load_balancers.get(owner.id)
        case Kind.LOCAL_IP:
            return snapshot.local_ips.get(owner.id)
        case _:
            return None


def asks_for_probes(snapshot: Snapshot) -> bool:
    """Whether anybody does."""
    return bool(snapshot.watched or snapshot.monitored_local_ips)


def all_probing(snapshot: Snapshot) -> Iterator[Owner]:
    """Those that do."""
    watching = {each for ids in snapshot.watched.values() for each in ids}
    yield from (Owner(Kind.LOAD_BALANCER, each) for each in watching)
    yield from (Owner(Kind.LOCAL_IP, each) for each in snapshot.monitored_local_ips)


def working_monitor(balancer: LoadBalancer, pool: Pool) -> HealthMonitor | None:
    """The pool's monitor, unless it or what it is for is disabled: then it is as if there were none."""
    monitor = pool.health_monitor
    works = monitor is not None and monitor.admin_state_up and pool.admin_state_up and balancer.admin_state_up
    return monitor if works else None


def probed_members(pool: Pool) -> Iterator[Member]:
    return (member for member in pool.members if member.admin_state_up)


def find_port(snapshot: Snapshot, balancer: LoadBalancer, member: Member) -> Port | None:
    """The port of the machine that answers the member's probes."""
    address = member_network(snapshot, balancer, member), probed_address(member)
    port = snapshot.ports.get(snapshot.addresses.get(address, ""))
    return port if port is not None and port.use is PortUse.MACHINE else None


def may_probe(balancer: LoadBalancer, port: Port) -> bool:
    """Probes are packets that nobody on the network has sent: a port gets them from its own project only.

    So the monitors that share an endpoint, of which OVN takes the times of one, are one project's too.
    """
    return port.project_id == balancer.project_id


def find_endpoint(
    snapshot: Snapshot, balancer: LoadBalancer, monitor: HealthMonitor, member: Member, number: int
) -> Endpoint | Health:
    """Where this port of the member is probed, or what is known of it because it is not."""
    where = member_network(snapshot, balancer, member)
    address = probed_address(member)
    port, announced = find_port(snapshot, balancer, member), where in snapshot.announced
    if announced:
        is_there = may_be_behind(snapshot, balancer, address) is not None
    else:
        is_there = port is not None or is_hostless(snapshot, balancer, member)
    if not is_there:
        return Health.GONE
    if port is not None and not may_probe(balancer, port):
        return Health.UNPROBEABLE
    if announced and not snapshot.agents_probe:
        return Health.UNPROBEABLE
    if snapshot.agents_probe or port is None:
        over = ASKED_OVER[monitor.type]
        return Endpoint(
            port.id if port else "", address, 0 if over is Transport.ANY else number, over, where, monitor.id
        )
    if monitor.type not in TRANSPORTS:
        return Health.UNPROBEABLE
    return Endpoint(port.id, address, number, TRANSPORTS[monitor.type])


def is_hostless(snapshot: Snapshot, balancer: LoadBalancer, member: Member) -> bool:
    """Whether nobody's port has the address at which it is probed, and agents probe it all the same: from the network
    that is the project's own, or everybody could have others' networks searched."""
    network, address = snapshot.networks.get(member_network(snapshot, balancer, member)), probed_address(member)
    if not snapshot.agents_probe or network is None or is_foreign(network):
        return False
    is_own = network.project_id == balancer.project_id and not (network.external or network.announced)
    return is_own and (network.id, address) not in snapshot.addresses and _may_be_anybody(network, address)


def _may_be_anybody(network: Network, address: IPAddress) -> bool:
    """Whether a machine may have it (RFC 6890): not for one's own, of one link, or for many; and not the gateway."""
    special = address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified
    return not (special or address.is_reserved or any(address == each.gateway for each in network.subnets))


def hostless_places(snapshot: Snapshot, balancer: LoadBalancer) -> frozenset[str]:
    """Where its monitored members are that nobody's port has."""
    members = (each for pool in balancer.pools if working_monitor(balancer, pool) for each in probed_members(pool))
    found = (
        f"{member_network(snapshot, balancer, member)}/{probed_address(member)}"
        for member in members
        if is_hostless(snapshot, balancer, member)
    )
    return frozenset(found) if snapshot.agents_probe else frozenset()


def probe_port_id(subnet_id: str) -> str:
    """The port that holds the address from which machines on this IPv4 subnet are probed."""
    return id_of_name(_NAMESPACE, subnet_id)


def cover_port_id(subnet_id: str) -> str:
    """The port that holds the address from which whoever is on another node, or on none, is probed from this subnet."""
    return id_of_name(_NAMESPACE, f"cover/{subnet_id}")


def find_source(snapshot: Snapshot, endpoint: Endpoint) -> IPAddress | None:
    """The address that probes come from: one that the machine takes for a neighbour and that nobody else has.

    In IPv6 every link has room for it (RFC 4291, 2.5.6). An IPv4 subnet has to give one of its own; None until it has.
    On networks of others both are a port's that was made there; but OVN probes IPv6 from where there is no port.
    """
    port = snapshot.ports[endpoint.port_id]
    version = endpoint.address.version
    is_theirs = isinstance(snapshot.networks[port.network_id], ForeignNetwork)
    if is_theirs and (version == 4 or snapshot.agents_probe):
        return source_there(snapshot, port.network_id, _subnet(port, endpoint.address), version)
    if version == 6:
        return link_local(derive_mac(f"probe/{port.network_id}"))
    probe = snapshot.ports.get(probe_port_id(_subnet(port, endpoint.address)))
    return probe.fixed_ips[0].address if probe else None


def pool_endpoints(
    snapshot: Snapshot, balancer: LoadBalancer, monitor: HealthMonitor, pool: Pool
) -> Iterator[Endpoint]:
    """Where members of the pool are probed, without those that are not."""
    return _endpoints_of_pool(snapshot, balancer, monitor, pool, listeners_of(balancer, pool.id))


def _endpoints_of_pool(
    snapshot: Snapshot, balancer: LoadBalancer, monitor: HealthMonitor, pool: Pool, listeners: Sequence[Listener]
) -> Iterator[Endpoint]:
    """`listeners`: those that lead to the pool."""
    found = (
        find_endpoint(snapshot, balancer, monitor, member, number)
        for member in probed_members(pool)
        for number in probed_ports(listeners, member)
    )
    return (endpoint for endpoint in found if isinstance(endpoint, Endpoint))


def endpoints(snapshot: Snapshot, probing: Probing) -> Iterator[Endpoint]:
    match probing:
        case LoadBalancer():
            for pool, monitor, listeners in monitored_pools(probing):
                yield from _endpoints_of_pool(snapshot, probing, monitor, pool, listeners)
        case LocalIP():
            yield from replica_endpoints(snapshot, probing)
        case unknown:
            assert_never(unknown)


def monitored_pools(balancer: LoadBalancer) -> Iterator[tuple[Pool, HealthMonitor, Sequence[Listener]]]:
    """Each pool that is monitored, with its monitor, and the listeners that lead to it."""
    listeners = listeners_by_pool(balancer)
    for pool in balancer.pools:
        monitor = working_monitor(balancer, pool)
        if monitor is not None:
            yield pool, monitor, listeners.get(pool.id, ())


def targets(snapshot: Snapshot, probing: Probing) -> Iterator[Target]:
    """What agents have to probe for this document, wherever it is. An endpoint that several members share is one."""
    match probing:
        case LoadBalancer():
            for pool, monitor, listeners in monitored_pools(probing):
                yield from _targets_of_pool(snapshot, probing, monitor, pool, listeners)
        case LocalIP():
            if probing.health_monitor is not None:
                found = (each for each in dict.fromkeys(replica_endpoints(snapshot, probing)) if each.asker)
                yield from (_target(probing.health_monitor, each, probing.project_id) for each in found)
        case unknown:
            assert_never(unknown)


def _targets_of_pool(
    snapshot: Snapshot, balancer: LoadBalancer, monitor: HealthMonitor, pool: Pool, listeners: Sequence[Listener]
) -> Iterator[Target]:
    """Where a member takes connections the pool's own protocol is spoken, whichever member is probed there."""
    opening = opening_of(pool)
    served = frozenset(_served_at(snapshot, balancer, pool, listeners)) if opening != PLAIN else frozenset()
    for endpoint in dict.fromkeys(_endpoints_of_pool(snapshot, balancer, monitor, pool, listeners)):
        if endpoint.asker:
            is_served = (endpoint.network_id, endpoint.address, endpoint.number) in served
            yield _target(monitor, endpoint, balancer.project_id, opening if is_served else PLAIN)


def _served_at(
    snapshot: Snapshot, balancer: LoadBalancer, pool: Pool, listeners: Sequence[Listener]
) -> Iterator[tuple[str, IPAddress, int]]:
    """Where members of the pool take connections: network, address and port."""
    for member in pool.members:
        network_id = member_network(snapshot, balancer, member)
        yield from ((network_id, member.address, number) for number in target_ports(listeners, member))


def _target(
    monitor: HealthMonitor | ReplicaMonitor, endpoint: Endpoint, project_id: str, opening: Opening = PLAIN
) -> Target:
    check = check_of(monitor, endpoint.address, opening)
    return Target(endpoint=endpoint, check=check, rhythm=rhythm_of(monitor), project_id=project_id)


def probes_of_port(snapshot: Snapshot, probed: Map[ProbedAddress, int], port: Port) -> int:
    """Millionths of a probe a second that a port gets from its project, at all of its addresses, however members name
    the place."""
    subnets = (subnet.id for subnet in snapshot.networks[port.network_id].subnets)
    places = (port.network_id, *subnets)
    return sum(probed.get((port.project_id, place, fixed.address), 0) for place in places for fixed in port.fixed_ips)


def find_probed_port(snapshot: Snapshot, place: ProbedAddress) -> Port | None:
    """The port of the project that is there."""
    project_id, where, address = place
    port = snapshot.ports.get(snapshot.addresses.get((snapshot.subnet_network.get(where, where), address), ""))
    return port if port is not None and port.project_id == project_id else None


def sourceless_subnets(snapshot: Snapshot, probing: Probing) -> dict[str, str]:
    """Subnet -> network, where these probes have no address to come from."""
    ports = {
        endpoint: snapshot.ports[endpoint.port_id]
        for endpoint in endpoints(snapshot, probing)
        if endpoint.port_id and find_source(snapshot, endpoint) is None
    }
    found = {_subnet(port, endpoint.address): port.network_id for endpoint, port in ports.items()}
    return found | _subnets_to_reset_from(snapshot, probing)


def _subnets_to_reset_from(snapshot: Snapshot, probing: Probing) -> dict[str, str]:
    """Those in IPv6: there probes come from a link-local address, and resets for clients anywhere cannot."""
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
    monitor = working_monitor(balancer, pool)
    if monitor is None or pool.down_member is not DownMember.RESET:
        return
    for endpoint in pool_endpoints(snapshot, balancer, monitor, pool):
        port = snapshot.ports.get(endpoint.port_id)
        if port is not None and endpoint.address.version == 6 and not is_foreign(port):
            yield port


def changed_health(before: Snapshot, after: Snapshot, owners: Iterable[Owner]) -> tuple[Owner, ...]:
    """Those of these in which somebody went down or came back."""
    return tuple(owner for owner in owners if after.down.get(owner.id) != before.down.get(owner.id))


def derive_health(snapshot: Snapshot, owners: Iterable[Owner]) -> Snapshot:
    """The snapshot in which just those members and replicas of these owners are down, and online, that were seen so."""
    for owner in owners:
        if owner.kind in _PROBING:
            probing = find_probing(snapshot, owner)
            found = dict(health_of(snapshot, probing)) if probing else {}
            down = frozenset(key for key, health in found.items() if health.is_down)
            online = frozenset(key for key, health in found.items() if health is Health.ONLINE)
            hostless = hostless_places(snapshot, probing) if isinstance(probing, LoadBalancer) else frozenset[str]()
            snapshot = with_health(snapshot, owner.id, down, online, hostless)
    return snapshot


def why_down(snapshot: Snapshot, probing: Probing) -> dict[str, Health]:
    """The members or replicas that are down, if only at some of their ports, and why."""
    return {identity: health for identity, health in _by_id(snapshot, probing) if health.is_failing}


def why_unknown(snapshot: Snapshot, probing: Probing) -> dict[str, Health]:
    """Those with a health monitor of which nobody knows whether they answer, and why not."""
    return {identity: health for identity, health in _by_id(snapshot, probing) if not health.is_known}


def _by_id(snapshot: Snapshot, probing: Probing) -> Iterator[tuple[str, Health]]:
    return ((key, health) for key, health in health_of(snapshot, probing) if isinstance(key, str))


def health_of(snapshot: Snapshot, probing: Probing) -> Iterator[tuple[HealthKey, Health]]:
    """Each member or replica that is to be probed."""
    match probing:
        case LoadBalancer():
            yield from members_health(snapshot, probing)
        case LocalIP():
            yield from replicas_health(snapshot, probing)
        case unknown:
            assert_never(unknown)


def members_health(snapshot: Snapshot, balancer: LoadBalancer) -> Iterator[tuple[HealthKey, Health]]:
    """Each member that is to be probed, and each port of one that is probed at several.

    Of a thousand members most are on one network: the way to each network is looked for once. Probes are sent beside
    the machine: what they see says nothing of the way that clients have to take.
    """
    apart: dict[str, bool] = {}
    start, lost = origin(snapshot, balancer), balancer.router_id is not None and vip_gateway(snapshot, balancer) is None
    listeners = listeners_by_pool(balancer)
    for pool in balancer.pools:
        monitor = working_monitor(balancer, pool)
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
                number: _seen(snapshot, balancer, monitor, member, number)
                for number in probed_ports(listeners.get(pool.id, ()), member)
            }
            yield member.id, of_the_whole(found.values())
            if not member.is_probed_once:
                yield from (((member.id, number), health) for number, health in found.items())


def _seen(snapshot: Snapshot, balancer: LoadBalancer, monitor: HealthMonitor, member: Member, number: int) -> Health:
    endpoint = find_endpoint(snapshot, balancer, monitor, member, number)
    return endpoint if isinstance(endpoint, Health) else known_of(snapshot, endpoint)


def _subnet(port: Port, address: IPAddress) -> str:
    return next(fixed.subnet_id for fixed in port.fixed_ips if fixed.address == address)

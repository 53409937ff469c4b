"""Which members are probed, where and from which address, and what the observations mean for a load balancer.

Observations are facts (`model/facts.py`). A member of which nobody has said anything yet serves, and so does one that
cannot be probed here. One whose machine is gone from the model has nothing that could answer, and is down.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha1

from immutables import Map

from fairlead.model.addresses import IPAddress, derive_mac, link_local
from fairlead.model.health import Endpoint, Health, HealthKey, of_the_whole
from fairlead.model.loadbalancer import (
    HealthMonitor,
    LoadBalancer,
    Member,
    MonitorType,
    Pool,
    Transport,
    probed_ports,
)
from fairlead.model.network import Port, PortUse
from fairlead.model.owner import Kind, Owner
from fairlead.model.quota import ProbedAddress
from fairlead.model.reach import is_unreachable
from fairlead.model.snapshot import Snapshot, member_network, vip_gateway, with_health
from fairlead.model.uplink import origin

TRANSPORTS: Mapping[MonitorType, Transport] = {
    MonitorType.TCP: Transport.TCP,
    MonitorType.UDP_CONNECT: Transport.UDP,
}
"""The monitors that ask no more than whether a port is open."""
_NAMESPACE = bytes.fromhex("5d3b5a0e5c375a528f0c6f2b7a6a1d0e")


def working_monitor(balancer: LoadBalancer, pool: Pool) -> HealthMonitor | None:
    """The pool's monitor, unless it or what it is for is disabled: then it is as if there were none."""
    monitor = pool.health_monitor
    works = monitor is not None and monitor.admin_state_up and pool.admin_state_up and balancer.admin_state_up
    return monitor if works else None


def probed_members(pool: Pool) -> Iterator[Member]:
    return (member for member in pool.members if member.admin_state_up)


def probed_address(member: Member) -> IPAddress:
    return member.monitor_address or member.address


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
    port = find_port(snapshot, balancer, member)
    if port is None:
        return Health.GONE
    if not may_probe(balancer, port) or monitor.type not in TRANSPORTS:
        return Health.UNPROBEABLE
    return Endpoint(port.id, probed_address(member), number, TRANSPORTS[monitor.type])


def probe_port_id(subnet_id: str) -> str:
    """The port that holds the address from which machines on this IPv4 subnet are probed.

    A UUID of a name (RFC 9562, 5.5). Nothing here asks the module `uuid`, which has clocks and chance as well.
    """
    text = sha1(_NAMESPACE + subnet_id.encode(), usedforsecurity=False).hexdigest()
    variant = f"{int(text[16], 16) & 0x3 | 0x8:x}"
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{variant}{text[17:20]}-{text[20:32]}"


def find_source(snapshot: Snapshot, endpoint: Endpoint) -> IPAddress | None:
    """The address that probes come from: one that the machine takes for a neighbour and that nobody else has.

    In IPv6 every link has room for it (RFC 4291, 2.5.6). An IPv4 subnet has to give one of its own; None until it has.
    """
    port = snapshot.ports[endpoint.port_id]
    if endpoint.address.version == 6:
        return link_local(derive_mac(f"probe/{port.network_id}"))
    probe = snapshot.ports.get(probe_port_id(_subnet(port, endpoint.address)))
    return probe.fixed_ips[0].address if probe else None


def pool_endpoints(
    snapshot: Snapshot, balancer: LoadBalancer, monitor: HealthMonitor, pool: Pool
) -> Iterator[Endpoint]:
    """Where members of the pool are probed, without those that are not."""
    found = (
        find_endpoint(snapshot, balancer, monitor, member, number)
        for member in probed_members(pool)
        for number in probed_ports(balancer, pool, member)
    )
    return (endpoint for endpoint in found if isinstance(endpoint, Endpoint))


def endpoints(snapshot: Snapshot, balancer: LoadBalancer) -> Iterator[Endpoint]:
    for pool in balancer.pools:
        monitor = working_monitor(balancer, pool)
        if monitor is not None:
            yield from pool_endpoints(snapshot, balancer, monitor, pool)


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


def sourceless_subnets(snapshot: Snapshot, balancer: LoadBalancer) -> dict[str, str]:
    """Subnet -> network, where this load balancer's probes have no address to come from."""
    ports = {
        endpoint: snapshot.ports[endpoint.port_id]
        for endpoint in endpoints(snapshot, balancer)
        if find_source(snapshot, endpoint) is None
    }
    return {_subnet(port, endpoint.address): port.network_id for endpoint, port in ports.items()}


def changed_health(before: Snapshot, after: Snapshot, balancer_ids: Iterable[str]) -> tuple[Owner, ...]:
    """Those of these load balancers in which somebody went down or came back."""
    changed = (each for each in balancer_ids if after.down.get(each) != before.down.get(each))
    return tuple(Owner(Kind.LOAD_BALANCER, each) for each in changed)


def derive_health(snapshot: Snapshot, *balancer_ids: str) -> Snapshot:
    """The snapshot in which just those members of these load balancers are down, and online, that were seen so."""
    for balancer_id in balancer_ids:
        balancer = snapshot.load_balancers.get(balancer_id)
        found = dict(members_health(snapshot, balancer)) if balancer else {}
        down = frozenset(key for key, health in found.items() if health.is_down)
        online = frozenset(key for key, health in found.items() if health is Health.ONLINE)
        snapshot = with_health(snapshot, balancer_id, down, online)
    return snapshot


def why_down(snapshot: Snapshot, balancer: LoadBalancer) -> dict[str, Health]:
    """The members of a load balancer that are down, if only at some of their ports, and why."""
    return {member_id: health for member_id, health in _members_by_id(snapshot, balancer) if health.is_failing}


def why_unknown(snapshot: Snapshot, balancer: LoadBalancer) -> dict[str, Health]:
    """The members of a load balancer with a health monitor of which nobody knows whether they answer, and why not."""
    return {member_id: health for member_id, health in _members_by_id(snapshot, balancer) if not health.is_known}


def _members_by_id(snapshot: Snapshot, balancer: LoadBalancer) -> Iterator[tuple[str, Health]]:
    return ((key, health) for key, health in members_health(snapshot, balancer) if isinstance(key, str))


def members_health(snapshot: Snapshot, balancer: LoadBalancer) -> Iterator[tuple[HealthKey, Health]]:
    """Each member that is to be probed, and each port of one that is probed at several.

    Of a thousand members most are on one network: the way to each network is looked for once. Probes are sent beside
    the machine: what they see says nothing of the way that clients have to take.
    """
    apart: dict[str, bool] = {}
    start, lost = origin(snapshot, balancer), balancer.router_id is not None and vip_gateway(snapshot, balancer) is None
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
                for number in probed_ports(balancer, pool, member)
            }
            yield member.id, of_the_whole(found.values())
            if not member.is_probed_once:
                yield from (((member.id, number), health) for number, health in found.items())


def _seen(snapshot: Snapshot, balancer: LoadBalancer, monitor: HealthMonitor, member: Member, number: int) -> Health:
    endpoint = find_endpoint(snapshot, balancer, monitor, member, number)
    return endpoint if isinstance(endpoint, Health) else snapshot.health.get(endpoint, Health.UNPROBED)


def _subnet(port: Port, address: IPAddress) -> str:
    return next(fixed.subnet_id for fixed in port.fixed_ips if fixed.address == address)

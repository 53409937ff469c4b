"""Health monitors as rows of the OVN Northbound database.

northd removes dead backends from a load balancer with a health check, which would break its slot table. So a monitor
has a load balancer row of its own, on no switch and in no group, that only defines the probes. Dead members are removed
from slot tables by the load balancer's compiler, and replicas of Local IPs from their chassis
(`model/queries/replicas.py`).

Where agents probe, there are no such rows: each network has a port for the agents' probes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fairlead.compilers.ovn.abilities import abilities_here
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn import LoadBalancer, LoadBalancerHealthCheck, OvnRow, Pairs, VirtualService, pairs
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.addresses import IPAddress, render_address, render_endpoint
from fairlead.model.documents.health import OVN_PROBE_TRANSPORTS, Endpoint
from fairlead.model.documents.local_ip import LocalIP, ReplicaMonitor
from fairlead.model.queries.probes import (
    enabled_monitor,
    find_port,
    find_source,
    has_no_port,
    is_same_project,
    pool_endpoints,
)
from fairlead.model.queries.replica_probes import replica_endpoints
from fairlead.model.snapshot import Snapshot, member_network

PROVIDER = "ovn"
PROBE_PORT = 1
"""ovn-nb(5) requires a VIP with a port for a health check. The monitor's row is on no switch, so any port will do."""


def check_probed(snapshot: Snapshot, balancer: lb.LoadBalancer) -> None:
    """Raise Unsupported for new members that cannot be probed: they are no port of the project.

    A member that loses its port later is down. On another project's network the error is the same for free and used
    addresses, so that it does not reveal which are used.
    """
    old = snapshot.load_balancers.get(balancer.id)
    known = set(_asked(old)) if old else set()
    monitors = abilities_here(snapshot).monitors
    for pool in balancer.pools:
        watched = pool.health_monitor is not None and pool.health_monitor.type in monitors
        for member in pool.members if watched else ():
            if (pool.id, lb.probed_address(member)) not in known:
                port = find_port(snapshot, balancer, member)
                nobodys = port is None and has_no_port(snapshot, balancer, member)
                if not nobodys and (port is None or not is_same_project(balancer, port)):
                    raise Unsupported(_why_unprobed(snapshot, balancer, member), balancer.provider)


def _why_unprobed(snapshot: Snapshot, balancer: lb.LoadBalancer, member: lb.Member) -> str:
    network_id = member_network(snapshot, balancer, member)
    network = snapshot.networks.get(network_id)
    is_own = network is not None and network.project_id == balancer.project_id
    where = f"network {network_id}"
    if not is_own or find_port(snapshot, balancer, member) is not None:
        where = f"project {balancer.project_id} on {where}"
    hint = "" if member.subnet_id else "; if it is on another network, set the member's subnet_id"
    probed = lb.probed_address(member)
    return f"a health monitor for member {member.address}: {probed} is not the address of a port of {where}{hint}"


def _asked(balancer: lb.LoadBalancer) -> Iterator[tuple[str, IPAddress]]:
    monitored = (pool for pool in balancer.pools if pool.health_monitor)
    return ((pool.id, lb.probed_address(member)) for pool in monitored for member in pool.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Monitored:
    """One load balancer row that defines probes."""

    name: str
    title: str
    addresses: tuple[IPAddress, ...]
    """VIPs. The first of each IP version is used; endpoints of other versions are not probed."""
    monitor: lb.HealthMonitor | ReplicaMonitor
    endpoints: tuple[Endpoint, ...]


def monitor_rows(snapshot: Snapshot, balancer: lb.LoadBalancer, pool: lb.Pool) -> Iterator[OvnRow]:
    """Yield the rows that make OVN probe the members of a pool."""
    monitor = enabled_monitor(balancer, pool)
    if monitor is not None and not snapshot.agents_probe:
        monitored = _Monitored(
            name=f"{balancer.id}-{monitor.id}",
            title=balancer.name,
            addresses=tuple(vip.address for vip in balancer.vips),
            monitor=monitor,
            endpoints=tuple(pool_endpoints(snapshot, balancer, monitor, pool)),
        )
        yield from _rows(snapshot, monitored)


def replica_monitor_rows(snapshot: Snapshot, local_ip: LocalIP) -> Iterator[OvnRow]:
    """Yield the rows that make OVN probe the replicas of a Local IP. Raises Unsupported."""
    monitor = local_ip.health_monitor
    if monitor is None:
        return
    if monitor.type in lb.HTTP_MONITORS or monitor.type not in abilities_here(snapshot).monitors:
        raise Unsupported(f"health monitors of type {monitor.type} for Local IPs", PROVIDER)
    if snapshot.agents_probe:
        return
    monitored = _Monitored(
        name=f"{local_ip.id}-monitor",
        title=local_ip.name,
        addresses=(local_ip.address,),
        monitor=monitor,
        endpoints=tuple(replica_endpoints(snapshot, local_ip)),
    )
    yield from _rows(snapshot, monitored)


def _rows(snapshot: Snapshot, monitored: _Monitored) -> Iterator[OvnRow]:
    """Yield the rows: endpoints for ovn-controller to probe on their chassis, source addresses, and intervals."""
    sources = {each: source for each in monitored.endpoints if (source := find_source(snapshot, each))}
    vips = {address.version: address for address in reversed(monitored.addresses)}
    services = tuple(
        VirtualService(vip=render_endpoint(vips[version], PROBE_PORT), backends=backends)
        for version in sorted(vips)
        if (backends := _probed(endpoint for endpoint in sources if endpoint.address.version == version))
    )
    if not services:
        return
    yield LoadBalancer(
        name=monitored.name,
        title=monitored.title,
        protocol=OVN_PROBE_TRANSPORTS[monitored.monitor.type].value,
        services=services,
        ip_port_mappings=pairs(
            {
                render_address(endpoint.address): f"{endpoint.port_id}:{render_address(source)}"
                for endpoint, source in sources.items()
                if endpoint.address.version in vips
            }
        ),
    )
    options = _times(monitored.monitor)
    for service in services:
        yield LoadBalancerHealthCheck(load_balancer=monitored.name, vip=service.vip, options=options)


def _times(monitor: lb.HealthMonitor | ReplicaMonitor) -> Pairs:
    times = {
        "interval": max(1, monitor.delay),  # Octavia allows 0, and ovn-nb(5) counts whole seconds
        "timeout": max(1, monitor.timeout),
        "success_count": monitor.max_retries,
        "failure_count": monitor.max_retries_down,
    }
    return pairs({option: str(value) for option, value in times.items()})


def _probed(endpoints: Iterable[Endpoint]) -> tuple[str, ...]:
    return tuple(sorted(render_endpoint(endpoint.address, endpoint.port) for endpoint in endpoints))

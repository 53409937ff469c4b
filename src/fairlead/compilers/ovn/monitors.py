"""Health monitors, as rows of the OVN Northbound database.

northd takes dead backends out of a load balancer that has a health check, and a slot table would no longer be one. So
a monitor has a load balancer row of its own, on no switch, in no group, which leads nobody anywhere: it says what to
probe. What dies is taken out of the slot tables by the compiler of the load balancer, like everything else.
"""

from collections.abc import Iterable, Iterator

from fairlead.compilers.ovn.abilities import ABILITIES
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn import LoadBalancer, LoadBalancerHealthCheck, OvnRow, VirtualService, pairs
from fairlead.model import loadbalancer as lb
from fairlead.model.addresses import IPAddress, render_address, render_endpoint
from fairlead.model.health import Endpoint
from fairlead.model.probes import (
    TRANSPORTS,
    find_port,
    find_source,
    may_probe,
    pool_endpoints,
    probed_address,
    working_monitor,
)
from fairlead.model.snapshot import Snapshot, member_network

PROBE_PORT = 1
"""ovn-nb(5) hangs a health check on a VIP with a port. That of a monitor's row is on no switch: any port will do."""


def check_probed(snapshot: Snapshot, balancer: lb.LoadBalancer) -> None:
    """Raises Unsupported for what the change asks to be probed and cannot be: a member that is no port of the project.
    One whose port goes later is down.

    On another project's network the words are the same for an address that nobody has and for one that somebody has:
    who that is is not told.
    """
    old = snapshot.load_balancers.get(balancer.id)
    known = set(_asked(old)) if old else set()
    for pool in balancer.pools:
        watched = pool.health_monitor is not None and pool.health_monitor.type in ABILITIES.monitors
        for member in pool.members if watched else ():
            if (pool.id, probed_address(member)) not in known:
                port = find_port(snapshot, balancer, member)
                if port is None or not may_probe(balancer, port):
                    raise Unsupported(_why_unprobed(snapshot, balancer, member), balancer.provider)


def _why_unprobed(snapshot: Snapshot, balancer: lb.LoadBalancer, member: lb.Member) -> str:
    network_id = member_network(snapshot, balancer, member)
    network = snapshot.networks.get(network_id)
    is_own = network is not None and network.project_id == balancer.project_id
    where = f"network {network_id}"
    if not is_own or find_port(snapshot, balancer, member) is not None:
        where = f"project {balancer.project_id} on {where}"
    hint = "" if member.subnet_id else "; if it is on another network, say the member's subnet_id"
    return f"a health monitor for member {member.address}: {probed_address(member)} is no port of {where}{hint}"


def _asked(balancer: lb.LoadBalancer) -> Iterator[tuple[str, IPAddress]]:
    monitored = (pool for pool in balancer.pools if pool.health_monitor)
    return ((pool.id, probed_address(member)) for pool in monitored for member in pool.members)


def monitor_rows(snapshot: Snapshot, balancer: lb.LoadBalancer, pool: lb.Pool) -> Iterator[OvnRow]:
    """What ovn-controller probes on the chassis of each member, from which address, and how often."""
    monitor = working_monitor(balancer, pool)
    if monitor is None:
        return
    found = pool_endpoints(snapshot, balancer, monitor, pool)
    sources = {each: source for each in found if (source := find_source(snapshot, each))}
    vips = {vip.address.version: vip.address for vip in reversed(balancer.vips)}
    services = tuple(
        VirtualService(vip=render_endpoint(vips[version], PROBE_PORT), backends=backends)
        for version in sorted(vips)
        if (backends := _probed(endpoint for endpoint in sources if endpoint.address.version == version))
    )
    if not services:
        return
    name = f"{balancer.id}-{monitor.id}"
    yield LoadBalancer(
        name=name,
        title=balancer.name,
        protocol=TRANSPORTS[monitor.type].value,
        services=services,
        ip_port_mappings=pairs(
            {
                render_address(endpoint.address): f"{endpoint.port_id}:{render_address(source)}"
                for endpoint, source in sources.items()
                if endpoint.address.version in vips
            }
        ),
    )
    times = {
        "interval": max(1, monitor.delay),  # Octavia allows 0, and ovn-nb(5) counts whole seconds
        "timeout": max(1, monitor.timeout),
        "success_count": monitor.max_retries,
        "failure_count": monitor.max_retries_down,
    }
    options = pairs({option: str(value) for option, value in times.items()})
    for service in services:
        yield LoadBalancerHealthCheck(load_balancer=name, vip=service.vip, options=options)


def _probed(endpoints: Iterable[Endpoint]) -> tuple[str, ...]:
    return tuple(sorted(render_endpoint(endpoint.address, endpoint.number) for endpoint in endpoints))

"""Table of probed members and replicas for operators: the prober and the result of each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.loadbalancer import LoadBalancer, listeners_by_pool, probed_address
from fairlead.model.documents.local_ip import LocalIP
from fairlead.model.documents.member_ports import probed_ports
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.unmanaged import is_unmanaged
from fairlead.model.queries.delegated_probing import derive_endpoint_health, is_responsive, probe_place
from fairlead.model.queries.locality_tiers import chassis_finder
from fairlead.model.queries.placement import find_routing_host
from fairlead.model.queries.probes import (
    enabled_monitor,
    find_endpoint,
    find_monitored,
    list_monitored,
    probed_members,
)
from fairlead.model.queries.replica_probes import replica_endpoints
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps

NO_AGENT = "no agent on its node can probe it"
NO_DELEGATE = (
    "the agent of its node is unresponsive, and no other agent reaches its network; the last result remains valid"
)
UNMANAGED_NETWORK = (
    "the agent of its node is unresponsive, and other agents do not probe unmanaged networks;"
    " the last result remains valid"
)
NO_PORT_FOR_ADDRESS = "no port has its address, and no node with an agent reaches its network"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRow:
    owner: str
    """Load balancer or Local IP, as `kind/id`."""
    owner_name: str
    id: str
    """Id of the member, or of the replica's port."""
    member: str
    """Name of the member or replica."""
    address: str
    number: int
    monitor: str
    """Type of the monitor."""
    by: str
    """Prober: `agents` or `dataplane`."""
    chassis: str
    """Chassis of the member's port, or the plain host that routes its address; empty if unknown."""
    prober: str
    """Chassis of the agent that probes it: its own, or a delegate; empty if none does."""
    status: str
    """Name of a value of `Health`, such as ONLINE or ERROR."""
    why: str
    """Human-readable explanation of the status."""
    since: datetime | None
    """Time of the last change of state; set where agents probe."""
    error: str
    """Last error, or the reason why it is not probed."""
    latency: float | None
    """Response time of the last answer, in seconds."""


def health_table(snapshot: Snapshot) -> Steps[list[HealthRow]]:
    """Return one row per probed member port and replica. Failing ones are first, then unknown ones, then the others;
    each group is sorted by owner."""
    failing, unknown, well = list[HealthRow](), list[HealthRow](), list[HealthRow]()
    where = chassis_finder(snapshot)
    for owner in sorted(list_monitored(snapshot), key=str):
        for each, port_id, place in _list_probed(snapshot, owner):
            row = _row(snapshot, owner, each, place, _chassis_of(snapshot, place, where(port_id) if port_id else ()))
            health = Health[row.status]
            (failing if health.is_failing else well if health.is_known and not row.error else unknown).append(row)
            yield
    return [*failing, *unknown, *well]


def _chassis_of(snapshot: Snapshot, place: Endpoint | Health, plugged: Sequence[str]) -> str:
    """Return the chassis or plain host of a member or replica."""
    if isinstance(place, Endpoint) and place.network_id in snapshot.announced:
        host = find_routing_host(snapshot, place.address)
        return "" if host is None else host[0].name
    return next(iter(plugged), "")


def _prober_of(snapshot: Snapshot, place: Endpoint, chassis: str) -> str:
    """Return the chassis whose agent has probed the endpoint, or is expected to."""
    if not snapshot.agents_probe:
        return ""
    seen = snapshot.sightings.get(place)
    expected = snapshot.covered.get(probe_place(place)) or (chassis if is_responsive(snapshot, chassis) else "")
    return seen.chassis if seen else expected


@dataclass(frozen=True, slots=True)
class _Probed:
    id: str
    name: str
    address: str
    number: int
    monitor: str


def _list_probed(snapshot: Snapshot, owner: Owner) -> Iterator[tuple[_Probed, str, Endpoint | Health]]:
    """Yield each probed object with its port, if any, and its endpoint, or its health if it cannot be probed."""
    match find_monitored(snapshot, owner):
        case LoadBalancer() as balancer:
            yield from _list_probed_members(snapshot, balancer)
        case LocalIP(health_monitor=monitor) as local_ip if monitor is not None:
            for found in replica_endpoints(snapshot, local_ip):
                port = snapshot.ports[found.port_id]
                each = _Probed(port.id, port.name, str(found.address), found.port, monitor.type.value)
                yield each, port.id, found
        case _:
            pass


def _list_probed_members(
    snapshot: Snapshot, balancer: LoadBalancer
) -> Iterator[tuple[_Probed, str, Endpoint | Health]]:
    listeners = listeners_by_pool(balancer)
    for pool in balancer.pools:
        monitor = enabled_monitor(balancer, pool)
        for member in probed_members(pool) if monitor is not None else ():
            assert monitor is not None  # noqa: S101 - for mypy
            for number in probed_ports(listeners.get(pool.id, ()), member):
                found = find_endpoint(snapshot, balancer, monitor, member, number)
                each = _Probed(member.id, member.name, str(probed_address(member)), number, monitor.type.value)
                yield each, found.port_id if isinstance(found, Endpoint) else "", found


def _why_unprobed(snapshot: Snapshot, found: Endpoint, chassis: str) -> str:
    """Return the reason why agents cannot probe the endpoint; empty if they can."""
    if not snapshot.agents_probe or probe_place(found) in snapshot.covered:
        return ""
    if found.network_id in snapshot.announced:
        host = find_routing_host(snapshot, found.address)
        return "" if host is not None and is_responsive(snapshot, host[0].name) else NO_AGENT
    if not found.port_id:
        return NO_PORT_FOR_ADDRESS
    if not chassis or is_responsive(snapshot, chassis):
        return ""
    if is_unmanaged(snapshot.networks.get(found.network_id)):
        return UNMANAGED_NETWORK
    return NO_DELEGATE if chassis in snapshot.agents else NO_AGENT


def _row(snapshot: Snapshot, owner: Owner, each: _Probed, found: Endpoint | Health, chassis: str) -> HealthRow:
    health = derive_endpoint_health(snapshot, found) if isinstance(found, Endpoint) else found
    seen = snapshot.sightings.get(found) if isinstance(found, Endpoint) else None
    unprobed = _why_unprobed(snapshot, found, chassis) if isinstance(found, Endpoint) else ""
    return HealthRow(
        owner=str(owner),
        owner_name=getattr(snapshot.find(owner), "name", ""),
        id=each.id,
        member=each.name,
        address=each.address,
        number=each.number,
        monitor=each.monitor,
        by="agents" if snapshot.agents_probe else "dataplane",
        chassis=chassis,
        prober=_prober_of(snapshot, found, chassis) if isinstance(found, Endpoint) else "",
        status=health.name,
        why=health.explanation,
        since=seen.since if seen else None,
        error=unprobed or (seen.error if seen else ""),
        latency=seen.latency if seen else None,
    )

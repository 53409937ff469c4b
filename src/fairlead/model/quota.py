"""Quotas: how much of each resource a project may have, and how much it has; one mechanism for every door.

What a project has is an index of the snapshot, kept with every change: nobody counts ten thousand load balancers to
make one more.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

from immutables import Map

from fairlead.model.addresses import IPAddress
from fairlead.model.foreign import is_foreign
from fairlead.model.loadbalancer import LoadBalancer, count_probed_ports, listeners_by_pool
from fairlead.model.local_ip import LocalIP
from fairlead.model.network import UNASKED, FloatingIP, Network, Port, Router

UNLIMITED = -1
LARGEST_QUOTA = 2_000_000_000
"""octavia, common/constants.py, MAX_QUOTA."""


class Counted(StrEnum):
    """What has a quota, by its attribute; in the order in which Octavia looks at them when a tree is made."""

    LOAD_BALANCER = "load_balancer"
    POOL = "pool"
    HEALTH_MONITOR = "health_monitor"
    MEMBER = "member"
    LISTENER = "listener"
    L7POLICY = "l7policy"
    L7RULE = "l7rule"
    NETWORK = "network"
    SUBNET = "subnet"
    PORT = "port"
    ROUTER = "router"
    FLOATING_IP = "floatingip"
    LOCAL_IP = "local_ip"
    LOCAL_IP_ASSOCIATION = "local_ip_association"


NETWORKING = (
    *(Counted.NETWORK, Counted.SUBNET, Counted.PORT, Counted.ROUTER, Counted.FLOATING_IP),
    *(Counted.LOCAL_IP, Counted.LOCAL_IP_ASSOCIATION),
)
BALANCING = tuple(what for what in Counted if what not in NETWORKING)
Usage: TypeAlias = Map[tuple[str, Counted], int]
"""(project, resource) -> how many; what is not there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many of each; UNLIMITED is any number, and None is whatever holds otherwise: any number too, in the end."""

    load_balancer: int | None = None
    pool: int | None = None
    health_monitor: int | None = None
    member: int | None = None
    listener: int | None = None
    l7policy: int | None = None
    l7rule: int | None = None
    network: int | None = None
    subnet: int | None = None
    port: int | None = None
    router: int | None = None
    floatingip: int | None = None
    local_ip: int | None = None
    local_ip_association: int | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota(Limits):
    """One project's own limits; None is whatever the limit of everybody is."""

    project_id: str


def limits_of(quota: Quota | None, defaults: Limits) -> Limits:
    """What holds for a project."""
    if quota is None:
        return defaults
    own = {what.value: limit for what in Counted if (limit := getattr(quota, what)) is not None}
    return replace(defaults, **own)


def limit_of(limits: Limits, what: Counted) -> int:
    limit: int | None = getattr(limits, what)
    return UNLIMITED if limit is None else limit


def has_own(quota: Quota | None, resources: Iterable[Counted]) -> bool:
    """Whether the project has a limit of its own for any of these resources."""
    return quota is not None and any(getattr(quota, what) is not None for what in resources)


def without_own(quota: Quota, resources: Iterable[Counted]) -> Quota | None:
    """The limits of everybody again for these resources; None when no limit of the project's own is left."""
    none: Mapping[str, Any] = dict.fromkeys(what.value for what in resources)
    rest = replace(quota, **none)
    return rest if has_own(rest, Counted) else None


def count(aggregate: object) -> Mapping[tuple[str, Counted], int]:
    """What one document adds to what projects have.

    A subnet counts for its own project. The ports of gateways and floating IPs are no project's, and one from which
    members are probed was not asked for by the network's. What others wrote counts where they count.
    """
    match aggregate:
        case _ if is_foreign(aggregate):
            return {}
        case LoadBalancer(project_id=project):
            return {(project, what): number for what, number in _parts(aggregate).items() if number}
        case Network(project_id=project, subnets=subnets):
            return {(project, Counted.NETWORK): 1, **Counter((each.project_id, Counted.SUBNET) for each in subnets)}
        case Port(project_id=project) if project and aggregate.use not in UNASKED:
            return {(project, Counted.PORT): 1}
        case Router(project_id=project):
            return {(project, Counted.ROUTER): 1}
        case FloatingIP(project_id=project):
            return {(project, Counted.FLOATING_IP): 1}
        case LocalIP(project_id=project, associations=associations):
            counted = {Counted.LOCAL_IP: 1, Counted.LOCAL_IP_ASSOCIATION: len(associations)}
            return {(project, what): number for what, number in counted.items() if number}
        case _:
            return {}


def _parts(balancer: LoadBalancer) -> Mapping[Counted, int]:
    policies = [policy for listener in balancer.listeners for policy in listener.l7policies]
    return {
        Counted.LOAD_BALANCER: 1,
        Counted.POOL: len(balancer.pools),
        Counted.HEALTH_MONITOR: sum(pool.health_monitor is not None for pool in balancer.pools),
        Counted.MEMBER: sum(len(pool.members) for pool in balancer.pools),
        Counted.LISTENER: len(balancer.listeners),
        Counted.L7POLICY: len(policies),
        Counted.L7RULE: sum(len(policy.rules) for policy in policies),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeLimits:
    """What health monitors may ask of the nodes; UNLIMITED is any number. Each is probed once in a delay."""

    least_delay: int = 1
    """Seconds. Less than one can be asked for (`delay_ms`) where this is 1."""
    per_second: int = 200
    """Of all members and replicas of a project together: 200 each second, or 1,000 each five seconds."""
    per_second_of_port: int = 20
    """That one port gets, for whichever of its services."""


PROBE_LIMITS = ProbeLimits()
ProbedAddress: TypeAlias = tuple[str, str, IPAddress]
"""By which project somebody is probed, and where: the subnet that a member names, or else the network of the VIP or the
Local IP, and the address there. Probes reach ports of their own project only, so each project's count for itself."""
MILLION = 1_000_000


def probe_rates(probing: LoadBalancer | LocalIP | None) -> Mapping[ProbedAddress, int]:
    """Millionths of a probe a second at each place. Of what is disabled too: it needs no leave to be enabled again."""
    match probing:
        case LoadBalancer():
            return _rates_of_pools(probing)
        case LocalIP(health_monitor=monitor) if monitor is not None:
            rate, project_id = int(MILLION / monitor.seconds_between), probing.project_id
            return {(project_id, probing.network_id, each.address): rate for each in probing.associations}
        case _:
            return {}


def _rates_of_pools(balancer: LoadBalancer) -> Mapping[ProbedAddress, int]:
    rates: dict[ProbedAddress, int] = {}
    if not any(pool.health_monitor for pool in balancer.pools):
        return rates
    listeners = listeners_by_pool(balancer)
    for pool in balancer.pools:
        if pool.health_monitor is not None:
            rate = int(MILLION / pool.health_monitor.seconds_between)
            counted = count_probed_ports(pool, listeners.get(pool.id, ()))
            for member, number in zip(pool.members, counted, strict=True):
                where = member.subnet_id or balancer.vip.network_id
                place = balancer.project_id, where, member.monitor_address or member.address
                rates[place] = rates.get(place, 0) + rate * number
    return rates


def project_rate(probing: LoadBalancer | LocalIP) -> Mapping[str, int]:
    """The same of all places together, for the project."""
    total = sum(probe_rates(probing).values())
    return {probing.project_id: total} if total else {}

"""Quotas: limits and usage of resources per project, with one mechanism for all API front ends.

Usage is an index of the snapshot, updated with every change, so a request does not count existing resources.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

from immutables import Map

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import LoadBalancer, listeners_by_pool
from fairlead.model.documents.local_ip import LocalIP
from fairlead.model.documents.member_ports import count_probed_ports
from fairlead.model.documents.network import SYSTEM_USES, FloatingIP, Network, Port, Router
from fairlead.model.documents.unmanaged import is_unmanaged

UNLIMITED = -1
MAX_QUOTA = 2_000_000_000
"""Maximum limit (octavia, common/constants.py, MAX_QUOTA)."""


class QuotaResource(StrEnum):
    """Resources with a quota, by attribute, in the order in which Octavia checks them when it creates a tree."""

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
    *(QuotaResource.NETWORK, QuotaResource.SUBNET, QuotaResource.PORT, QuotaResource.ROUTER, QuotaResource.FLOATING_IP),
    *(QuotaResource.LOCAL_IP, QuotaResource.LOCAL_IP_ASSOCIATION),
)
BALANCING = tuple(what for what in QuotaResource if what not in NETWORKING)
Usage: TypeAlias = Map[tuple[str, QuotaResource], int]
"""(project id, resource) -> usage; absent for 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limit of each resource. UNLIMITED is no limit; None is the default of the deployment, or no limit without one."""

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
    """Own limits of one project; None is the default of all projects."""

    project_id: str


def limits_of(quota: Quota | None, defaults: Limits) -> Limits:
    """Return the effective limits of a project."""
    if quota is None:
        return defaults
    own = {what.value: limit for what in QuotaResource if (limit := getattr(quota, what)) is not None}
    return replace(defaults, **own)


def limit_of(limits: Limits, what: QuotaResource) -> int:
    limit: int | None = getattr(limits, what)
    return UNLIMITED if limit is None else limit


def has_own_limit(quota: Quota | None, resources: Iterable[QuotaResource]) -> bool:
    """Return whether the project has an own limit for any of these resources."""
    return quota is not None and any(getattr(quota, what) is not None for what in resources)


def without_own_limits(quota: Quota, resources: Iterable[QuotaResource]) -> Quota | None:
    """Return the quota without own limits for these resources; None if no own limit is left."""
    none: Mapping[str, Any] = dict.fromkeys(what.value for what in resources)
    rest = replace(quota, **none)
    return rest if has_own_limit(rest, QuotaResource) else None


def count_usage(aggregate: object) -> Mapping[tuple[str, QuotaResource], int]:
    """Return the contribution of one document to usage.

    A subnet counts for its own project. Ports of gateways and floating IPs belong to no project, and probe and proxy
    ports are not counted, because no request created them. Unmanaged objects count in the quotas of their manager only.
    """
    match aggregate:
        case _ if is_unmanaged(aggregate):
            return {}
        case LoadBalancer(project_id=project):
            return {(project, what): number for what, number in _parts(aggregate).items() if number}
        case Network(project_id=project, subnets=subnets):
            return {
                (project, QuotaResource.NETWORK): 1,
                **Counter((each.project_id, QuotaResource.SUBNET) for each in subnets),
            }
        case Port(project_id=project) if project and aggregate.use not in SYSTEM_USES:
            return {(project, QuotaResource.PORT): 1}
        case Router(project_id=project):
            return {(project, QuotaResource.ROUTER): 1}
        case FloatingIP(project_id=project):
            return {(project, QuotaResource.FLOATING_IP): 1}
        case LocalIP(project_id=project, associations=associations):
            counted = {QuotaResource.LOCAL_IP: 1, QuotaResource.LOCAL_IP_ASSOCIATION: len(associations)}
            return {(project, what): number for what, number in counted.items() if number}
        case _:
            return {}


def _parts(balancer: LoadBalancer) -> Mapping[QuotaResource, int]:
    policies = [policy for listener in balancer.listeners for policy in listener.l7policies]
    return {
        QuotaResource.LOAD_BALANCER: 1,
        QuotaResource.POOL: len(balancer.pools),
        QuotaResource.HEALTH_MONITOR: sum(pool.health_monitor is not None for pool in balancer.pools),
        QuotaResource.MEMBER: sum(len(pool.members) for pool in balancer.pools),
        QuotaResource.LISTENER: len(balancer.listeners),
        QuotaResource.L7POLICY: len(policies),
        QuotaResource.L7RULE: sum(len(policy.rules) for policy in policies),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeLimits:
    """Limits of the probe rate of health monitors; UNLIMITED is no limit. Each endpoint is probed once per delay."""

    min_delay: int = 1
    """Minimum delay in seconds. Delays below one second (`delay_ms`) are allowed if this is 1."""
    max_probes_per_second: int = 200
    """Maximum probes per second of a project's members and replicas: 200 every second, or 1,000 every five seconds."""
    max_probes_per_second_per_port: int = 20
    """Maximum probes per second to one port, for all its services."""


PROBE_LIMITS = ProbeLimits()
ProbedAddress: TypeAlias = tuple[str, str, IPAddress]
"""Project, place and address of probes. The place is the subnet of the member, otherwise the network of the VIP or
Local IP. Probes only reach ports of their own project, so each project is counted separately."""
MILLION = 1_000_000


def probe_rates(probing: LoadBalancer | LocalIP | None) -> Mapping[ProbedAddress, int]:
    """Return the probe rate at each place, in millionths of a probe per second. Disabled objects count, because they
    can be enabled without a check."""
    match probing:
        case LoadBalancer():
            return _rates_of_pools(probing)
        case LocalIP(health_monitor=monitor) if monitor is not None:
            rate, project_id = int(MILLION / monitor.interval_seconds), probing.project_id
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
            rate = int(MILLION / pool.health_monitor.interval_seconds)
            counted = count_probed_ports(pool, listeners.get(pool.id, ()))
            for member, number in zip(pool.members, counted, strict=True):
                where = member.subnet_id or balancer.vip.network_id
                place = balancer.project_id, where, member.monitor_address or member.address
                rates[place] = rates.get(place, 0) + rate * number
    return rates


def project_rate(probing: LoadBalancer | LocalIP) -> Mapping[str, int]:
    """Return the probe rate of the document for its project, in millionths of a probe per second."""
    total = sum(probe_rates(probing).values())
    return {probing.project_id: total} if total else {}

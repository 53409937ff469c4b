"""Checks of a load balancer: its size, the ids of its parts and their projects."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.changes.ids import IdInUse
from fairlead.changes.lookup import NotTheirs
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents import sizes
from fairlead.model.documents.apportionment import MAX_SLOTS
from fairlead.model.documents.loadbalancer import LoadBalancer, Pool, Transport, transport
from fairlead.model.documents.network import Resource
from fairlead.model.documents.port_ranges import count_ports
from fairlead.model.documents.quota import QuotaResource
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyParts(Refusal):
    """The load balancer has more than `most` of these; for L7 policies, the listener has."""

    what: QuotaResource
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyPorts(Refusal):
    """The listeners of the load balancer have too many ports in total. If `are_targets`, the number of endpoints is too
    high: members times ports that lead to them."""

    most: int
    are_targets: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyBuckets(Refusal):
    """Pools that select by fields of a packet lead from too many ports. Each port needs `each` hash buckets at each
    VIP."""

    most: int
    each: int


def check_sizes(old: LoadBalancer | None, balancer: LoadBalancer) -> None:
    """Check the size of a load balancer, because each change writes the whole document. Raises Refused."""
    policies = max([len(listener.l7policies) for listener in balancer.listeners], default=0)
    for what, number, most in (
        (QuotaResource.LISTENER, len(balancer.listeners), sizes.MAX_LISTENERS),
        (QuotaResource.POOL, len(balancer.pools), sizes.MAX_POOLS),
        (QuotaResource.L7POLICY, policies, sizes.MAX_L7POLICIES),
        (QuotaResource.MEMBER, sum([len(pool.members) for pool in balancer.pools]), sizes.MAX_MEMBERS),
    ):
        if number > most:
            raise Refused(TooManyParts(what=what, most=most))
    _check_ports(balancer)
    _check_buckets(old, balancer)


def _check_ports(balancer: LoadBalancer) -> None:
    """Check the number of ports and endpoints before any range is expanded."""
    members = {pool.id: len(pool.members) for pool in balancer.pools}
    ports = [
        (count_ports(listener.ports), members.get(listener.default_pool_id or "", 0)) for listener in balancer.listeners
    ]
    if sum([number for number, _ in ports]) > sizes.MAX_PORTS:
        raise Refused(TooManyPorts(most=sizes.MAX_PORTS))
    if sum([number * each for number, each in ports if number > 1]) > sizes.MAX_ENDPOINTS:
        raise Refused(TooManyPorts(most=sizes.MAX_ENDPOINTS, are_targets=True))


def _check_buckets(old: LoadBalancer | None, balancer: LoadBalancer) -> None:
    """Check the number of hash buckets before any table is made. A stored load balancer with more may keep or reduce
    its number."""
    buckets = count_buckets(balancer)
    if buckets > sizes.BUCKETS and (old is None or buckets > count_buckets(old)):
        raise Refused(TooManyBuckets(most=sizes.BUCKETS, each=MAX_SLOTS))


def count_buckets(balancer: LoadBalancer) -> int:
    """Return the maximum number of hash buckets, in any state of the members. Proxied listeners and those without ports
    have none."""
    vips: Counter[int] = Counter(vip.address.version for vip in balancer.vips)
    tables = {pool.id: _buckets_of(pool, vips) for pool in balancer.pools if pool.goes_by_fields}
    return sum(
        [
            count_ports(listener.ports) * tables.get(listener.default_pool_id or "", 0)
            for listener in balancer.listeners
            if not listener.proxy_port and transport(listener.protocol) is not Transport.ANY
        ]
    )


def _buckets_of(pool: Pool, vips: Mapping[int, int]) -> int:
    """Return the number of hash buckets that one port needs at all VIPs together. A VIP needs buckets only for members
    of its IP version."""
    members = Counter(member.address.version for member in pool.members)
    return sum([vips[version] * (number if number == 1 else MAX_SLOTS) for version, number in members.items()])


def check_parts(snapshot: Snapshot, old: LoadBalancer | None, wanted: LoadBalancer) -> None:
    """Check ids and projects of parts. Ids given by clients must be unique in the load balancer, and across load
    balancers for parts that are looked up by id alone. New parts, and parts with a changed project, must have the load
    balancer's project. Raises Refused."""
    parts = _parts(wanted)
    if len({part.id for part in parts}) != len(parts):
        raise Refused(IdInUse(id=Counter([part.id for part in parts]).most_common(1)[0][0]))
    monitors = [pool.health_monitor for pool in wanted.pools if pool.health_monitor]
    policies = [policy for listener in wanted.listeners for policy in listener.l7policies]
    _check_ids_unused(snapshot.listener_owner, wanted.id, wanted.listeners)
    _check_ids_unused(snapshot.pool_owner, wanted.id, wanted.pools)
    _check_ids_unused(snapshot.monitor_owner, wanted.id, monitors)
    _check_ids_unused(snapshot.l7policy_owner, wanted.id, policies)
    others = [part for part in parts if part.project_id != wanted.project_id]
    if others:
        known = {part.id: part.project_id for part in _parts(old)} if old else {}
        for part in others:
            if known.get(part.id) != part.project_id:
                raise Refused(NotTheirs(project_id=part.project_id))


def _parts(balancer: LoadBalancer) -> list[Resource]:
    """Return all parts with an id, because front ends and status histories look parts up by id."""
    policies = [policy for listener in balancer.listeners for policy in listener.l7policies]
    return [
        *balancer.listeners,
        *policies,
        *[rule for policy in policies for rule in policy.rules],
        *balancer.pools,
        *[pool.health_monitor for pool in balancer.pools if pool.health_monitor],
        *[member for pool in balancer.pools for member in pool.members],
    ]


def _check_ids_unused(owners: Mapping[str, str], balancer_id: str, parts: Sequence[Resource]) -> None:
    """Check that no other load balancer has one of the ids; `owners` maps ids to load balancers."""
    for part in parts:
        if owners.get(part.id, balancer_id) != balancer_id:
            raise Refused(IdInUse(id=part.id))

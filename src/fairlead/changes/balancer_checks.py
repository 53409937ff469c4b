"""How large a load balancer may be, which ids its parts may have, and whose they are."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.changes.finding import NotTheirs
from fairlead.changes.ids import IdTaken
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model import sizes
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.network import Resource
from fairlead.model.port_ranges import count
from fairlead.model.quota import Counted
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TooMany(Refusal):
    """Of these a load balancer can have so many; of policies a listener."""

    what: Counted
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyPorts(Refusal):
    """Of all listeners of a load balancer together; or, where `are_targets`, of their members, each as often as there
    are ports that lead to it."""

    most: int
    are_targets: bool = False


def check_sizes(balancer: LoadBalancer) -> None:
    """A load balancer is one document: it is written whole at each change. Raises Refused."""
    policies = max([len(listener.l7policies) for listener in balancer.listeners], default=0)
    for what, number, most in (
        (Counted.LISTENER, len(balancer.listeners), sizes.LISTENERS),
        (Counted.POOL, len(balancer.pools), sizes.POOLS),
        (Counted.L7POLICY, policies, sizes.POLICIES),
        (Counted.MEMBER, sum([len(pool.members) for pool in balancer.pools]), sizes.MEMBERS),
    ):
        if number > most:
            raise Refused(TooMany(what=what, most=most))
    _check_ports(balancer)


def _check_ports(balancer: LoadBalancer) -> None:
    """Before anybody expands a range."""
    members = {pool.id: len(pool.members) for pool in balancer.pools}
    ports = [(count(listener.ports), members.get(listener.default_pool_id or "", 0)) for listener in balancer.listeners]
    if sum([number for number, _ in ports]) > sizes.PORTS:
        raise Refused(TooManyPorts(most=sizes.PORTS))
    if sum([number * each for number, each in ports if number > 1]) > sizes.TARGETS:
        raise Refused(TooManyPorts(most=sizes.TARGETS, are_targets=True))


def check_parts(snapshot: Snapshot, old: LoadBalancer | None, wanted: LoadBalancer) -> None:
    """Ids may be given: each part has its own, and what is found by its id alone has it alone. A part that is new, or
    of another project than it was, is of the load balancer's. Raises Refused."""
    parts = _parts(wanted)
    if len({part.id for part in parts}) != len(parts):
        raise Refused(IdTaken(id=Counter([part.id for part in parts]).most_common(1)[0][0]))
    monitors = [pool.health_monitor for pool in wanted.pools if pool.health_monitor]
    policies = [policy for listener in wanted.listeners for policy in listener.l7policies]
    _check_own(snapshot.listener_owner, wanted.id, wanted.listeners)
    _check_own(snapshot.pool_owner, wanted.id, wanted.pools)
    _check_own(snapshot.monitor_owner, wanted.id, monitors)
    _check_own(snapshot.l7policy_owner, wanted.id, policies)
    others = [part for part in parts if part.project_id != wanted.project_id]
    if others:
        known = {part.id: part.project_id for part in _parts(old)} if old else {}
        for part in others:
            if known.get(part.id) != part.project_id:
                raise Refused(NotTheirs(project_id=part.project_id))


def _parts(balancer: LoadBalancer) -> list[Resource]:
    """All that have an id: whoever shows one by its id alone, or remembers when it changed, takes it for one."""
    policies = [policy for listener in balancer.listeners for policy in listener.l7policies]
    return [
        *balancer.listeners,
        *policies,
        *[rule for policy in policies for rule in policy.rules],
        *balancer.pools,
        *[pool.health_monitor for pool in balancer.pools if pool.health_monitor],
        *[member for pool in balancer.pools for member in pool.members],
    ]


def _check_own(owners: Mapping[str, str], balancer_id: str, parts: Sequence[Resource]) -> None:
    """`owners` says which load balancer has an id already."""
    for part in parts:
        if owners.get(part.id, balancer_id) != balancer_id:
            raise Refused(IdTaken(id=part.id))

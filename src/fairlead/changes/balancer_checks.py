"""How large a load balancer may be, and which ids it may have."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model import sizes
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.quota import Counted
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TooMany(Refusal):
    """Of these a load balancer can have so many; of policies a listener."""

    what: Counted
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdTaken(Refusal):
    """An id that was given is already that of something else."""

    id: str


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


def check_ids(snapshot: Snapshot, balancer: LoadBalancer) -> None:
    """Ids may be given: what is found by its id alone has it alone. Raises Refused."""
    for owners, ids in _ids(snapshot, balancer):
        if len(set(ids)) < len(ids):
            raise Refused(IdTaken(id=next(each for each in ids if ids.count(each) > 1)))
        for each in ids:
            if owners.get(each, balancer.id) != balancer.id:
                raise Refused(IdTaken(id=each))


def _ids(snapshot: Snapshot, balancer: LoadBalancer) -> Iterator[tuple[Mapping[str, str], list[str]]]:
    """What has which ids already, and the ids of this one."""
    yield snapshot.listener_owner, [listener.id for listener in balancer.listeners]
    yield snapshot.pool_owner, [pool.id for pool in balancer.pools]
    monitors = [pool.health_monitor for pool in balancer.pools]
    yield snapshot.monitor_owner, [monitor.id for monitor in monitors if monitor]
    yield snapshot.l7policy_owner, [policy.id for each in balancer.listeners for policy in each.l7policies]

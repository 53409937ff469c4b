"""How large a load balancer may be, and which ids it may have."""

from collections.abc import Mapping
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
    monitors = [pool.health_monitor for pool in balancer.pools if pool.health_monitor]
    policies = [policy for listener in balancer.listeners for policy in listener.l7policies]
    _check_own(snapshot.listener_owner, balancer.id, [listener.id for listener in balancer.listeners])
    _check_own(snapshot.pool_owner, balancer.id, [pool.id for pool in balancer.pools])
    _check_own(snapshot.monitor_owner, balancer.id, [monitor.id for monitor in monitors])
    _check_own(snapshot.l7policy_owner, balancer.id, [policy.id for policy in policies])


def _check_own(owners: Mapping[str, str], balancer_id: str, ids: list[str]) -> None:
    """`owners` says which load balancer has an id already."""
    seen = set[str]()
    for each in ids:
        if each in seen or owners.get(each, balancer_id) != balancer_id:
            raise Refused(IdTaken(id=each))
        seen.add(each)

"""Changes of one pool of a load balancer."""

from dataclasses import dataclass, replace

from fairlead.changes.balancers import check_part_not_pending, find_to_change, put, put_part
from fairlead.changes.caller import ChangeContext
from fairlead.changes.listener_checks import check_pool_protocol
from fairlead.changes.listeners import find_listener_to_change
from fairlead.changes.lookup import check_may_change, find_pool
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.quota import QuotaResource
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class HasDefaultPool(Refusal):
    """The listener already has a default pool."""

    listener_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolInUse(Refusal):
    """An L7 policy redirects to the pool."""

    pool_id: str
    policy_id: str


def find_pool_to_change(snapshot: Snapshot, pool_id: str, asker: ChangeContext) -> tuple[lb.LoadBalancer, lb.Pool]:
    """Return a pool that the caller may change. Raises Refused."""
    balancer, pool = find_pool(snapshot, pool_id, asker.identity)
    check_may_change(balancer, asker.identity)
    return balancer, pool


def create_pool(
    snapshot: Snapshot, asker: ChangeContext, balancer_id: str, pool: lb.Pool, listener_id: str | None = None
) -> Steps[Changes]:
    """Create a pool, as the default pool of the listener if one is given."""
    balancer = find_to_change(snapshot, balancer_id, asker)
    balancer = replace(balancer, pools=(*balancer.pools, pool))
    if listener_id is not None:
        _, listener = find_listener_to_change(snapshot, listener_id, asker)
        check_pool_protocol(listener, pool.protocol)
        if listener.default_pool_id is not None:
            raise Refused(HasDefaultPool(listener_id=listener_id))
        leading = replace(listener, default_pool_id=pool.id, updated_at=asker.now)
        balancer = lb.replace_listener(balancer, leading)
    return put_part(snapshot, asker, balancer)


def update_pool(snapshot: Snapshot, asker: ChangeContext, pool: lb.Pool) -> Steps[Changes]:
    """Replace the pool with this id."""
    balancer, _ = find_pool_to_change(snapshot, pool.id, asker)
    return put_part(snapshot, asker, lb.replace_pool(balancer, replace(pool, updated_at=asker.now)))


def delete_pool(snapshot: Snapshot, asker: ChangeContext, pool_id: str) -> Steps[Changes]:
    """Delete a pool. Listeners that used it stay, without a default pool."""
    balancer, pool = find_pool_to_change(snapshot, pool_id, asker)
    for policy in (policy for listener in balancer.listeners for policy in listener.l7policies):
        if policy.redirect_pool_id == pool_id:
            raise Refused(PoolInUse(pool_id=pool_id, policy_id=policy.id))
    listeners = tuple(
        replace(listener, default_pool_id=None) if listener.default_pool_id == pool_id else listener
        for listener in balancer.listeners
    )
    pools = tuple([other for other in balancer.pools if other is not pool])
    return put_part(snapshot, asker, replace(balancer, listeners=listeners, pools=pools))


def put_pool(
    snapshot: Snapshot, asker: ChangeContext, balancer: lb.LoadBalancer, old: lb.Pool, pool: lb.Pool
) -> Steps[Changes]:
    """Replace a pool with changed members or monitor.
    The check for a PENDING pool precedes that of the load balancer."""
    yield
    changed = lb.replace_pool(balancer, replace(pool, updated_at=asker.now))
    changes = yield from put(snapshot, asker, changed)
    check_part_not_pending(snapshot, asker, balancer, QuotaResource.POOL, old)
    check_part_not_pending(snapshot, asker, balancer)
    return changes

"""Changes of the health monitor of a pool."""

from dataclasses import dataclass, replace

from fairlead.changes.caller import ChangeContext
from fairlead.changes.lookup import check_may_change, find_monitor
from fairlead.changes.monitor_checks import check_monitor
from fairlead.changes.pools import find_pool_to_change, put_pool
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.loadbalancer import HealthMonitor
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class HasMonitor(Refusal):
    """The pool already has a health monitor."""

    pool_id: str


def create_monitor(snapshot: Snapshot, asker: ChangeContext, pool_id: str, monitor: HealthMonitor) -> Steps[Changes]:
    balancer, pool = find_pool_to_change(snapshot, pool_id, asker)
    check_monitor(None, monitor, pool.protocol)
    if pool.health_monitor is not None:
        raise Refused(HasMonitor(pool_id=pool_id))
    return put_pool(snapshot, asker, balancer, pool, replace(pool, health_monitor=monitor))


def update_monitor(snapshot: Snapshot, asker: ChangeContext, monitor: HealthMonitor) -> Steps[Changes]:
    """Replace the health monitor with this id."""
    balancer, pool, _ = find_monitor(snapshot, monitor.id, asker.identity)
    check_may_change(balancer, asker.identity)
    changed = replace(monitor, updated_at=asker.now)
    return put_pool(snapshot, asker, balancer, pool, replace(pool, health_monitor=changed))


def delete_monitor(snapshot: Snapshot, asker: ChangeContext, monitor_id: str) -> Steps[Changes]:
    balancer, pool, _ = find_monitor(snapshot, monitor_id, asker.identity)
    check_may_change(balancer, asker.identity)
    return put_pool(snapshot, asker, balancer, pool, replace(pool, health_monitor=None))

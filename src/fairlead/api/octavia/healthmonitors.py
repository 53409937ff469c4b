"""What requests about health monitors do to the model: each is a part of its pool."""

from dataclasses import replace

from fairlead.api.door import ApiError
from fairlead.api.fields import Values
from fairlead.api.octavia.caller import Caller, Origin
from fairlead.api.octavia.changes import Made, edit_children, find_load_balancer
from fairlead.api.octavia.errors import not_found
from fairlead.api.octavia.monitors import decode_monitor, update_monitor
from fairlead.changes.identity import Identity
from fairlead.model.loadbalancer import HealthMonitor, LoadBalancer, Pool
from fairlead.model.snapshot import Snapshot
from fairlead.model.steps import Steps
from fairlead.model.writing import Changes


def find_monitor(snapshot: Snapshot, monitor_id: str, identity: Identity) -> tuple[LoadBalancer, Pool, HealthMonitor]:
    """Raises ApiError."""
    owner = snapshot.monitor_owner.get(monitor_id)
    if owner is None:
        raise not_found("Health Monitor", monitor_id)
    balancer = find_load_balancer(snapshot, owner, identity)
    return next(
        (balancer, pool, pool.health_monitor)
        for pool in balancer.pools
        if pool.health_monitor and pool.health_monitor.id == monitor_id
    )


def create(snapshot: Snapshot, values: Values, caller: Caller) -> Steps[Made]:
    made: list[str] = []

    def add(pool: Pool, origin: Origin) -> Pool:
        monitor = decode_monitor(values, origin, pool.protocol)
        if pool.health_monitor is not None:
            raise ApiError(409, "This pool already has a health monitor")
        made.append(monitor.id)
        return replace(pool, health_monitor=monitor)

    return (yield from edit_children(snapshot, caller, values["pool_id"], add)), made[-1]


def update(snapshot: Snapshot, values: Values, caller: Caller, monitor_id: str) -> Steps[Changes]:
    _, found, monitor = find_monitor(snapshot, monitor_id, caller.identity)

    def edit(pool: Pool, _: Origin) -> Pool:
        return replace(pool, health_monitor=replace(update_monitor(monitor, values), updated_at=caller.origin.now))

    return (yield from edit_children(snapshot, caller, found.id, edit))


def delete(snapshot: Snapshot, caller: Caller, monitor_id: str) -> Steps[Changes]:
    _, found, _ = find_monitor(snapshot, monitor_id, caller.identity)
    return (yield from edit_children(snapshot, caller, found.id, lambda pool, _: replace(pool, health_monitor=None)))

"""Changes of one listener of a load balancer."""

from collections.abc import Iterable
from dataclasses import replace

from fairlead.changes.balancers import find_to_change, put_part
from fairlead.changes.caller import ChangeContext
from fairlead.changes.lookup import check_may_change, find_listener
from fairlead.model.documents.loadbalancer import Listener, LoadBalancer, Pool, replace_listener
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps


def find_listener_to_change(
    snapshot: Snapshot, listener_id: str, asker: ChangeContext
) -> tuple[LoadBalancer, Listener]:
    """Return a listener that the caller may change. Raises Refused."""
    balancer, listener = find_listener(snapshot, listener_id, asker.identity)
    check_may_change(balancer, asker.identity)
    return balancer, listener


def create_listener(
    snapshot: Snapshot, asker: ChangeContext, balancer_id: str, listener: Listener, pools: Iterable[Pool] = ()
) -> Steps[Changes]:
    """Create a listener, with new pools for it."""
    balancer = find_to_change(snapshot, balancer_id, asker)
    listeners, all_pools = (*balancer.listeners, listener), (*balancer.pools, *pools)
    return put_part(snapshot, asker, replace(balancer, listeners=listeners, pools=all_pools))


def update_listener(snapshot: Snapshot, asker: ChangeContext, listener: Listener) -> Steps[Changes]:
    """Replace the listener with this id."""
    balancer, _ = find_listener_to_change(snapshot, listener.id, asker)
    changed = replace(listener, updated_at=asker.now)
    return put_part(snapshot, asker, replace_listener(balancer, changed))


def delete_listener(snapshot: Snapshot, asker: ChangeContext, listener_id: str) -> Steps[Changes]:
    balancer, listener = find_listener_to_change(snapshot, listener_id, asker)
    rest = tuple([other for other in balancer.listeners if other is not listener])
    return put_part(snapshot, asker, replace(balancer, listeners=rest))

"""Idempotent update of a load balancer that another service also stores, from that service's complete state.

Parts in the state are created or updated; other parts stay, because the service may be about to send them. Attributes
that the service does not know are kept: times, tags, locality, raw match, proxy ports, ordinals and slots of members.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import is_
from typing import TypeVar

from fairlead.changes.balancers import check_not_pending, find_to_change, put
from fairlead.changes.caller import ChangeContext
from fairlead.changes.listener_checks import complete_listener
from fairlead.changes.lookup import NoSuch
from fairlead.changes.pool_checks import complete_pool
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.l7 import L7Policy
from fairlead.model.documents.network import Resource
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.quota import QuotaResource
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps, as_single_step, run_to_completion

_R = TypeVar("_R", bound=Resource)
_OWN_FIELDS = ("tags", "created_at", "updated_at")
_OWN_LISTENER_FIELDS = ("raw", "proxy_port")
_OWN_POOL_FIELDS = ("locality", "down_member", "next_ordinal", "tables", "slots")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationMismatch(Refusal):
    """The load balancer is no longer at the generation that the service has seen."""

    balancer_id: str
    generation: int


def find_externally_managed(snapshot: Snapshot, balancer_id: str, asker: ChangeContext) -> lb.LoadBalancer:
    """Return a load balancer that another service stores and the caller may change. Raises Refused."""
    balancer = find_to_change(snapshot, balancer_id, asker)
    if balancer.kept is None:
        raise Refused(NoSuch(what=QuotaResource.LOAD_BALANCER, id=balancer_id))
    return balancer


def merge_external_state(old: lb.LoadBalancer, said: lb.LoadBalancer, now: datetime) -> Steps[lb.LoadBalancer]:
    """Return `old` updated to the state, or `old` itself if nothing differs. Addresses are kept, because a load
    balancer never changes them. Raises Refused for invalid combinations."""
    pools = yield from _merge_parts(old.pools, said.pools, lambda before, each: _pool(before, each, now))
    listeners = yield from _merge_parts(
        old.listeners, said.listeners, as_single_step(lambda before, each: _listener(before, each, now))
    )
    own = {name: getattr(said, name) for name in ("name", "description", "admin_state_up")}
    wanted = replace(old, **own, pools=pools, listeners=listeners)
    return old if wanted == old else wanted


def put_external_state(
    snapshot: Snapshot, asker: ChangeContext, said: lb.LoadBalancer, generation: int | None = None
) -> Steps[Changes]:
    """Update the load balancer; no change if nothing differs. A generation makes the update conditional on it.
    Raises Refused and Unsupported."""
    old = find_externally_managed(snapshot, said.id, asker)
    if generation is not None and snapshot.generations.get(Owner(Kind.LOAD_BALANCER, old.id)) != generation:
        raise Refused(GenerationMismatch(balancer_id=old.id, generation=generation))
    wanted = yield from merge_external_state(old, said, asker.now)
    if wanted is old:
        return Changes()
    check_not_pending(snapshot, asker, old)
    return (yield from put(snapshot, asker, wanted))


def _pool(old: lb.Pool | None, said: lb.Pool, now: datetime) -> Steps[lb.Pool]:
    if old is None:
        return said
    members = yield from _merge_parts(
        old.members, said.members, as_single_step(lambda before, each: _with_own_fields(before, each, now, "ordinal"))
    )
    monitor, before = said.health_monitor, old.health_monitor
    if monitor is None or (before is not None and monitor.id != before.id):
        monitor = before
    else:
        monitor = _with_own_fields(before, monitor, now)
    wanted = _with_own_fields(old, replace(said, members=members, health_monitor=monitor), now, *_OWN_POOL_FIELDS)
    return old if wanted is old else _keep_if_equal(old, (yield from complete_pool(old, wanted)), now)


def _listener(old: lb.Listener | None, said: lb.Listener, now: datetime) -> lb.Listener:
    if old is None:
        return said
    known = {policy.id: policy for policy in old.l7policies}
    policies = [_policy(known.pop(each.id, None), each, now) for each in said.l7policies]
    cidrs = old.allowed_cidrs if set(old.allowed_cidrs) == set(said.allowed_cidrs) else said.allowed_cidrs
    wanted = _with_own_fields(
        old, replace(said, allowed_cidrs=cidrs, l7policies=(*policies, *known.values())), now, *_OWN_LISTENER_FIELDS
    )
    return old if wanted is old else _keep_if_equal(old, complete_listener(old, wanted), now)


def _policy(old: L7Policy | None, said: L7Policy, now: datetime) -> L7Policy:
    if old is None:
        return said
    rules = run_to_completion(
        _merge_parts(old.rules, said.rules, as_single_step(lambda before, each: _with_own_fields(before, each, now)))
    )
    return _with_own_fields(old, replace(said, rules=rules), now)


def _with_own_fields(old: _R | None, said: _R, now: datetime, *more: str) -> _R:
    """Return the new part with the attributes that only Fairlead has."""
    if old is None:
        return said
    return _keep_if_equal(old, replace(said, **{name: getattr(old, name) for name in (*_OWN_FIELDS, *more)}), now)


def _keep_if_equal(old: _R, wanted: _R, now: datetime) -> _R:
    """Return the old object if it is equal, otherwise the new one with the time of the change."""
    return old if replace(wanted, updated_at=old.updated_at) == old else replace(wanted, updated_at=now)


def _merge_parts(
    old: tuple[_R, ...], said: Sequence[_R], change: Callable[[_R | None, _R], Steps[_R]]
) -> Steps[tuple[_R, ...]]:
    """Return the parts in stored order, followed by new ones; the identical tuple if nothing differs."""
    known, named = {part.id: part for part in old}, dict[str, _R]()
    for part in said:
        named[part.id] = yield from change(known.get(part.id), part)
    merged = (*(named.pop(part.id, part) for part in old), *named.values())
    return old if len(merged) == len(old) and all(map(is_, merged, old)) else merged

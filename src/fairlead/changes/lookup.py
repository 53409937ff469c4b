"""Lookup of load balancers and their parts by id, with access control."""

from dataclasses import dataclass

from fairlead.changes.identity import Identity
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.l7 import L7Policy, L7Rule
from fairlead.model.documents.quota import QuotaResource
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSuch(Refusal):
    """No load balancer or part has this id."""

    what: QuotaResource
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTheirs(Refusal):
    """The object belongs to another project, and the caller may not perform the operation."""

    project_id: str


def find_load_balancer(snapshot: Snapshot, balancer_id: str, who: Identity) -> lb.LoadBalancer:
    """Return a load balancer that the caller may see. All lookups here raise Refused."""
    balancer = snapshot.load_balancers.get(balancer_id)
    if balancer is None or lb.is_forward(balancer):
        raise Refused(NoSuch(what=QuotaResource.LOAD_BALANCER, id=balancer_id))
    if not who.may_see(balancer.project_id):
        raise Refused(NotTheirs(project_id=balancer.project_id))
    return balancer


def find_listener(snapshot: Snapshot, listener_id: str, who: Identity) -> tuple[lb.LoadBalancer, lb.Listener]:
    owner = snapshot.listener_owner.get(listener_id)
    if owner is None:
        raise Refused(NoSuch(what=QuotaResource.LISTENER, id=listener_id))
    balancer = find_load_balancer(snapshot, owner, who)
    return balancer, next(listener for listener in balancer.listeners if listener.id == listener_id)


def find_pool(snapshot: Snapshot, pool_id: str, who: Identity) -> tuple[lb.LoadBalancer, lb.Pool]:
    owner = snapshot.pool_owner.get(pool_id)
    if owner is None:
        raise Refused(NoSuch(what=QuotaResource.POOL, id=pool_id))
    balancer = find_load_balancer(snapshot, owner, who)
    return balancer, next(pool for pool in balancer.pools if pool.id == pool_id)


def find_member(pool: lb.Pool, member_id: str) -> lb.Member:
    member = lb.find_member(pool, member_id)
    if member is None:
        raise Refused(NoSuch(what=QuotaResource.MEMBER, id=member_id))
    return member


def find_monitor(
    snapshot: Snapshot, monitor_id: str, who: Identity
) -> tuple[lb.LoadBalancer, lb.Pool, lb.HealthMonitor]:
    owner = snapshot.monitor_owner.get(monitor_id)
    if owner is None:
        raise Refused(NoSuch(what=QuotaResource.HEALTH_MONITOR, id=monitor_id))
    balancer = find_load_balancer(snapshot, owner, who)
    return next(
        (balancer, pool, pool.health_monitor)
        for pool in balancer.pools
        if pool.health_monitor and pool.health_monitor.id == monitor_id
    )


def find_policy(snapshot: Snapshot, policy_id: str, who: Identity) -> tuple[lb.LoadBalancer, lb.Listener, L7Policy]:
    owner = snapshot.l7policy_owner.get(policy_id)
    if owner is None:
        raise Refused(NoSuch(what=QuotaResource.L7POLICY, id=policy_id))
    balancer = find_load_balancer(snapshot, owner, who)
    found = ((listener, lb.find_policy(listener, policy_id)) for listener in balancer.listeners)
    return next((balancer, listener, policy) for listener, policy in found if policy)


def find_rule(policy: L7Policy, rule_id: str) -> L7Rule:
    found = next((rule for rule in policy.rules if rule.id == rule_id), None)
    if found is None:
        raise Refused(NoSuch(what=QuotaResource.L7RULE, id=rule_id))
    return found


def check_may_change(balancer: lb.LoadBalancer, who: Identity) -> None:
    if not who.may_change(balancer.project_id):
        raise Refused(NotTheirs(project_id=balancer.project_id))

"""Changes of L7 policies and their rules."""

from dataclasses import replace

from fairlead.changes.balancers import check_part_not_pending
from fairlead.changes.caller import ChangeContext
from fairlead.changes.ids import check_new
from fairlead.changes.l7_checks import check_policy
from fairlead.changes.listeners import find_listener_to_change, update_listener
from fairlead.changes.lookup import check_may_change, find_policy, find_rule
from fairlead.model.documents.l7 import L7Policy, L7Rule
from fairlead.model.documents.loadbalancer import Listener, LoadBalancer
from fairlead.model.documents.quota import QuotaResource
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps


def find_policy_to_change(
    snapshot: Snapshot, policy_id: str, asker: ChangeContext
) -> tuple[LoadBalancer, Listener, L7Policy]:
    """Return a policy that the caller may change. Raises Refused."""
    found = find_policy(snapshot, policy_id, asker.identity)
    check_may_change(found[0], asker.identity)
    return found


def create_policy(
    snapshot: Snapshot, asker: ChangeContext, listener_id: str, policy: L7Policy, position: int | None = None
) -> Steps[Changes]:
    _, listener = find_listener_to_change(snapshot, listener_id, asker)
    check_new(snapshot.l7policy_owner, policy.id)
    return update_listener(snapshot, asker, insert_policy(listener, policy, position))


def update_policy(
    snapshot: Snapshot, asker: ChangeContext, policy: L7Policy, position: int | None = None
) -> Steps[Changes]:
    """Replace the policy with this id; without a position it keeps its own."""
    _, listener, old = find_policy_to_change(snapshot, policy.id, asker)
    where = listener.l7policies.index(old) + 1 if position is None else position
    changed = replace(policy, updated_at=asker.now)
    return update_listener(snapshot, asker, insert_policy(listener, changed, where))


def delete_policy(snapshot: Snapshot, asker: ChangeContext, policy_id: str) -> Steps[Changes]:
    _, listener, policy = find_policy_to_change(snapshot, policy_id, asker)
    rest = tuple([other for other in listener.l7policies if other is not policy])
    return update_listener(snapshot, asker, replace(listener, l7policies=rest))


def create_rule(snapshot: Snapshot, asker: ChangeContext, policy_id: str, rule: L7Rule) -> Steps[Changes]:
    _, _, policy = find_policy_to_change(snapshot, policy_id, asker)
    return _put_rules(snapshot, asker, policy, (*policy.rules, rule))


def update_rule(snapshot: Snapshot, asker: ChangeContext, policy_id: str, rule: L7Rule) -> Steps[Changes]:
    """Replace the rule with this id."""
    _, _, policy = find_policy_to_change(snapshot, policy_id, asker)
    old, changed = find_rule(policy, rule.id), replace(rule, updated_at=asker.now)
    rules = tuple([changed if other is old else other for other in policy.rules])
    return _put_rules(snapshot, asker, policy, rules)


def delete_rule(snapshot: Snapshot, asker: ChangeContext, policy_id: str, rule_id: str) -> Steps[Changes]:
    _, _, policy = find_policy_to_change(snapshot, policy_id, asker)
    gone = find_rule(policy, rule_id)
    rules = tuple([other for other in policy.rules if other is not gone])
    return _put_rules(snapshot, asker, policy, rules)


def insert_policy(listener: Listener, policy: L7Policy, position: int | None) -> Listener:
    """Return the listener with the policy at this position, counted from 1; at the end for None.
    Later policies move down."""
    others = [other for other in listener.l7policies if other.id != policy.id]
    others.insert(len(others) if position is None else position - 1, policy)
    return replace(listener, l7policies=tuple(others))


def _put_rules(snapshot: Snapshot, asker: ChangeContext, old: L7Policy, rules: tuple[L7Rule, ...]) -> Steps[Changes]:
    """Replace the rules of a policy. The check for a PENDING policy precedes that of the load balancer."""
    policy = replace(old, rules=rules)
    check_policy(old, policy)
    balancer, _, _ = find_policy_to_change(snapshot, old.id, asker)
    check_part_not_pending(snapshot, asker, balancer, QuotaResource.L7POLICY, old)
    return update_policy(snapshot, asker, policy)

"""What requests about L7 policies and their rules do to the model: a policy is a part of its listener."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from fairlead.api.fields import Values
from fairlead.api.octavia import l7
from fairlead.api.octavia.caller import Caller, Origin
from fairlead.api.octavia.changes import (
    Made,
    edit_listener,
    find_load_balancer,
    may_change,
    origin_on,
    refuse_immutable,
)
from fairlead.api.octavia.errors import no_children, not_found
from fairlead.changes.identity import Identity
from fairlead.model.l7 import L7Policy, L7Rule
from fairlead.model.loadbalancer import Listener, ListenerProtocol, LoadBalancer, find_policy
from fairlead.model.snapshot import Snapshot
from fairlead.model.steps import Steps
from fairlead.model.writing import Changes

FoundPolicy: TypeAlias = tuple[LoadBalancer, Listener, L7Policy]


def find(snapshot: Snapshot, policy_id: str, identity: Identity) -> FoundPolicy:
    """Raises ApiError."""
    owner = snapshot.l7policy_owner.get(policy_id)
    if owner is None:
        raise not_found("L7 Policy", policy_id)
    balancer = find_load_balancer(snapshot, owner, identity)
    found = ((listener, find_policy(listener, policy_id)) for listener in balancer.listeners)
    return next((balancer, listener, policy) for listener, policy in found if policy)


def find_rule(
    snapshot: Snapshot, policy_id: str, rule_id: str, identity: Identity
) -> tuple[LoadBalancer, Listener, L7Policy, L7Rule]:
    balancer, listener, policy = find(snapshot, policy_id, identity)
    return balancer, listener, policy, _rule(policy, rule_id)


def create(snapshot: Snapshot, values: Values, caller: Caller) -> Steps[Made]:
    made: list[str] = []

    def add(listener: Listener, origin: Origin) -> Listener:
        if listener.protocol is ListenerProtocol.PROMETHEUS:
            raise no_children(listener.protocol.value)
        policy = l7.decode_policy(values, origin, values.get("redirect_pool_id"))
        made.append(policy.id)
        return l7.placed(listener, policy, values.get("position"))

    return (yield from edit_listener(snapshot, caller, values["listener_id"], add)), made[-1]


def update(snapshot: Snapshot, values: Values, caller: Caller, policy_id: str) -> Steps[Changes]:
    _, found, policy = find(snapshot, policy_id, caller.identity)

    def edit(listener: Listener, _: Origin) -> Listener:
        changed = replace(l7.update_policy(policy, values), updated_at=caller.origin.now)
        position = listener.l7policies.index(policy) + 1
        if "position" in values:
            position = values["position"] or len(listener.l7policies)
        return l7.placed(listener, changed, position)

    return (yield from edit_listener(snapshot, caller, found.id, edit))


def delete(snapshot: Snapshot, caller: Caller, policy_id: str) -> Steps[Changes]:
    _, found, policy = find(snapshot, policy_id, caller.identity)

    def remove(listener: Listener, _: Origin) -> Listener:
        return replace(listener, l7policies=tuple(other for other in listener.l7policies if other is not policy))

    return (yield from edit_listener(snapshot, caller, found.id, remove))


def create_rule(snapshot: Snapshot, values: Values, caller: Caller, policy_id: str) -> Steps[Made]:
    made: list[str] = []

    def add(policy: L7Policy, origin: Origin) -> L7Policy:
        rule = l7.decode_rule(values, origin)
        if not l7.has_room(policy):
            raise l7.too_many_rules(policy.id)
        made.append(rule.id)
        return replace(policy, rules=(*policy.rules, rule))

    return (yield from _edit_policy(snapshot, caller, policy_id, add)), made[-1]


def update_rule(snapshot: Snapshot, values: Values, caller: Caller, policy_id: str, rule_id: str) -> Steps[Changes]:
    def edit(policy: L7Policy, _: Origin) -> L7Policy:
        rule = _rule(policy, rule_id)
        changed = replace(l7.update_rule(rule, values), updated_at=caller.origin.now)
        return replace(policy, rules=tuple(changed if other is rule else other for other in policy.rules))

    return (yield from _edit_policy(snapshot, caller, policy_id, edit))


def delete_rule(snapshot: Snapshot, caller: Caller, policy_id: str, rule_id: str) -> Steps[Changes]:
    def remove(policy: L7Policy, _: Origin) -> L7Policy:
        rule = _rule(policy, rule_id)
        return replace(policy, rules=tuple(other for other in policy.rules if other is not rule))

    return (yield from _edit_policy(snapshot, caller, policy_id, remove))


def _edit_policy(
    snapshot: Snapshot, caller: Caller, policy_id: str, edit: Callable[[L7Policy, Origin], L7Policy]
) -> Steps[Changes]:
    """Octavia looks at the policy before it looks at the load balancer."""
    balancer, found, policy = find(snapshot, policy_id, caller.identity)
    may_change(balancer, caller)
    changed = replace(edit(policy, origin_on(balancer, caller)), updated_at=caller.origin.now)
    refuse_immutable(snapshot, balancer, caller, "L7Policy", policy)

    def within(listener: Listener, _: Origin) -> Listener:
        return l7.placed(listener, changed, listener.l7policies.index(policy) + 1)

    return (yield from edit_listener(snapshot, caller, found.id, within))


def _rule(policy: L7Policy, rule_id: str) -> L7Rule:
    found = next((rule for rule in policy.rules if rule.id == rule_id), None)
    if found is None:
        raise not_found("L7 Rule", rule_id)
    return found

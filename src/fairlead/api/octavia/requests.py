"""Requests as functions of a snapshot: each decodes a body and calls the rules, without writing.

All raise ApiError for a body that no value can represent, and Refused.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from fairlead.api.octavia import decode, l7, specs
from fairlead.api.octavia.caller import CreationContext, RequestCaller, common_attributes
from fairlead.api.octavia.errors import bad_request, not_found
from fairlead.changes import balancers, catalog_selection, listeners, members, monitors, pools, vips
from fairlead.changes import l7 as policies
from fairlead.changes.lookup import check_may_change, find_member, find_monitor, find_rule
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import Listener, LoadBalancer, Member, Pool
from fairlead.model.documents.port_ranges import TargetPort
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps
from fairlead.schema import Values

CreatedPart: TypeAlias = tuple[Changes, str]
"""Changes, and the id of the new part."""


def create_load_balancer(snapshot: Snapshot, values: Values, caller: RequestCaller, balancer_id: str) -> Steps[Changes]:
    asker, origin = caller.identity, caller.origin
    named = (values.get(name) or None for name in ("provider", "flavor_id", "availability_zone"))
    offer = catalog_selection.choose(asker.providers, snapshot, *named)
    specs.reject_unsupported(values, offer.provider)
    vip = vips.choose_vip(snapshot, asker, decode.decode_vip(values, origin, balancer_id))
    catalog_selection.check_network(offer, vip.port.network_id)
    balancer = LoadBalancer(
        id=balancer_id,
        project_id=origin.project_id,
        created_at=origin.now,
        **{"admin_state_up": True, **common_attributes(values)},
        provider=offer.provider,
        vip=vip.vips[0],
        flavor_id=offer.flavor_id,
        availability_zone=offer.availability_zone,
    )
    balancer = yield from _with_tree(balancer, values, origin)
    return (yield from balancers.create_load_balancer(snapshot, asker, balancer, vip, offer.reads))


def update_load_balancer(snapshot: Snapshot, values: Values, caller: RequestCaller, balancer_id: str) -> Steps[Changes]:
    balancer = balancers.find_to_change(snapshot, balancer_id, caller.identity)
    specs.reject_unsupported(values, balancer.provider)
    return balancers.replace_load_balancer(snapshot, caller.identity, replace(balancer, **common_attributes(values)))


def create_listener(snapshot: Snapshot, values: Values, caller: RequestCaller) -> Steps[CreatedPart]:
    balancer = balancers.find_to_change(snapshot, values["loadbalancer_id"], caller.identity)
    origin = caller.origin.with_project_of(balancer)
    named = yield from _pools_of([values], origin)
    listener = yield from listener_with(values, origin, named)
    made = listeners.create_listener(snapshot, caller.identity, balancer.id, listener, named.values())
    return (yield from made), listener.id


def update_listener(snapshot: Snapshot, values: Values, caller: RequestCaller, listener_id: str) -> Steps[Changes]:
    _, listener = listeners.find_listener_to_change(snapshot, listener_id, caller.identity)
    return listeners.update_listener(snapshot, caller.identity, decode.edit_listener(listener, values))


def create_pool(snapshot: Snapshot, values: Values, caller: RequestCaller) -> Steps[CreatedPart]:
    balancer_id, listener_id = values.get("loadbalancer_id"), values.get("listener_id") or None
    if not balancer_id and listener_id is None:
        raise bad_request("Must provide at least one of: loadbalancer_id, listener_id")
    if listener_id is not None:
        balancer, listener = listeners.find_listener_to_change(snapshot, listener_id, caller.identity)
        if balancer_id not in (None, balancer.id):
            raise bad_request(f"Listener {listener.id} is not on Load Balancer {balancer_id}.")
    else:
        balancer = balancers.find_to_change(snapshot, values["loadbalancer_id"], caller.identity)
    pool = decode.decode_pool(values, caller.origin.with_project_of(balancer))
    return (yield from pools.create_pool(snapshot, caller.identity, balancer.id, pool, listener_id)), pool.id


def update_pool(snapshot: Snapshot, values: Values, caller: RequestCaller, pool_id: str) -> Steps[Changes]:
    _, pool = pools.find_pool_to_change(snapshot, pool_id, caller.identity)
    return pools.update_pool(snapshot, caller.identity, decode.edit_pool(pool, values))


def create_member(snapshot: Snapshot, values: Values, caller: RequestCaller, pool_id: str) -> Steps[CreatedPart]:
    balancer, _ = pools.find_pool_to_change(snapshot, pool_id, caller.identity)
    member = decode.decode_member(values, caller.origin.with_project_of(balancer))
    return (yield from members.create_member(snapshot, caller.identity, pool_id, member)), member.id


def update_member(
    snapshot: Snapshot, values: Values, caller: RequestCaller, pool_id: str, member_id: str
) -> Steps[Changes]:
    _, pool = pools.find_pool_to_change(snapshot, pool_id, caller.identity)
    changed = decode.edit_member(find_member(pool, member_id), values)
    return members.update_member(snapshot, caller.identity, pool_id, changed)


def replace_members(
    snapshot: Snapshot, bodies: Sequence[Values], caller: RequestCaller, pool_id: str, *, additive: bool
) -> Steps[Changes]:
    """Replace the members of a pool (batch update). Members are matched by address and port: updated if known, created
    if new, and removed if missing unless `additive`."""
    balancer, pool = pools.find_pool_to_change(snapshot, pool_id, caller.identity)
    wanted = yield from _merged(pool, bodies, caller.origin.with_project_of(balancer), additive=additive)
    return (yield from members.replace_members(snapshot, caller.identity, pool_id, wanted))


def _merged(pool: Pool, bodies: Sequence[Values], origin: CreationContext, *, additive: bool) -> Steps[list[Member]]:
    known = {(member.address, member.port): member for member in pool.members}
    named: dict[tuple[IPAddress, TargetPort], Member] = {}
    new = list[Member]()
    for values in bodies:
        key = (values["address"].address, values["protocol_port"])
        if key not in known:
            new.append(decode.decode_member(values, origin))
        elif key in named:
            raise bad_request("Member must be updated only once in the same request.")
        else:
            named[key] = decode.edit_member(known[key], values)
        yield
    kept = [named.get(key, member) for key, member in known.items() if additive or key in named]
    return [*kept, *new]


def create_monitor(snapshot: Snapshot, values: Values, caller: RequestCaller) -> Steps[CreatedPart]:
    balancer, pool = pools.find_pool_to_change(snapshot, values["pool_id"], caller.identity)
    monitor = decode.decode_monitor(values, caller.origin.with_project_of(balancer))
    return (yield from monitors.create_monitor(snapshot, caller.identity, pool.id, monitor)), monitor.id


def update_monitor(snapshot: Snapshot, values: Values, caller: RequestCaller, monitor_id: str) -> Steps[Changes]:
    balancer, _, monitor = find_monitor(snapshot, monitor_id, caller.identity.identity)
    check_may_change(balancer, caller.identity.identity)
    return monitors.update_monitor(snapshot, caller.identity, decode.edit_monitor(monitor, values))


def create_policy(snapshot: Snapshot, values: Values, caller: RequestCaller) -> Steps[CreatedPart]:
    balancer, listener = listeners.find_listener_to_change(snapshot, values["listener_id"], caller.identity)
    policy = l7.decode_policy(values, caller.origin.with_project_of(balancer), values.get("redirect_pool_id"))
    made = policies.create_policy(snapshot, caller.identity, listener.id, policy, values.get("position"))
    return (yield from made), policy.id


def update_policy(snapshot: Snapshot, values: Values, caller: RequestCaller, policy_id: str) -> Steps[Changes]:
    """Update an L7 policy; a null position means the last."""
    _, listener, policy = policies.find_policy_to_change(snapshot, policy_id, caller.identity)
    position = values.get("position") or (len(listener.l7policies) if "position" in values else None)
    changed = l7.edit_policy(policy, values)
    return policies.update_policy(snapshot, caller.identity, changed, position)


def create_rule(snapshot: Snapshot, values: Values, caller: RequestCaller, policy_id: str) -> Steps[CreatedPart]:
    balancer, _, _ = policies.find_policy_to_change(snapshot, policy_id, caller.identity)
    rule = l7.decode_rule(values, caller.origin.with_project_of(balancer))
    return (yield from policies.create_rule(snapshot, caller.identity, policy_id, rule)), rule.id


def update_rule(
    snapshot: Snapshot, values: Values, caller: RequestCaller, policy_id: str, rule_id: str
) -> Steps[Changes]:
    _, _, policy = policies.find_policy_to_change(snapshot, policy_id, caller.identity)
    changed = l7.edit_rule(find_rule(policy, rule_id), values)
    return policies.update_rule(snapshot, caller.identity, policy_id, changed)


# nested bodies


def _with_tree(balancer: LoadBalancer, values: Values, origin: CreationContext) -> Steps[LoadBalancer]:
    """Add the listeners and pools of a single-call create. A pool with only a name refers to a fully described one."""
    bodies = _list(values, "listeners")
    named = yield from _pools_of(bodies, origin, _list(values, "pools"))
    for body in bodies:
        if body.get("default_pool_id"):
            raise not_found("Pool", body["default_pool_id"])
    made = list[Listener]()
    for body in bodies:
        made.append((yield from listener_with(body, origin, named)))
    return replace(balancer, listeners=tuple(made), pools=tuple(named.values()))


def _pools_of(bodies: Iterable[Values], origin: CreationContext, more: Iterable[Values] = ()) -> Steps[dict[str, Pool]]:
    """Return the fully described pools by name, from the pool list, listeners and policies."""
    nested = []
    for body in bodies:
        nested.append(body.get("default_pool"))
        nested += [policy.get("redirect_pool") for policy in _list(body, "l7policies")]
    found: dict[str, Pool] = {}
    for body in [*more, *(body for body in nested if body is not None and set(body) != {"name"})]:
        pool = _nested_pool(body, origin)
        if pool.name in found:
            raise bad_request("Pool names must be unique when creating a fully populated loadbalancer.")
        found[pool.name] = pool
        yield
    return found


def listener_with(values: Values, origin: CreationContext, named: dict[str, Pool]) -> Steps[Listener]:
    if values.get("default_pool_id") and values.get("default_pool") is not None:
        raise bad_request("Only one of default_pool and default_pool_id may be given.")
    pool_id = _named_pool(named, values.get("default_pool")) or values.get("default_pool_id")
    listener = decode.decode_listener(values, origin, pool_id)
    for body in _list(values, "l7policies"):
        redirect = _named_pool(named, body.get("redirect_pool")) or body.get("redirect_pool_id")
        listener = policies.insert_policy(listener, l7.decode_policy(body, origin, redirect), body.get("position"))
        yield
    yield
    return listener


def _nested_pool(values: Values, origin: CreationContext) -> Pool:
    if not values.get("name"):
        raise bad_request("Pools must be named when creating a fully populated loadbalancer.")
    for attribute in ("protocol", "lb_algorithm"):
        if values.get(attribute) is None:
            raise bad_request(f"Pool definition for '{values['name']}' missing required attribute: {attribute}")
    return decode.decode_pool(values, origin)


def _named_pool(named: dict[str, Pool], reference: Values | None) -> str | None:
    if reference is None:
        return None
    name = reference.get("name")
    if name not in named:
        raise bad_request(f"Pool '{name}' was referenced but no full definition was found.")
    return named[name].id


def _list(values: Values, name: str) -> Sequence[Values]:
    return values.get(name) or ()

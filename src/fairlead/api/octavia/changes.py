"""What each request does to the model, as functions of a snapshot. They decide everything and write nothing."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from fairlead.api.door import ApiError, Pending
from fairlead.api.fields import Values
from fairlead.api.octavia import decode, l7, limits, specs
from fairlead.api.octavia.caller import Caller, Origin
from fairlead.api.octavia.catalog import choose, find_provider
from fairlead.api.octavia.errors import bad_request, forbidden, missing_subresource, no_children, not_found
from fairlead.api.octavia.probing import make_probe_ports
from fairlead.api.octavia.vip import choose_vip, may_use
from fairlead.changes.identity import Identity
from fairlead.model import loadbalancer as lb
from fairlead.model.balancer_status import BalancerStatus
from fairlead.model.indexes import NO_IDS
from fairlead.model.network import Port, Resource, release
from fairlead.model.owner import Kind, Owner
from fairlead.model.parting import remember_removed
from fairlead.model.snapshot import Aggregate, Snapshot, balancer_status
from fairlead.model.steps import Steps
from fairlead.model.writing import Changes, apply_changes

Made: TypeAlias = tuple[Changes, str]
"""And the id of the part that is new."""


def find_load_balancer(snapshot: Snapshot, balancer_id: str, identity: Identity) -> lb.LoadBalancer:
    """Raises ApiError: 404, and 403 for another project's, as Octavia's policy has it."""
    balancer = snapshot.load_balancers.get(balancer_id)
    if balancer is None:
        raise not_found("Load Balancer", balancer_id)
    if not identity.may_see(balancer.project_id):
        raise forbidden()
    return balancer


def find_listener(snapshot: Snapshot, listener_id: str, identity: Identity) -> tuple[lb.LoadBalancer, lb.Listener]:
    owner = snapshot.listener_owner.get(listener_id)
    if owner is None:
        raise not_found("Listener", listener_id)
    balancer = find_load_balancer(snapshot, owner, identity)
    return balancer, next(listener for listener in balancer.listeners if listener.id == listener_id)


def find_pool(snapshot: Snapshot, pool_id: str, identity: Identity) -> tuple[lb.LoadBalancer, lb.Pool]:
    owner = snapshot.pool_owner.get(pool_id)
    if owner is None:
        raise not_found("Pool", pool_id)
    balancer = find_load_balancer(snapshot, owner, identity)
    return balancer, next(pool for pool in balancer.pools if pool.id == pool_id)


def find_member(pool: lb.Pool, member_id: str) -> lb.Member:
    member = lb.find_member(pool, member_id)
    if member is None:
        raise not_found("Member", member_id)
    return member


def create_load_balancer(snapshot: Snapshot, values: Values, caller: Caller, balancer_id: str) -> Steps[Changes]:
    """The whole tree in one write. Two hundred pools are two hundred slot tables: it rests after each."""
    chosen = choose(caller.providers, snapshot, values)
    caller = replace(caller, origin=replace(caller.origin, provider=chosen.provider))
    specs.refuse_not_yet(values, caller.origin.provider)
    made = choose_vip(snapshot, values, caller, balancer_id)
    if chosen.vip_networks is not None and made.port.network_id not in chosen.vip_networks:
        raise bad_request("Supplied VIP network_id is not allowed by the configuration of this deployment.")
    balancer = lb.LoadBalancer(
        id=balancer_id,
        project_id=caller.origin.project_id,
        created_at=caller.origin.now,
        name=values.get("name") or "",
        description=values.get("description") or "",
        tags=values.get("tags") or (),
        admin_state_up=bool(values.get("admin_state_up", True)),
        provider=caller.origin.provider,
        vip=made.vips[0],
        additional_vips=made.vips[1:],
        owns_vip_port=made.is_new,
        flavor_id=chosen.flavor_id,
        availability_zone=chosen.availability_zone,
    )
    balancer = yield from _with_tree(balancer, values, caller.origin)
    with_vip = apply_changes(snapshot, Changes(puts=(made.port,)), snapshot.revision)
    yield from _check(with_vip, balancer, caller)
    ports = make_probe_ports(with_vip, balancer, caller.origin.now)
    changes = _giving_addresses(made.port, *ports, balancer)
    return replace(changes, reads=(*changes.reads, *chosen.reads))


def update_load_balancer(snapshot: Snapshot, values: Values, caller: Caller, balancer_id: str) -> Steps[Changes]:
    balancer = _mine(snapshot, balancer_id, caller)
    specs.refuse_not_yet(values, balancer.provider)
    _refuse_state(snapshot, balancer, caller)
    changes = {
        name: default if values[name] is None else values[name]
        for name, default in specs.DEFAULTS.items()
        if name in values
    }
    return (yield from _write(snapshot, replace(balancer, **changes), caller))


def delete_load_balancer(snapshot: Snapshot, caller: Caller, balancer_id: str, *, cascade: bool) -> Changes:
    """The VIP's port goes too, if it was made for the VIP; one that was given is given back."""
    balancer = _mine(snapshot, balancer_id, caller)
    if not cascade and (balancer.listeners or balancer.pools):
        raise bad_request(f"Cannot delete Load Balancer {balancer_id} - it has children")
    _refuse_state(snapshot, balancer, caller)
    gone, back = [Owner(Kind.LOAD_BALANCER, balancer_id)], list[Aggregate]()
    port = snapshot.ports.get(balancer.vip.port_id)
    if port is not None and balancer.owns_vip_port:
        gone.append(Owner(Kind.PORT, port.id))
        back.extend(release(snapshot.floating_ips[each]) for each in snapshot.port_floating_ips.get(port.id, NO_IDS))
    elif port is not None:
        back.append(replace(port, device_id="", device_owner=""))
    return Changes(puts=tuple(back), deletes=tuple(gone))


def fail_over(snapshot: Snapshot, caller: Caller, balancer_id: str) -> Changes:
    """There is no instance to move: it is written once more as it is, and is PENDING until that has arrived."""
    balancer = find_load_balancer(snapshot, balancer_id, caller.identity)
    if not caller.identity.is_admin:
        raise forbidden()
    _refuse_state(snapshot, balancer, caller)
    return Changes(puts=(replace(balancer, updated_at=caller.origin.now),))


def create_listener(snapshot: Snapshot, values: Values, caller: Caller) -> Steps[Made]:
    balancer = _mine(snapshot, values["loadbalancer_id"], caller)
    origin = origin_on(balancer, caller)
    pools = yield from _pools_of([values], origin)
    listener = yield from _listener_with(values, origin, pools)
    balancer = replace(balancer, listeners=(*balancer.listeners, listener), pools=(*balancer.pools, *pools.values()))
    return (yield from _put(snapshot, balancer, caller)), listener.id


def update_listener(snapshot: Snapshot, values: Values, caller: Caller, listener_id: str) -> Steps[Changes]:
    def edit(listener: lb.Listener, _: Origin) -> lb.Listener:
        changed = decode.update_listener(listener, values)
        return replace(changed, default_pool_id=values.get("default_pool_id", listener.default_pool_id))

    return edit_listener(snapshot, caller, listener_id, edit)


def delete_listener(snapshot: Snapshot, caller: Caller, listener_id: str) -> Steps[Changes]:
    balancer, listener = find_listener(snapshot, listener_id, caller.identity)
    may_change(balancer, caller)
    rest = tuple(other for other in balancer.listeners if other is not listener)
    return (yield from _put(snapshot, replace(balancer, listeners=rest), caller))


def create_pool(snapshot: Snapshot, values: Values, caller: Caller) -> Steps[Made]:
    if not values.get("loadbalancer_id") and not values.get("listener_id"):
        raise bad_request("Must provide at least one of: loadbalancer_id, listener_id")
    listener: lb.Listener | None = None
    if values.get("listener_id"):
        balancer, listener = find_listener(snapshot, values["listener_id"], caller.identity)
        may_change(balancer, caller)
        if values.get("loadbalancer_id") not in (None, balancer.id):
            raise bad_request(f"Listener {listener.id} is not on Load Balancer {values['loadbalancer_id']}.")
        _refuse_pool_protocol(listener, values["protocol"])
    else:
        balancer = _mine(snapshot, values["loadbalancer_id"], caller)
    origin = origin_on(balancer, caller)
    pool = decode.decode_pool(values, origin)
    balancer = replace(balancer, pools=(*balancer.pools, pool))
    if listener is not None and listener.default_pool_id is not None:
        raise ApiError(409, "This listener already has a default pool")
    if listener is not None:
        leading = replace(listener, default_pool_id=pool.id, updated_at=caller.origin.now)
        balancer = lb.replace_listener(balancer, leading)
    return (yield from _put(snapshot, balancer, caller)), pool.id


def update_pool(snapshot: Snapshot, values: Values, caller: Caller, pool_id: str) -> Steps[Changes]:
    return edit_pool(snapshot, caller, pool_id, lambda pool, _: decode.update_pool(pool, values))


def delete_pool(snapshot: Snapshot, caller: Caller, pool_id: str) -> Steps[Changes]:
    """Listeners that led to it stay, with no pool."""
    balancer, pool = find_pool(snapshot, pool_id, caller.identity)
    may_change(balancer, caller)
    for policy in (policy for listener in balancer.listeners for policy in listener.l7policies):
        if policy.redirect_pool_id == pool_id:
            raise ApiError(409, f"Pool {pool_id} is in use by L7 policy {policy.id}")
    listeners = tuple(
        replace(listener, default_pool_id=None) if listener.default_pool_id == pool_id else listener
        for listener in balancer.listeners
    )
    pools = tuple(other for other in balancer.pools if other is not pool)
    return (yield from _put(snapshot, replace(balancer, listeners=listeners, pools=pools), caller))


def create_member(snapshot: Snapshot, values: Values, caller: Caller, pool_id: str) -> Steps[Made]:
    made: list[str] = []

    def add(pool: lb.Pool, origin: Origin) -> lb.Pool:
        member = decode.decode_member(values, origin, pool.next_ordinal)
        decode.refuse_duplicate({decode.where(other) for other in pool.members}, member)
        made.append(member.id)
        return lb.with_members(pool, (*pool.members, member))

    return (yield from edit_children(snapshot, caller, pool_id, add)), made[-1]


def update_member(snapshot: Snapshot, values: Values, caller: Caller, pool_id: str, member_id: str) -> Steps[Changes]:
    def edit(pool: lb.Pool, _: Origin) -> lb.Pool:
        member = find_member(pool, member_id)
        changed = replace(decode.update_member(member, values), updated_at=caller.origin.now)
        return lb.with_members(pool, tuple(changed if other is member else other for other in pool.members))

    return edit_children(snapshot, caller, pool_id, edit)


def delete_member(snapshot: Snapshot, caller: Caller, pool_id: str, member_id: str) -> Steps[Changes]:
    def remove(pool: lb.Pool, _: Origin) -> lb.Pool:
        member = find_member(pool, member_id)
        return lb.with_members(pool, tuple(other for other in pool.members if other is not member))

    return edit_children(snapshot, caller, pool_id, remove)


def replace_members(
    snapshot: Snapshot, bodies: Sequence[Values], caller: Caller, pool_id: str, *, additive: bool
) -> Steps[Changes]:
    """The batch update: known by address and port, changed where given, made where new, gone where not named."""
    balancer, pool = find_pool(snapshot, pool_id, caller.identity)
    may_change(balancer, caller)
    members = yield from _merged(pool, bodies, origin_on(balancer, caller), additive=additive)
    changes = yield from edit_children(snapshot, caller, pool_id, lambda pool, _: lb.with_members(pool, members))
    return changes if bodies or pool.members else Changes()


def _merged(pool: lb.Pool, bodies: Sequence[Values], origin: Origin, *, additive: bool) -> Steps[tuple[lb.Member, ...]]:
    known = {(member.address, member.port): member for member in pool.members}
    named: dict[tuple[Any, int], lb.Member] = {}
    ordinal = pool.next_ordinal
    for values in bodies:
        key = (values["address"].address, values["protocol_port"])
        if key in named:
            if key in known:
                raise bad_request("Member must be updated only once in the same request.")
            decode.refuse_duplicate(named, named[key])
        if key in known:
            named[key] = replace(decode.update_member(known[key], values), updated_at=origin.now)
        else:
            named[key] = decode.decode_member(values, origin, ordinal)
            ordinal += 1
        yield
    kept = [named.get(key, member) for key, member in known.items() if additive or key in named]
    new = [member for key, member in named.items() if key not in known]
    return (*kept, *new)


def edit_listener(
    snapshot: Snapshot, caller: Caller, listener_id: str, edit: Callable[[lb.Listener, Origin], lb.Listener]
) -> Steps[Changes]:
    balancer, listener = find_listener(snapshot, listener_id, caller.identity)
    may_change(balancer, caller)
    changed = replace(edit(listener, origin_on(balancer, caller)), updated_at=caller.origin.now)
    return (yield from _put(snapshot, lb.replace_listener(balancer, changed), caller))


def edit_pool(
    snapshot: Snapshot, caller: Caller, pool_id: str, edit: Callable[[lb.Pool, Origin], lb.Pool]
) -> Steps[Changes]:
    balancer, _, changes = yield from _edited(snapshot, caller, pool_id, edit)
    refuse_immutable(snapshot, balancer, caller)
    return changes


def edit_children(
    snapshot: Snapshot, caller: Caller, pool_id: str, edit: Callable[[lb.Pool, Origin], lb.Pool]
) -> Steps[Changes]:
    """For members and health monitors Octavia looks at the pool before it looks at the load balancer."""
    balancer, pool, changes = yield from _edited(snapshot, caller, pool_id, edit)
    refuse_immutable(snapshot, balancer, caller, "Pool", pool)
    refuse_immutable(snapshot, balancer, caller)
    return changes


def _edited(
    snapshot: Snapshot, caller: Caller, pool_id: str, edit: Callable[[lb.Pool, Origin], lb.Pool]
) -> Steps[tuple[lb.LoadBalancer, lb.Pool, Changes]]:
    """What is there now, and what is to become of it."""
    balancer, pool = find_pool(snapshot, pool_id, caller.identity)
    may_change(balancer, caller)
    changed = replace(edit(pool, origin_on(balancer, caller)), updated_at=caller.origin.now)
    yield
    return balancer, pool, (yield from _write(snapshot, lb.replace_pool(balancer, changed), caller))


def refuse_immutable(
    snapshot: Snapshot, balancer: lb.LoadBalancer, caller: Caller, kind: str = "", part: Resource | None = None
) -> None:
    """Raises Pending while the load balancer, or this part of it, is on its way. What failed may be changed."""
    what = part or balancer
    where = _status(snapshot, balancer, caller)
    if where.is_immutable(what):
        words = f"{kind or 'Load Balancer'} {what.id} is immutable and cannot be updated."
        raise Pending(words, Owner(Kind.LOAD_BALANCER, balancer.id), where.generation)


def _refuse_state(snapshot: Snapshot, balancer: lb.LoadBalancer, caller: Caller) -> None:
    """The same, in the words that Octavia has for a change of the load balancer itself."""
    where = _status(snapshot, balancer, caller)
    if where.is_immutable(balancer):
        words = f"Invalid state {where.provisioning(balancer).value} of loadbalancer resource {balancer.id}"
        raise Pending(words, Owner(Kind.LOAD_BALANCER, balancer.id), where.generation)


def _status(snapshot: Snapshot, balancer: lb.LoadBalancer, caller: Caller) -> BalancerStatus:
    return balancer_status(snapshot, balancer, caller.applied(Owner(Kind.LOAD_BALANCER, balancer.id)))


def origin_on(balancer: lb.LoadBalancer, caller: Caller) -> Origin:
    """What is made on a load balancer belongs to its project, whoever makes it."""
    return replace(caller.origin, project_id=balancer.project_id, provider=balancer.provider)


def _put(snapshot: Snapshot, balancer: lb.LoadBalancer, caller: Caller) -> Steps[Changes]:
    """A load balancer with a part that has changed. What is wrong with a request is said before it has to wait."""
    changes = yield from _write(snapshot, balancer, caller)
    refuse_immutable(snapshot, snapshot.load_balancers[balancer.id], caller)
    return changes


def _write(snapshot: Snapshot, balancer: lb.LoadBalancer, caller: Caller) -> Steps[Changes]:
    yield from _check(snapshot, balancer, caller)
    now, old = caller.origin.now, snapshot.load_balancers.get(balancer.id)
    ports = make_probe_ports(snapshot, balancer, now)
    yield
    balancer = remember_removed(old, balancer, now, snapshot.parting_seconds)
    return _giving_addresses(*ports, replace(balancer, updated_at=now))


def _giving_addresses(*puts: Aggregate) -> Changes:
    """The networks of which addresses are taken must not change meanwhile."""
    networks = dict.fromkeys(put.network_id for put in puts if isinstance(put, Port))
    return Changes(puts=puts, reads=tuple(Owner(Kind.NETWORK, network_id) for network_id in networks))


def _mine(snapshot: Snapshot, balancer_id: str, caller: Caller) -> lb.LoadBalancer:
    balancer = find_load_balancer(snapshot, balancer_id, caller.identity)
    may_change(balancer, caller)
    return balancer


def may_change(balancer: lb.LoadBalancer, caller: Caller) -> None:
    if not caller.identity.may_change(balancer.project_id):
        raise forbidden()


def _with_tree(balancer: lb.LoadBalancer, values: Values, origin: Origin) -> Steps[lb.LoadBalancer]:
    """The listeners and pools of a single-call create. A pool that is only a name refers to one that is spelled out."""
    bodies = _list(values, "listeners")
    pools = yield from _pools_of(bodies, origin, _list(values, "pools"))
    for body in bodies:
        if body.get("default_pool_id"):
            raise not_found("Pool", body["default_pool_id"])
    listeners: tuple[lb.Listener, ...] = ()
    for body in bodies:
        listeners = (*listeners, (yield from _listener_with(body, origin, pools)))
    return replace(balancer, listeners=listeners, pools=tuple(pools.values()))


def _pools_of(listeners: Iterable[Values], origin: Origin, more: Iterable[Values] = ()) -> Steps[dict[str, lb.Pool]]:
    """By name, the pools that are spelled out: in a list of their own, for a listener, or for a policy."""
    nested = []
    for body in listeners:
        nested.append(body.get("default_pool"))
        nested += [policy.get("redirect_pool") for policy in _list(body, "l7policies")]
    pools: dict[str, lb.Pool] = {}
    for body in [*more, *(body for body in nested if body is not None and set(body) != {"name"})]:
        pool = _nested_pool(body, origin)
        if pool.name in pools:
            raise bad_request("Pool names must be unique when creating a fully populated loadbalancer.")
        pools[pool.name] = pool
        yield
    return pools


def _listener_with(values: Values, origin: Origin, pools: dict[str, lb.Pool]) -> Steps[lb.Listener]:
    _refuse_both_pools(values)
    pool_id = _named_pool(pools, values.get("default_pool")) or values.get("default_pool_id")
    listener = decode.decode_listener(values, origin, pool_id)
    for body in _list(values, "l7policies"):
        redirect = _named_pool(pools, body.get("redirect_pool")) or body.get("redirect_pool_id")
        policy = l7.decode_policy(body, origin, redirect)
        listener = l7.placed(listener, policy, body.get("position"))
        yield
    yield
    return listener


def _nested_pool(values: Values, origin: Origin) -> lb.Pool:
    if not values.get("name"):
        raise bad_request("Pools must be named when creating a fully populated loadbalancer.")
    for attribute in ("protocol", "lb_algorithm"):
        if values.get(attribute) is None:
            raise bad_request(f"Pool definition for '{values['name']}' missing required attribute: {attribute}")
    return decode.decode_pool(values, origin)


def _named_pool(pools: dict[str, lb.Pool], reference: Values | None) -> str | None:
    if reference is None:
        return None
    name = reference.get("name")
    if name not in pools:
        raise bad_request(f"Pool '{name}' was referenced but no full definition was found.")
    return pools[name].id


def _refuse_both_pools(values: Values) -> None:
    if values.get("default_pool_id") and values.get("default_pool") is not None:
        raise bad_request("Only one of default_pool and default_pool_id may be given.")


def _list(values: Values, name: str) -> Sequence[Values]:
    return values.get(name) or ()


def _check(snapshot: Snapshot, balancer: lb.LoadBalancer, caller: Caller) -> Steps[None]:
    """What must be true of any load balancer, whatever provides it. Raises ApiError."""
    _check_size(balancer)
    yield
    ports: dict[tuple[lb.Transport, int], lb.Listener] = {}
    for listener in balancer.listeners:
        other = ports.setdefault((lb.transport(listener.protocol), listener.port), listener)
        if other is not listener:
            raise ApiError(
                409,
                "Another Listener on this Load Balancer is already using protocol"
                f" {other.protocol.value} and protocol_port {other.port}",
            )
        _check_pools_of(balancer, listener)
        _check_cidrs(balancer, listener)
        yield
    old = snapshot.load_balancers.get(balancer.id)
    known = {member.id for pool in old.pools for member in pool.members} if old else set[str]()
    for member in (member for pool in balancer.pools for member in pool.members if member.id not in known):
        _check_new_member(snapshot, balancer, member, caller)
        yield
    find_provider(caller.providers, balancer.provider).check(snapshot, balancer)


def _check_size(balancer: lb.LoadBalancer) -> None:
    """A load balancer is one document: it is written whole at each change."""
    sizes = {
        f"at most {limits.LISTENERS} listeners": len(balancer.listeners) > limits.LISTENERS,
        f"at most {limits.POOLS} pools": len(balancer.pools) > limits.POOLS,
        f"at most {limits.POLICIES} L7 policies on a listener": any(
            len(listener.l7policies) > limits.POLICIES for listener in balancer.listeners
        ),
        f"at most {limits.MEMBERS} members in all": sum(len(p.members) for p in balancer.pools) > limits.MEMBERS,
    }
    for limit, exceeded in sizes.items():
        if exceeded:
            raise bad_request(f"A load balancer can have {limit}.")


def _check_pools_of(balancer: lb.LoadBalancer, listener: lb.Listener) -> None:
    redirects = [policy.redirect_pool_id for policy in listener.l7policies]
    if listener.protocol is lb.ListenerProtocol.PROMETHEUS and (listener.default_pool_id or redirects):
        raise no_children(listener.protocol.value)
    for pool_id in (listener.default_pool_id, *redirects):
        if pool_id is None:
            continue
        pool = lb.find_pool(balancer, pool_id)
        if pool is None:
            raise not_found("Pool", pool_id)
        _refuse_pool_protocol(listener, pool.protocol)


def _refuse_pool_protocol(listener: lb.Listener, protocol: lb.PoolProtocol) -> None:
    """Raises ApiError 400 if the listener may not lead to pools of this protocol."""
    if listener.protocol is lb.ListenerProtocol.PROMETHEUS:
        raise no_children(listener.protocol.value)
    if protocol not in lb.POOL_PROTOCOLS[listener.protocol]:
        raise bad_request(
            f"The pool protocol '{protocol.value}' is invalid while the listener protocol is"
            f" '{listener.protocol.value}'."
        )


def _check_cidrs(balancer: lb.LoadBalancer, listener: lb.Listener) -> None:
    for cidr in listener.allowed_cidrs:
        if cidr.version not in balancer.ip_versions:
            vips = [str(vip.address) for vip in balancer.vips]
            raise bad_request(f"CIDR {cidr} IP version incompatible with all VIPs {vips} IP version.")


def _check_new_member(snapshot: Snapshot, balancer: lb.LoadBalancer, member: lb.Member, caller: Caller) -> None:
    if member.subnet_id is not None:
        network = snapshot.networks.get(snapshot.subnet_network.get(member.subnet_id, ""))
        if network is None or not may_use(network, caller.identity):
            raise missing_subresource("Subnet", member.subnet_id)

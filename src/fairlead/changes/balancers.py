"""Changes of a whole load balancer, and the checks of every load balancer, for all API front ends.

A rule that changes a part builds the whole new load balancer and passes it to `put`, as a front end with declarative
load balancers does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

from fairlead.changes.balancer_checks import check_parts, check_sizes
from fairlead.changes.caller import ChangeContext
from fairlead.changes.catalog_selection import check_announced, find_provider
from fairlead.changes.ids import check_new
from fairlead.changes.listener_checks import check_listener, check_pools_of, complete_listener
from fairlead.changes.lookup import NotTheirs, check_may_change, find_load_balancer
from fairlead.changes.member_placement import find_routing_hosts
from fairlead.changes.pool_checks import check_subnet, complete_pool
from fairlead.changes.probe_ports import make_probe_ports
from fairlead.changes.proxy_ports import with_proxy_ports
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.vip_gateways import place_vips
from fairlead.changes.vips import VipPort
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.apportionment import MAX_SLOTS, MIN_SLOTS
from fairlead.model.documents.balancer_status import BalancerStatus
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import Port, Resource, clear_destination
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.previous_slot_owners import Transition, record_moved_slots
from fairlead.model.documents.quota import QuotaResource
from fairlead.model.documents.status import ProvisioningStatus
from fairlead.model.documents.unmanaged import is_unmanaged
from fairlead.model.queries.balancer_state import derive_balancer_status
from fairlead.model.queries.placement import find_unrouted_members
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.draining import record_removed_members
from fairlead.model.snapshot import Aggregate, Snapshot
from fairlead.runtime.steps import Steps, as_single_step

_Part = TypeVar("_Part", lb.Listener, lb.Pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPending(Refusal):
    """The load balancer, or this part of it, is PENDING: this generation is being applied. No change is possible until
    it is applied; the caller may retry."""

    owner: Owner
    generation: int
    what: QuotaResource
    id: str
    status: ProvisioningStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerPending(PartPending):
    """The load balancer itself is PENDING, so it cannot be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HasParts(Refusal):
    """The load balancer has listeners or pools, and the request has no `cascade`."""

    balancer_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VipImmutable(Refusal):
    """The addresses of a load balancer cannot be changed."""

    balancer_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferImmutable(Refusal):
    """The provider, flavor or availability zone of a load balancer cannot be changed;
    `field` is the attribute of the model."""

    balancer_id: str
    field: str


_OFFER_FIELDS = ("provider", "flavor_id", "availability_zone")


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerIsDeclarative(Refusal):
    """The parts of a declarative load balancer change only with its spec."""

    balancer_id: str


# Requests


def create_load_balancer(
    snapshot: Snapshot, asker: ChangeContext, wanted: lb.LoadBalancer, vip: VipPort, reads: Sequence[Owner] = ()
) -> Steps[Changes]:
    """Create a load balancer with all its parts in one write. The work yields after each pool, because each has slot
    tables.

    `vip` is the VIP's port (`vips.choose_vip`); `reads` are documents that the selection of the VIP depends on.
    """
    if not asker.identity.may_change(wanted.project_id):
        raise Refused(NotTheirs(project_id=wanted.project_id))
    check_new(snapshot.load_balancers, wanted.id)
    if vip.is_new:
        check_new(snapshot.ports, vip.port.id)
    wanted = replace(wanted, vip=vip.vips[0], additional_vips=vip.vips[1:], owns_vip_port=vip.is_new)
    changes = yield from put(snapshot, asker, wanted, vip.port)
    rests = changes.requires_unchanged_model or not vip.is_new  # a port that was given must not belong to a Local IP
    return replace(changes, reads=(*changes.reads, *reads), requires_unchanged_model=rests)


def replace_load_balancer(snapshot: Snapshot, asker: ChangeContext, wanted: lb.LoadBalancer) -> Steps[Changes]:
    """Replace the stored load balancer with this id and all its parts. Parts are matched by id; unchanged members keep
    their slots where possible."""
    check_not_pending(snapshot, asker, find_to_change(snapshot, wanted.id, asker))
    return put(snapshot, asker, wanted)


def delete_load_balancer(snapshot: Snapshot, asker: ChangeContext, balancer_id: str, *, cascade: bool) -> Changes:
    """Delete a load balancer. Its VIP port is deleted too if it was created for the VIP, and released if it was given;
    a port that another service created is left for that service to delete."""
    balancer = find_to_change(snapshot, balancer_id, asker)
    if not cascade and (balancer.listeners or balancer.pools):
        raise Refused(HasParts(balancer_id=balancer_id))
    check_not_pending(snapshot, asker, balancer)
    return removal_of(snapshot, balancer)


def removal_of(snapshot: Snapshot, balancer: lb.LoadBalancer) -> Changes:
    """Return the deletion of a load balancer and of objects created for it."""
    gone, back = [Owner(Kind.LOAD_BALANCER, balancer.id)], list[Aggregate]()
    port = snapshot.ports.get(balancer.vip.port_id)
    if port is not None and balancer.owns_vip_port:
        gone.append(Owner(Kind.PORT, port.id))
        back.extend(
            clear_destination(snapshot.floating_ips[each]) for each in snapshot.port_floating_ips.get(port.id, NO_IDS)
        )
    elif port is not None and not is_unmanaged(port) and not (balancer.kept and balancer.kept.made_port):
        back.append(replace(port, device_id="", device_owner=""))
    return Changes(puts=tuple(back), deletes=tuple(gone))


def fail_over(snapshot: Snapshot, asker: ChangeContext, balancer_id: str) -> Changes:
    """Rewrite the load balancer unchanged, so it is PENDING until it is applied. There is no instance to fail over."""
    balancer = find_load_balancer(snapshot, balancer_id, asker.identity)
    if not asker.identity.is_admin:
        raise Refused(NotTheirs(project_id=balancer.project_id))
    check_not_pending(snapshot, asker, balancer)
    return Changes(puts=(replace(balancer, updated_at=asker.now),))


# Shared by requests for load balancers and parts


def find_to_change(snapshot: Snapshot, balancer_id: str, asker: ChangeContext) -> lb.LoadBalancer:
    """Return a load balancer that the caller may change. Raises Refused."""
    balancer = find_load_balancer(snapshot, balancer_id, asker.identity)
    check_may_change(balancer, asker.identity)
    return balancer


def put(snapshot: Snapshot, asker: ChangeContext, wanted: lb.LoadBalancer, *ports: Port) -> Steps[Changes]:
    """Create or replace a load balancer, with the ports that change with it.

    The rule completes the load balancer: ordinals and slots of members, TLS defaults, the router for VIPs on an
    external network, probe ports, and records of removed members. Raises Refused, and Unsupported for features that the
    provider lacks.
    """
    old = snapshot.load_balancers.get(wanted.id)
    announces = find_provider(asker.providers, wanted.provider).announces
    wanted = yield from _complete(old, wanted, MAX_SLOTS if announces else MIN_SLOTS)
    wanted = replace(wanted, kept=old.kept) if old is not None else wanted
    ports = tuple(port for port in ports if not is_unmanaged(port))
    if ports:
        snapshot = apply_changes(snapshot, Changes(puts=ports), snapshot.revision)
    wanted = place_vips(snapshot, wanted, is_new=old is None)
    wanted = with_proxy_ports(snapshot, old, wanted)
    yield
    yield from _check(snapshot, asker, old, wanted)
    hosts = (yield from find_routing_hosts(snapshot, old, wanted)) if announces else ()
    probe_ports = make_probe_ports(snapshot, wanted, asker.now)
    yield
    if old is not None:
        wanted = yield from record_removed_members(old, wanted, asker.now, snapshot.parting_seconds)
        if announces:
            wanted = yield from _record_moved_slots(snapshot, asker, old, wanted)
        wanted = replace(wanted, updated_at=asker.now, created_at=old.created_at, owns_vip_port=old.owns_vip_port)
    changes = _with_network_reads(*ports, *probe_ports, wanted)
    changes = replace(changes, reads=(*changes.reads, *hosts))
    if wanted.router_id is None or (old is not None and wanted.router_id == old.router_id):
        return changes
    return replace(changes, reads=(*changes.reads, Owner(Kind.ROUTER, wanted.router_id)))


def _record_moved_slots(
    snapshot: Snapshot, asker: ChangeContext, old: lb.LoadBalancer, wanted: lb.LoadBalancer
) -> Steps[lb.LoadBalancer]:
    """Record previous owners of moved slots. Members that are down, or at a host's own address,
    had no slots to lose."""
    members = (member for each in (old, wanted) for pool in each.pools for member in pool.members)
    down = snapshot.down.get(wanted.id, frozenset()) | find_unrouted_members(snapshot, wanted, members)
    until = asker.now + timedelta(seconds=snapshot.parting_seconds)
    return (yield from record_moved_slots(old, wanted, down, Transition(now=asker.now, expires_at=until)))


def put_part(snapshot: Snapshot, asker: ChangeContext, wanted: lb.LoadBalancer) -> Steps[Changes]:
    """Replace a load balancer with a changed part. Invalid requests are rejected before the check for PENDING."""
    changes = yield from put(snapshot, asker, wanted)
    check_part_not_pending(snapshot, asker, snapshot.load_balancers[wanted.id])
    return changes


def check_not_pending(snapshot: Snapshot, asker: ChangeContext, balancer: lb.LoadBalancer) -> None:
    """Check that the load balancer is not PENDING. Raises Refused.
    A load balancer or part that failed to apply may be changed."""
    where = _status(snapshot, asker, balancer)
    if where.is_immutable(balancer):
        raise Refused(
            BalancerPending(
                owner=Owner(Kind.LOAD_BALANCER, balancer.id),
                generation=where.generation,
                what=QuotaResource.LOAD_BALANCER,
                id=balancer.id,
                status=where.provisioning_status(balancer),
            )
        )


def check_part_not_pending(
    snapshot: Snapshot,
    asker: ChangeContext,
    balancer: lb.LoadBalancer,
    what: QuotaResource = QuotaResource.LOAD_BALANCER,
    part: Resource | None = None,
) -> None:
    """Check that the part is not PENDING; without a part,
    check the load balancer for a change of one of its parts. Raises Refused."""
    which = part or balancer
    where = _status(snapshot, asker, balancer)
    if where.is_immutable(which):
        owner, status = Owner(Kind.LOAD_BALANCER, balancer.id), where.provisioning_status(which)
        raise Refused(PartPending(owner=owner, generation=where.generation, what=what, id=which.id, status=status))


def _status(snapshot: Snapshot, asker: ChangeContext, balancer: lb.LoadBalancer) -> BalancerStatus:
    return derive_balancer_status(snapshot, balancer, asker.applied(Owner(Kind.LOAD_BALANCER, balancer.id)))


def _complete(old: lb.LoadBalancer | None, wanted: lb.LoadBalancer, smallest: int) -> Steps[lb.LoadBalancer]:
    """Complete changed pools and listeners. Slot tables have at least `smallest` slots; announced VIPs always use the
    largest table, which is the most even one. Unchanged parts are the same object and are skipped."""
    if old is None or wanted.pools is not old.pools:
        known_pools = old.pools if old else ()
        wanted = replace(
            wanted,
            pools=(yield from _complete_changed(known_pools, wanted.pools, partial(complete_pool, smallest=smallest))),
        )
    if old is None or wanted.listeners is not old.listeners:
        known = old.listeners if old else ()
        complete = as_single_step(partial(_complete_listener, wanted))
        listeners = yield from _complete_changed(known, wanted.listeners, complete)
        wanted = replace(wanted, listeners=listeners)
    return wanted


def _complete_listener(balancer: lb.LoadBalancer, known: lb.Listener | None, listener: lb.Listener) -> lb.Listener:
    """Pools of a new listener are checked before its certificates, as in Octavia."""
    if known is None:
        check_pools_of(balancer, listener)
    return complete_listener(known, listener)


def _complete_changed(
    known: tuple[_Part, ...],
    wanted: tuple[_Part, ...],
    complete: Callable[[_Part | None, _Part], Steps[_Part]],
) -> Steps[tuple[_Part, ...]]:
    by_id = {part.id: part for part in known}
    parts = list[_Part]()
    for part in wanted:
        before = by_id.get(part.id)
        if part is before:
            parts.append(part)
            continue
        parts.append((yield from complete(before, part)))
    return tuple(parts)


def _check(
    snapshot: Snapshot, asker: ChangeContext, old: lb.LoadBalancer | None, wanted: lb.LoadBalancer
) -> Steps[None]:
    """Check the invariants of every load balancer, for all providers. Raises Refused."""
    if old is None or wanted.pools is not old.pools or wanted.listeners is not old.listeners:
        check_sizes(old, wanted)
        check_parts(snapshot, old, wanted)
    if old is not None and not _may_change_parts(old, wanted):
        raise Refused(BalancerIsDeclarative(balancer_id=old.id))
    if old is not None and wanted.vips != old.vips:
        raise Refused(VipImmutable(balancer_id=old.id))
    if old is not None and wanted.project_id != old.project_id:
        raise Refused(NotTheirs(project_id=wanted.project_id))
    for field in _OFFER_FIELDS if old is not None else ():
        if getattr(wanted, field) != getattr(old, field):
            raise Refused(OfferImmutable(balancer_id=wanted.id, field=field))
    network = snapshot.networks.get(wanted.vip.network_id)
    if old is None and network is not None:
        check_announced(asker.providers, wanted.provider, network)
    yield
    ports: dict[tuple[lb.Transport, int], lb.Listener] = {}
    for listener in wanted.listeners:
        check_listener(wanted, listener, ports)
        yield
    known = {member.id: member.subnet_id for pool in old.pools for member in pool.members} if old else {}
    for pool in wanted.pools:
        for member in pool.members:
            if member.id not in known or member.subnet_id != known[member.id]:
                check_subnet(snapshot, asker.identity, wanted, member)
                yield
    find_provider(asker.providers, wanted.provider).check(snapshot, wanted)


def _may_change_parts(old: lb.LoadBalancer, wanted: lb.LoadBalancer) -> bool:
    """Return whether the change of parts is permitted. A load balancer stays declarative, or not, for its lifetime."""
    if old.described is None:
        return wanted.described is None
    same_parts = wanted.listeners is old.listeners and wanted.pools is old.pools
    return wanted.described is not None and (same_parts or wanted.described is not old.described)


def _with_network_reads(*puts: Aggregate) -> Changes:
    """Return the changes with the networks of the ports as reads, because addresses are allocated there."""
    networks = dict.fromkeys(put.network_id for put in puts if isinstance(put, Port))
    return Changes(puts=puts, reads=tuple(Owner(Kind.NETWORK, network_id) for network_id in networks))

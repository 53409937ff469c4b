"""Changes of a whole load balancer, and what must be true of any load balancer, whichever door it came through.

Whatever changes a part makes the whole load balancer as it is wanted and hands it to `put`, as a door does that knows
whole load balancers only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

from fairlead.changes.asker import Asker
from fairlead.changes.balancer_checks import check_parts, check_sizes
from fairlead.changes.finding import NotTheirs, check_may_change, find_load_balancer
from fairlead.changes.ids import check_new
from fairlead.changes.listener_checks import check_listener, complete_listener
from fairlead.changes.members_behind import hosts_of_members
from fairlead.changes.offers import check_announced, find_provider
from fairlead.changes.pool_checks import check_subnet, complete_pool
from fairlead.changes.probe_ports import make_probe_ports
from fairlead.changes.proxy_ports import with_proxy_ports
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.vip_gateways import place_vips
from fairlead.changes.vips import VipPort
from fairlead.model import loadbalancer as lb
from fairlead.model.balancer_status import BalancerStatus
from fairlead.model.behind import nowhere
from fairlead.model.foreign import is_foreign
from fairlead.model.indexes import NO_IDS
from fairlead.model.moved_slots import Transition, remember_moved
from fairlead.model.network import Port, Resource, release
from fairlead.model.owner import Kind, Owner
from fairlead.model.parting import remember_removed
from fairlead.model.quota import Counted
from fairlead.model.shares import LARGEST, SMALLEST
from fairlead.model.snapshot import Aggregate, Snapshot
from fairlead.model.standing import balancer_status
from fairlead.model.status import ProvisioningStatus
from fairlead.model.steps import Steps, in_one_step
from fairlead.model.writing import Changes, apply_changes

_Part = TypeVar("_Part", lb.Listener, lb.Pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnItsWay(Refusal):
    """This generation of the load balancer is on its way to the dataplane, and with it this part (or the whole): until
    it is there nothing of it may be changed. Who waits may ask again."""

    owner: Owner
    generation: int
    what: Counted
    id: str
    status: ProvisioningStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeOnItsWay(OnItsWay):
    """The same, for a change of the load balancer itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HasParts(Refusal):
    """It goes with its listeners and pools only if that is asked for."""

    balancer_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VipStays(Refusal):
    """A load balancer keeps the addresses that it was made with."""

    balancer_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferStays(Refusal):
    """A load balancer keeps what it was made with of what an operator offers: `field` is that of the model."""

    balancer_id: str
    field: str


_OFFERED = ("provider", "flavor_id", "availability_zone")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedAsAWhole(Refusal):
    """Its parts follow from what it was described as, and change with that only."""

    balancer_id: str


# Requests


def create_load_balancer(
    snapshot: Snapshot, asker: Asker, wanted: lb.LoadBalancer, vip: VipPort, reads: Sequence[Owner] = ()
) -> Steps[Changes]:
    """The whole tree in one write. Two hundred pools are two hundred slot tables: it rests after each.

    `vip` is where its addresses come from (`vips.choose_vip`); `reads` are documents that the choice depends on.
    """
    if not asker.identity.may_change(wanted.project_id):
        raise Refused(NotTheirs(project_id=wanted.project_id))
    check_new(snapshot.load_balancers, wanted.id)
    if vip.is_new:
        check_new(snapshot.ports, vip.port.id)
    wanted = replace(wanted, vip=vip.vips[0], additional_vips=vip.vips[1:], owns_vip_port=vip.is_new)
    changes = yield from put(snapshot, asker, wanted, vip.port)
    rests = changes.rests_on_absence or not vip.is_new  # no Local IP leads to a port that was given
    return replace(changes, reads=(*changes.reads, *reads), rests_on_absence=rests)


def replace_load_balancer(snapshot: Snapshot, asker: Asker, wanted: lb.LoadBalancer) -> Steps[Changes]:
    """The whole tree instead of the one that is stored under its id. A part that has a stored one's id is that one,
    changed; its members keep their slots as far as they can."""
    check_on_its_way(snapshot, asker, find_to_change(snapshot, wanted.id, asker))
    return put(snapshot, asker, wanted)


def delete_load_balancer(snapshot: Snapshot, asker: Asker, balancer_id: str, *, cascade: bool) -> Changes:
    """The VIP's port goes too, if it was made for the VIP; one that was given is given back. Who else made it for this
    load balancer deletes it after it."""
    balancer = find_to_change(snapshot, balancer_id, asker)
    if not cascade and (balancer.listeners or balancer.pools):
        raise Refused(HasParts(balancer_id=balancer_id))
    check_on_its_way(snapshot, asker, balancer)
    return removed(snapshot, balancer)


def removed(snapshot: Snapshot, balancer: lb.LoadBalancer) -> Changes:
    """What its deletion is, with what was made for it."""
    gone, back = [Owner(Kind.LOAD_BALANCER, balancer.id)], list[Aggregate]()
    port = snapshot.ports.get(balancer.vip.port_id)
    if port is not None and balancer.owns_vip_port:
        gone.append(Owner(Kind.PORT, port.id))
        back.extend(release(snapshot.floating_ips[each]) for each in snapshot.port_floating_ips.get(port.id, NO_IDS))
    elif port is not None and not is_foreign(port) and not (balancer.kept and balancer.kept.made_port):
        back.append(replace(port, device_id="", device_owner=""))
    return Changes(puts=tuple(back), deletes=tuple(gone))


def fail_over(snapshot: Snapshot, asker: Asker, balancer_id: str) -> Changes:
    """There is no instance to move: it is written once more as it is, and is PENDING until that has arrived."""
    balancer = find_load_balancer(snapshot, balancer_id, asker.identity)
    if not asker.identity.is_admin:
        raise Refused(NotTheirs(project_id=balancer.project_id))
    check_on_its_way(snapshot, asker, balancer)
    return Changes(puts=(replace(balancer, updated_at=asker.now),))


# For these and for changes of parts


def find_to_change(snapshot: Snapshot, balancer_id: str, asker: Asker) -> lb.LoadBalancer:
    """Raises Refused."""
    balancer = find_load_balancer(snapshot, balancer_id, asker.identity)
    check_may_change(balancer, asker.identity)
    return balancer


def put(snapshot: Snapshot, asker: Asker, wanted: lb.LoadBalancer, *ports: Port) -> Steps[Changes]:
    """The load balancer as it is wanted, new or instead of the stored one, and the ports that change with it.

    Completes it: numbers and slots of members, what TLS needs, whose gateway has VIPs outside, the ports from which
    members are probed, who has left.
    Raises Refused, and Unsupported, for what cannot be so.
    """
    old = snapshot.load_balancers.get(wanted.id)
    announces = find_provider(asker.providers, wanted.provider).announces
    wanted = yield from _complete(old, wanted, LARGEST if announces else SMALLEST)
    wanted = replace(wanted, kept=old.kept) if old is not None else wanted
    ports = tuple(port for port in ports if not is_foreign(port))
    if ports:
        snapshot = apply_changes(snapshot, Changes(puts=ports), snapshot.revision)
    wanted = place_vips(snapshot, wanted, is_new=old is None)
    wanted = with_proxy_ports(snapshot, old, wanted)
    yield
    yield from _check(snapshot, asker, old, wanted)
    hosts = (yield from hosts_of_members(snapshot, old, wanted)) if announces else ()
    probe_ports = make_probe_ports(snapshot, wanted, asker.now)
    yield
    if old is not None:
        wanted = yield from remember_removed(old, wanted, asker.now, snapshot.parting_seconds)
        if announces:
            wanted = yield from _remember_moved(snapshot, asker, old, wanted)
        wanted = replace(wanted, updated_at=asker.now, created_at=old.created_at, owns_vip_port=old.owns_vip_port)
    changes = _giving_addresses(*ports, *probe_ports, wanted)
    changes = replace(changes, reads=(*changes.reads, *hosts))
    if wanted.router_id is None or (old is not None and wanted.router_id == old.router_id):
        return changes
    return replace(changes, reads=(*changes.reads, Owner(Kind.ROUTER, wanted.router_id)))


def _remember_moved(
    snapshot: Snapshot, asker: Asker, old: lb.LoadBalancer, wanted: lb.LoadBalancer
) -> Steps[lb.LoadBalancer]:
    """Who is down had no slot to lose, and where a host itself is nobody had one."""
    members = (member for each in (old, wanted) for pool in each.pools for member in pool.members)
    down = snapshot.down.get(wanted.id, frozenset()) | nowhere(snapshot, wanted, members)
    until = asker.now + timedelta(seconds=snapshot.parting_seconds)
    return (yield from remember_moved(old, wanted, down, Transition(now=asker.now, until=until)))


def put_part(snapshot: Snapshot, asker: Asker, wanted: lb.LoadBalancer) -> Steps[Changes]:
    """A load balancer with a part that has changed. What is wrong with a request is said before it has to wait."""
    changes = yield from put(snapshot, asker, wanted)
    check_part_on_its_way(snapshot, asker, snapshot.load_balancers[wanted.id])
    return changes


def check_on_its_way(snapshot: Snapshot, asker: Asker, balancer: lb.LoadBalancer) -> None:
    """Raises Refused while it is. What failed may be changed. The same for a part."""
    where = _status(snapshot, asker, balancer)
    if where.is_immutable(balancer):
        raise Refused(
            WholeOnItsWay(
                owner=Owner(Kind.LOAD_BALANCER, balancer.id),
                generation=where.generation,
                what=Counted.LOAD_BALANCER,
                id=balancer.id,
                status=where.provisioning(balancer),
            )
        )


def check_part_on_its_way(
    snapshot: Snapshot,
    asker: Asker,
    balancer: lb.LoadBalancer,
    what: Counted = Counted.LOAD_BALANCER,
    part: Resource | None = None,
) -> None:
    """Without a part, of the load balancer that a part is changed of."""
    which = part or balancer
    where = _status(snapshot, asker, balancer)
    if where.is_immutable(which):
        owner, status = Owner(Kind.LOAD_BALANCER, balancer.id), where.provisioning(which)
        raise Refused(OnItsWay(owner=owner, generation=where.generation, what=what, id=which.id, status=status))


def _status(snapshot: Snapshot, asker: Asker, balancer: lb.LoadBalancer) -> BalancerStatus:
    return balancer_status(snapshot, balancer, asker.applied(Owner(Kind.LOAD_BALANCER, balancer.id)))


def _complete(old: lb.LoadBalancer | None, wanted: lb.LoadBalancer, smallest: int) -> Steps[lb.LoadBalancer]:
    """With so many slots at least: hosts that announce a VIP have the largest table anyway, which is the most even one.
    What has not changed is the same object, and is not looked at."""
    if old is None or wanted.pools is not old.pools:
        known_pools = old.pools if old else ()
        wanted = replace(
            wanted, pools=(yield from _completed(known_pools, wanted.pools, partial(complete_pool, smallest=smallest)))
        )
    if old is None or wanted.listeners is not old.listeners:
        known = old.listeners if old else ()
        listeners = yield from _completed(known, wanted.listeners, in_one_step(complete_listener))
        wanted = replace(wanted, listeners=listeners)
    return wanted


def _completed(
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


def _check(snapshot: Snapshot, asker: Asker, old: lb.LoadBalancer | None, wanted: lb.LoadBalancer) -> Steps[None]:
    """What must be true of any load balancer, whatever provides it."""
    if old is None or wanted.pools is not old.pools or wanted.listeners is not old.listeners:
        check_sizes(wanted)
        check_parts(snapshot, old, wanted)
    if old is not None and not _may_differ(old, wanted):
        raise Refused(DescribedAsAWhole(balancer_id=old.id))
    if old is not None and wanted.vips != old.vips:
        raise Refused(VipStays(balancer_id=old.id))
    if old is not None and wanted.project_id != old.project_id:
        raise Refused(NotTheirs(project_id=wanted.project_id))
    for field in _OFFERED if old is not None else ():
        if getattr(wanted, field) != getattr(old, field):
            raise Refused(OfferStays(balancer_id=wanted.id, field=field))
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


def _may_differ(old: lb.LoadBalancer, wanted: lb.LoadBalancer) -> bool:
    """Whether the parts are as they were, or whoever changes them may. What is described once stays so, and what is not
    never is."""
    if old.described is None:
        return wanted.described is None
    same_parts = wanted.listeners is old.listeners and wanted.pools is old.pools
    return wanted.described is not None and (same_parts or wanted.described is not old.described)


def _giving_addresses(*puts: Aggregate) -> Changes:
    """The networks of which addresses are taken must not change meanwhile."""
    networks = dict.fromkeys(put.network_id for put in puts if isinstance(put, Port))
    return Changes(puts=puts, reads=tuple(Owner(Kind.NETWORK, network_id) for network_id in networks))

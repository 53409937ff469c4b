"""Which connections are flushed from the connection tracker because their member no longer serves them.

A connection is told by both of its ends, as a switch tracks it: where the client sends, and who answers. So those of
other members, and those that other listeners have to the same member, are left alone.

Streams end by themselves, so `down_member` decides about those of a member that is down; of a pool that keeps them,
only attempts without an answer are flushed. A sender of datagrams may never pause, and the tracker keeps its flow at
the same member for that long. So datagram flows of members that are down, disabled or removed are always flushed;
members of weight 0 drain and keep theirs.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from fairlead.model.addresses import IPAddress
from fairlead.model.health import HealthKey
from fairlead.model.loadbalancer import (
    DownMember,
    Listener,
    LoadBalancer,
    Member,
    Pool,
    Transport,
    find_member,
    find_pool,
    is_prepared,
    transport,
)
from fairlead.model.port_ranges import expand, holds, targets
from fairlead.model.snapshot import Snapshot, floating_ips_of

DATAGRAMS = frozenset({Transport.UDP, Transport.SCTP})


class Cut(NamedTuple):
    transport: Transport
    address: IPAddress
    """That clients connect to: a VIP, or a floating IP that leads to one."""
    port: int
    member: IPAddress
    member_port: int


class Lost(NamedTuple):
    """The connections of a member that is down or disabled, at all listeners of its pool of one kind."""

    pool_id: str
    member: HealthKey
    datagrams: bool


class Unanswered(NamedTuple):
    """Attempts to open a connection to a member that is down, at any VIP and port of its pool's listeners."""

    pool_id: str
    member: HealthKey


class Flows(NamedTuple):
    """What a member had that it has no more. Those of a pool have their listeners and addresses in common."""

    listeners: tuple[Listener, ...]
    addresses: frozenset[IPAddress]
    member: Member


def lost_of(snapshot: Snapshot, balancer_id: str) -> frozenset[Lost]:
    """As many as there are members, whatever the number of listeners. None for a load balancer that is not there."""
    balancer, down = snapshot.load_balancers.get(balancer_id), snapshot.down.get(balancer_id, frozenset())
    if balancer is None or is_prepared(balancer):
        return frozenset()
    found = set[Lost]()
    for pool, datagrams in _kinds(balancer):
        if datagrams:
            off = {each.id for each in pool.members if not each.admin_state_up}
            found.update(Lost(pool.id, each, True) for each in off)
            found.update(Lost(pool.id, key, True) for key in _down_in(pool, down) if _member_of(key) not in off)
        elif pool.down_member is DownMember.RESET:
            found.update(Lost(pool.id, key, False) for key in _down_in(pool, down))
    return frozenset(found)


def unanswered_of(snapshot: Snapshot, balancer_id: str) -> frozenset[Unanswered]:
    """Of pools whose streams are kept: where the others are cut, attempts are too."""
    balancer, down = snapshot.load_balancers.get(balancer_id), snapshot.down.get(balancer_id)
    if balancer is None or not down or is_prepared(balancer):
        return frozenset()
    kept = (pool for pool, datagrams in _kinds(balancer) if not datagrams and pool.down_member is DownMember.KEEP)
    return frozenset(Unanswered(pool.id, key) for pool in kept for key in _down_in(pool, down))


def cuts_of(snapshot: Snapshot, balancer_id: str, lost: Lost) -> Iterator[Cut]:
    """Each port of each listener, with the member there."""
    balancer = snapshot.load_balancers.get(balancer_id)
    if balancer is None:
        return
    addresses, (member_id, only) = frozenset(_addresses(snapshot, balancer)), _split(lost.member)
    pool = find_pool(balancer, lost.pool_id)
    member = find_member(pool, member_id) if pool is not None else None
    if member is None:
        return
    for listener in balancer.listeners:
        if listener.default_pool_id == lost.pool_id and _is_of_datagrams(listener) == lost.datagrams:
            cuts = _cuts(listener, member, addresses)
            yield from (each for each in cuts if only is None or each.member_port == only)


def is_unanswered(snapshot: Snapshot, balancer_id: str, asked: Collection[Unanswered], seen: Cut) -> bool:
    """Whether a connection with these ends belongs to one of those."""
    balancer = snapshot.load_balancers.get(balancer_id)
    if balancer is None or seen.address not in _addresses(snapshot, balancer):
        return False
    for listener, pool in _leading(balancer):
        if transport(listener.protocol) is seen.transport and holds(listener.ports, seen.port):
            for member in pool.members:
                keys = Unanswered(pool.id, member.id), Unanswered(pool.id, (member.id, seen.member_port))
                if any(key in asked for key in keys) and seen in _cuts(listener, member, (seen.address,)):
                    return True
    return False


def left_of(before: Snapshot, after: Snapshot, balancer_id: str) -> list[Flows]:
    """Datagram flows that the load balancer led to a member before, and perhaps does not lead there any more: a
    listener, a pool, a floating IP or the load balancer was removed or disabled, or the member was removed. What is
    served all the same, `leads_to` knows. As many as there are members, whatever the number of listeners."""
    old, new = before.load_balancers.get(balancer_id), after.load_balancers.get(balancer_id)
    if old is None or is_prepared(old):
        return []
    served = list(_serving(old))
    if not served:
        return []
    had = frozenset(_addresses(before, old))
    has = frozenset(_addresses(after, new)) if new is not None else frozenset[IPAddress]()
    if old is new and had == has:
        return []
    kept = {(each.protocol, each.ports): pool for each, pool in _serving(new)} if new is not None else {}
    groups = dict[tuple[str, str], list[Listener]]()
    pools = {pool.id: pool for _, pool in served}
    twins = {pool.id: pool for pool in kept.values()}
    for listener, pool in served:
        twin = kept.get((listener.protocol, listener.ports))
        groups.setdefault((pool.id, twin.id if twin is not None else ""), []).append(listener)
    found = list[Flows]()
    for (pool_id, twin_id), listeners in groups.items():
        members, gone = pools[pool_id].members, pools[pool_id].members
        if twin_id:
            others = {(each.address, each.port) for each in twins[twin_id].members}
            gone = tuple(each for each in members if (each.address, each.port) not in others)
        detached, stayed = had - has, had & has if twin_id else had
        found += (Flows(tuple(listeners), detached, each) for each in members if detached and twin_id)
        found += (Flows(tuple(listeners), stayed, each) for each in gone if stayed)
    return found


def cuts_left(flows: Flows) -> Iterator[Cut]:
    for listener in flows.listeners:
        yield from _cuts(listener, flows.member, flows.addresses)


def leads_to(balancer: LoadBalancer, cut: Cut) -> bool:
    """Whether a listener that serves has this member, whatever its state."""
    return any(
        cut in _cuts(listener, member, (cut.address,))
        for listener, pool in _serving(balancer)
        if transport(listener.protocol) is cut.transport and holds(listener.ports, cut.port)
        for member in pool.members
        if member.address == cut.member
    )


def _addresses(snapshot: Snapshot, balancer: LoadBalancer) -> Iterator[IPAddress]:
    for vip in balancer.vips:
        yield vip.address
        yield from (each.address for each in floating_ips_of(snapshot, vip))


def addresses_of(snapshot: Snapshot, balancer_id: str) -> frozenset[IPAddress]:
    """That clients connect to."""
    balancer = snapshot.load_balancers.get(balancer_id)
    return frozenset(_addresses(snapshot, balancer)) if balancer is not None else frozenset()


def _leading(balancer: LoadBalancer) -> Iterator[tuple[Listener, Pool]]:
    for listener in balancer.listeners:
        pool = find_pool(balancer, listener.default_pool_id)
        if pool is not None and transport(listener.protocol) is not Transport.ANY:
            yield listener, pool


def _serving(balancer: LoadBalancer) -> Iterator[tuple[Listener, Pool]]:
    """Listeners of datagrams that are not disabled, nor their pools."""
    for listener, pool in _leading(balancer) if balancer.admin_state_up else ():
        if transport(listener.protocol) in DATAGRAMS and listener.admin_state_up and pool.admin_state_up:
            yield listener, pool


def _kinds(balancer: LoadBalancer) -> Iterator[tuple[Pool, bool]]:
    """Each pool to which listeners lead, and whether these are of datagrams."""
    found = {(pool.id, _is_of_datagrams(listener)): pool for listener, pool in _leading(balancer)}
    return ((pool, datagrams) for (_, datagrams), pool in found.items())


def _is_of_datagrams(listener: Listener) -> bool:
    return transport(listener.protocol) in DATAGRAMS


def _cuts(listener: Listener, member: Member, addresses: Collection[IPAddress]) -> Iterator[Cut]:
    """At each port of the listener."""
    ports, which = tuple(expand(listener.ports)), transport(listener.protocol)
    for port, member_port in zip(ports, targets(member.port, ports), strict=False):
        for address in addresses:
            if address.version == member.address.version:
                yield Cut(which, address, port, member.address, member_port)


def _down_in(pool: Pool, down: frozenset[HealthKey]) -> Iterator[HealthKey]:
    if down:
        ids = {each.id for each in pool.members}
        yield from (key for key in down if _member_of(key) in ids)


def _member_of(key: HealthKey) -> str:
    return _split(key)[0]


def _split(key: HealthKey) -> tuple[str, int | None]:
    return (key, None) if isinstance(key, str) else key

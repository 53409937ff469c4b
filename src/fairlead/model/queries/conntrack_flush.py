"""Connections to flush from the connection tracker because their member no longer serves them.

A connection is identified by both ends, as conntrack on a switch tracks it: the address and port that the client uses,
and those of the member. Connections of other members, and of other listeners to the same member, are not flushed.

`down_member` of the pool decides about TCP connections of a member that is down; with KEEP only unanswered connection
attempts are flushed. UDP and SCTP flows of members that are down, disabled or removed are always flushed, because a
sender that never pauses would keep its conntrack entry, and its member, forever. Members of weight 0 drain and keep
their flows.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.health import HealthKey
from fairlead.model.documents.loadbalancer import (
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
from fairlead.model.documents.port_ranges import expand, holds, targets
from fairlead.model.snapshot import Snapshot, floating_ips_of

DATAGRAMS = frozenset({Transport.UDP, Transport.SCTP})


class Cut(NamedTuple):
    transport: Transport
    address: IPAddress
    """Destination address of clients: a VIP, or a floating IP that leads to one."""
    port: int
    member: IPAddress
    member_port: int


class Lost(NamedTuple):
    """Connections of a member that is down or disabled,
    through all listeners of its pool with one kind of transport."""

    pool_id: str
    member: HealthKey
    datagrams: bool


class Unanswered(NamedTuple):
    """Attempts to connect to a member that is down, through any VIP and port of its pool's listeners."""

    pool_id: str
    member: HealthKey


class Flows(NamedTuple):
    """Flows that a member had and no longer has. Flows of one pool share their listeners and addresses."""

    listeners: tuple[Listener, ...]
    addresses: frozenset[IPAddress]
    member: Member


def lost_of(snapshot: Snapshot, balancer_id: str) -> frozenset[Lost]:
    """Return the connections to flush, at most one entry per member. A missing load balancer has none."""
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
    """Return the unanswered attempts to flush, for pools that keep established connections."""
    balancer, down = snapshot.load_balancers.get(balancer_id), snapshot.down.get(balancer_id)
    if balancer is None or not down or is_prepared(balancer):
        return frozenset()
    kept = (pool for pool, datagrams in _kinds(balancer) if not datagrams and pool.down_member is DownMember.KEEP)
    return frozenset(Unanswered(pool.id, key) for pool in kept for key in _down_in(pool, down))


def cuts_of(snapshot: Snapshot, balancer_id: str, lost: Lost) -> Iterator[Cut]:
    """Yield one entry for each port of each listener that leads to the member."""
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
    """Return whether a tracked connection belongs to one of these attempts."""
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
    """Return UDP and SCTP flows that the change may have ended.

    A listener, pool, floating IP or load balancer was removed or disabled, or a member was removed. `leads_to` finds
    the flows that are still served. The result has at most one entry per member and address set.
    """
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
    """Return whether a serving listener has this member, whatever the member's state."""
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
    """Return the addresses that clients use: VIPs and floating IPs."""
    balancer = snapshot.load_balancers.get(balancer_id)
    return frozenset(_addresses(snapshot, balancer)) if balancer is not None else frozenset()


def _leading(balancer: LoadBalancer) -> Iterator[tuple[Listener, Pool]]:
    for listener in balancer.listeners:
        pool = find_pool(balancer, listener.default_pool_id)
        if pool is not None and transport(listener.protocol) is not Transport.ANY:
            yield listener, pool


def _serving(balancer: LoadBalancer) -> Iterator[tuple[Listener, Pool]]:
    """Yield UDP and SCTP listeners that are enabled, with their enabled pools."""
    for listener, pool in _leading(balancer) if balancer.admin_state_up else ():
        if transport(listener.protocol) in DATAGRAMS and listener.admin_state_up and pool.admin_state_up:
            yield listener, pool


def _kinds(balancer: LoadBalancer) -> Iterator[tuple[Pool, bool]]:
    """Yield each pool in use, and whether its listeners are UDP or SCTP."""
    found = {(pool.id, _is_of_datagrams(listener)): pool for listener, pool in _leading(balancer)}
    return ((pool, datagrams) for (_, datagrams), pool in found.items())


def _is_of_datagrams(listener: Listener) -> bool:
    return transport(listener.protocol) in DATAGRAMS


def _cuts(listener: Listener, member: Member, addresses: Collection[IPAddress]) -> Iterator[Cut]:
    """Yield an entry for each port of the listener."""
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

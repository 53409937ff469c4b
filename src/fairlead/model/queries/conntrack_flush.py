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
from fairlead.model.documents.port_ranges import contains_port, expand, expand_targets
from fairlead.model.snapshot import Snapshot, floating_ips_of

DATAGRAM_TRANSPORTS = frozenset({Transport.UDP, Transport.SCTP})


class TrackedConnection(NamedTuple):
    transport: Transport
    address: IPAddress
    """Destination address of clients: a VIP, or a floating IP that leads to one."""
    port: int
    member: IPAddress
    member_port: int


class LostConnections(NamedTuple):
    """Connections of a member that is down or disabled,
    through all listeners of its pool with one kind of transport."""

    pool_id: str
    member: HealthKey
    is_datagram: bool


class UnansweredAttempts(NamedTuple):
    """Attempts to connect to a member that is down, through any VIP and port of its pool's listeners."""

    pool_id: str
    member: HealthKey


class EndedFlows(NamedTuple):
    """Flows that a member had and no longer has. Flows of one pool share their listeners and addresses."""

    listeners: tuple[Listener, ...]
    addresses: frozenset[IPAddress]
    member: Member


def find_lost_connections(snapshot: Snapshot, balancer_id: str) -> frozenset[LostConnections]:
    """Return the connections to flush, at most one entry per member. A missing load balancer has none."""
    balancer, down = snapshot.load_balancers.get(balancer_id), snapshot.down.get(balancer_id, frozenset())
    if balancer is None or is_prepared(balancer):
        return frozenset()
    found = set[LostConnections]()
    for pool, datagrams in _pools_by_transport_kind(balancer):
        if datagrams:
            off = {each.id for each in pool.members if not each.admin_state_up}
            found.update(LostConnections(pool.id, each, True) for each in off)
            found.update(
                LostConnections(pool.id, key, True)
                for key in _down_members_of(pool, down)
                if _member_of(key) not in off
            )
        elif pool.down_member is DownMember.RESET:
            found.update(LostConnections(pool.id, key, False) for key in _down_members_of(pool, down))
    return frozenset(found)


def find_unanswered_attempts(snapshot: Snapshot, balancer_id: str) -> frozenset[UnansweredAttempts]:
    """Return the unanswered attempts to flush, for pools that keep established connections."""
    balancer, down = snapshot.load_balancers.get(balancer_id), snapshot.down.get(balancer_id)
    if balancer is None or not down or is_prepared(balancer):
        return frozenset()
    kept = (
        pool
        for pool, datagrams in _pools_by_transport_kind(balancer)
        if not datagrams and pool.down_member is DownMember.KEEP
    )
    return frozenset(UnansweredAttempts(pool.id, key) for pool in kept for key in _down_members_of(pool, down))


def list_connections_to_flush(
    snapshot: Snapshot, balancer_id: str, lost: LostConnections
) -> Iterator[TrackedConnection]:
    """Yield one entry for each port of each listener that leads to the member."""
    balancer = snapshot.load_balancers.get(balancer_id)
    if balancer is None:
        return
    addresses, (member_id, only) = frozenset(_list_client_addresses(snapshot, balancer)), _split_key(lost.member)
    pool = find_pool(balancer, lost.pool_id)
    member = find_member(pool, member_id) if pool is not None else None
    if member is None:
        return
    for listener in balancer.listeners:
        if listener.default_pool_id == lost.pool_id and _is_datagram_listener(listener) == lost.is_datagram:
            cuts = _expand_connections(listener, member, addresses)
            yield from (each for each in cuts if only is None or each.member_port == only)


def is_unanswered(
    snapshot: Snapshot, balancer_id: str, asked: Collection[UnansweredAttempts], seen: TrackedConnection
) -> bool:
    """Return whether a tracked connection belongs to one of these attempts."""
    balancer = snapshot.load_balancers.get(balancer_id)
    if balancer is None or seen.address not in _list_client_addresses(snapshot, balancer):
        return False
    for listener, pool in _listeners_with_pool(balancer):
        if transport(listener.protocol) is seen.transport and contains_port(listener.ports, seen.port):
            for member in pool.members:
                keys = (
                    UnansweredAttempts(pool.id, member.id),
                    UnansweredAttempts(pool.id, (member.id, seen.member_port)),
                )
                if any(key in asked for key in keys) and seen in _expand_connections(listener, member, (seen.address,)):
                    return True
    return False


def find_ended_flows(before: Snapshot, after: Snapshot, balancer_id: str) -> list[EndedFlows]:
    """Return UDP and SCTP flows that the change may have ended.

    A listener, pool, floating IP or load balancer was removed or disabled, or a member was removed. `leads_to` finds
    the flows that are still served. The result has at most one entry per member and address set.
    """
    old, new = before.load_balancers.get(balancer_id), after.load_balancers.get(balancer_id)
    if old is None or is_prepared(old):
        return []
    served = list(_serving_datagram_listeners(old))
    if not served:
        return []
    had = frozenset(_list_client_addresses(before, old))
    has = frozenset(_list_client_addresses(after, new)) if new is not None else frozenset[IPAddress]()
    if old is new and had == has:
        return []
    kept = (
        {(each.protocol, each.ports): pool for each, pool in _serving_datagram_listeners(new)}
        if new is not None
        else {}
    )
    groups = dict[tuple[str, str], list[Listener]]()
    pools = {pool.id: pool for _, pool in served}
    twins = {pool.id: pool for pool in kept.values()}
    for listener, pool in served:
        twin = kept.get((listener.protocol, listener.ports))
        groups.setdefault((pool.id, twin.id if twin is not None else ""), []).append(listener)
    found = list[EndedFlows]()
    for (pool_id, twin_id), listeners in groups.items():
        members, gone = pools[pool_id].members, pools[pool_id].members
        if twin_id:
            others = {(each.address, each.port) for each in twins[twin_id].members}
            gone = tuple(each for each in members if (each.address, each.port) not in others)
        detached, stayed = had - has, had & has if twin_id else had
        found += (EndedFlows(tuple(listeners), detached, each) for each in members if detached and twin_id)
        found += (EndedFlows(tuple(listeners), stayed, each) for each in gone if stayed)
    return found


def list_flows_to_flush(flows: EndedFlows) -> Iterator[TrackedConnection]:
    for listener in flows.listeners:
        yield from _expand_connections(listener, flows.member, flows.addresses)


def is_still_served(balancer: LoadBalancer, cut: TrackedConnection) -> bool:
    """Return whether a serving listener has this member, whatever the member's state."""
    return any(
        cut in _expand_connections(listener, member, (cut.address,))
        for listener, pool in _serving_datagram_listeners(balancer)
        if transport(listener.protocol) is cut.transport and contains_port(listener.ports, cut.port)
        for member in pool.members
        if member.address == cut.member
    )


def _list_client_addresses(snapshot: Snapshot, balancer: LoadBalancer) -> Iterator[IPAddress]:
    for vip in balancer.vips:
        yield vip.address
        yield from (each.address for each in floating_ips_of(snapshot, vip))


def client_addresses(snapshot: Snapshot, balancer_id: str) -> frozenset[IPAddress]:
    """Return the addresses that clients use: VIPs and floating IPs."""
    balancer = snapshot.load_balancers.get(balancer_id)
    return frozenset(_list_client_addresses(snapshot, balancer)) if balancer is not None else frozenset()


def _listeners_with_pool(balancer: LoadBalancer) -> Iterator[tuple[Listener, Pool]]:
    for listener in balancer.listeners:
        pool = find_pool(balancer, listener.default_pool_id)
        if pool is not None and transport(listener.protocol) is not Transport.ANY:
            yield listener, pool


def _serving_datagram_listeners(balancer: LoadBalancer) -> Iterator[tuple[Listener, Pool]]:
    """Yield UDP and SCTP listeners that are enabled, with their enabled pools."""
    for listener, pool in _listeners_with_pool(balancer) if balancer.admin_state_up else ():
        if transport(listener.protocol) in DATAGRAM_TRANSPORTS and listener.admin_state_up and pool.admin_state_up:
            yield listener, pool


def _pools_by_transport_kind(balancer: LoadBalancer) -> Iterator[tuple[Pool, bool]]:
    """Yield each pool in use, and whether its listeners are UDP or SCTP."""
    found = {(pool.id, _is_datagram_listener(listener)): pool for listener, pool in _listeners_with_pool(balancer)}
    return ((pool, datagrams) for (_, datagrams), pool in found.items())


def _is_datagram_listener(listener: Listener) -> bool:
    return transport(listener.protocol) in DATAGRAM_TRANSPORTS


def _expand_connections(
    listener: Listener, member: Member, addresses: Collection[IPAddress]
) -> Iterator[TrackedConnection]:
    """Yield an entry for each port of the listener."""
    ports, which = tuple(expand(listener.ports)), transport(listener.protocol)
    for port, member_port in zip(ports, expand_targets(member.port, ports), strict=False):
        for address in addresses:
            if address.version == member.address.version:
                yield TrackedConnection(which, address, port, member.address, member_port)


def _down_members_of(pool: Pool, down: frozenset[HealthKey]) -> Iterator[HealthKey]:
    if down:
        ids = {each.id for each in pool.members}
        yield from (key for key in down if _member_of(key) in ids)


def _member_of(key: HealthKey) -> str:
    return _split_key(key)[0]


def _split_key(key: HealthKey) -> tuple[str, int | None]:
    return (key, None) if isinstance(key, str) else key

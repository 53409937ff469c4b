"""Slot owners of announced VIPs, identical on every host, with the previous owners of slots that moved.

Hosts that share a VIP compute one of `LARGEST` slots from a packet, so every host selects the same member. New
connections follow a moved slot immediately. Older connections belong to the slot's previous owner, which is stored with
the change for a bounded time. Compilers only read it, so a restart changes nothing.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.apportionment import MAX_SLOTS
from fairlead.model.documents.health import HealthKey
from fairlead.model.documents.pool_slot_tables import slots_of
from fairlead.model.documents.port_ranges import TargetPort, expand, expand_targets
from fairlead.runtime.steps import Steps

Endpoint: TypeAlias = tuple[IPAddress, int]
MAX_MOVED_GROUPS = 2000
"""Maximum groups of moved slots of a load balancer, bounded by the size of its document. Beyond it, the oldest groups
are removed, which ends the connections of their previous owners."""
_Slot: TypeAlias = tuple[str, int, int]
"""Listener id, IP version and slot number."""
_PreviousOwners: TypeAlias = dict[_Slot, tuple[IPAddress, datetime]]
_Endpoints: TypeAlias = tuple[tuple[int, ...], Mapping[int, Endpoint]]
"""Member ordinal of each slot, and the endpoint of each ordinal."""
_NO_ENDPOINTS: _Endpoints = (), {}
_NO_PREVIOUS_OWNERS: Mapping[int, IPAddress] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class VipService:
    """One port of one VIP."""

    listener: lb.Listener
    vip: IPAddress
    port: int
    transport: lb.Transport
    hashes_source_only: bool
    """Whether the client address alone selects the slot."""
    slot_ordinals: tuple[int, ...]
    """Member ordinal of each slot; empty if no member serves."""
    members: Mapping[int, Endpoint]
    """Ordinal -> endpoint of the member."""
    previous_owners: Mapping[int, IPAddress]
    """Slot -> address of its previous owner, for slots that moved recently."""

    @property
    def slots(self) -> tuple[Endpoint, ...]:
        """Endpoint of each slot."""
        return tuple(map(self.members.__getitem__, self.slot_ordinals))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """Time of a change, and the time when the slots that it moves are forgotten."""

    now: datetime
    expires_at: datetime


def services_of(balancer: lb.LoadBalancer, down: Set[HealthKey] = frozenset()) -> Iterator[VipService]:
    """Yield the services of enabled listeners. Members that are down have no slots, as current or previous owner,
    because they do not answer.

    Services of one pool share the identical `order` and `members` objects, unless members have port ranges, and
    services of one listener and IP version share `before`, so that callers can process each object once.
    """
    dealt, before = _PoolEndpoints(down), _previous_owners(balancer, down)
    for listener in balancer.listeners if balancer.admin_state_up else ():
        pool = lb.find_pool(balancer, listener.default_pool_id)
        numbers = tuple(expand(listener.ports))
        for vip in balancer.vips if listener.admin_state_up else ():
            version = vip.address.version
            for index, port in enumerate(numbers):
                order, members = dealt.endpoints(pool, version, numbers, index)
                yield VipService(
                    listener=listener,
                    vip=vip.address,
                    port=port,
                    transport=lb.transport(listener.protocol),
                    hashes_source_only=pool is not None and pool.hashes_source_only,
                    slot_ordinals=order,
                    members=members,
                    previous_owners=before.get((listener.id, version), _NO_PREVIOUS_OWNERS),
                )


def _previous_owners(balancer: lb.LoadBalancer, down: Set[HealthKey]) -> dict[tuple[str, int], dict[int, IPAddress]]:
    """Return the previous owners of slots, by listener and IP version."""
    dead = {member.address for pool in balancer.pools for member in pool.members if member.id in down}
    found: dict[tuple[str, int], dict[int, IPAddress]] = {}
    for moved in balancer.moved:
        if moved.before not in dead:
            its = found.setdefault((moved.listener_id, moved.before.version), {})
            its.update(dict.fromkeys(moved.slots, moved.before))
    return found


class _PoolEndpoints:
    """Endpoints of pools, each computed once."""

    def __init__(self, down: Set[HealthKey]) -> None:
        self._down = down
        self._known: dict[tuple[object, ...], _Endpoints] = {}

    def endpoints(self, pool: lb.Pool | None, version: int, numbers: tuple[int, ...], index: int) -> _Endpoints:
        """Return the endpoints for the listener's port with this index."""
        if pool is None or not pool.admin_state_up:
            return _NO_ENDPOINTS
        is_same = all(isinstance(member.port, int) for member in pool.members)
        key = (pool.id, version) if is_same else (pool.id, version, numbers, index)
        if key not in self._known:
            self._known[key] = _endpoints(pool, version, numbers, index, self._down)
        return self._known[key]


def _endpoints(pool: lb.Pool, version: int, numbers: tuple[int, ...], index: int, down: Set[HealthKey]) -> _Endpoints:
    gone, places = set[str](), dict[int, Endpoint]()
    for member in pool.members:
        port = member.port if isinstance(member.port, int) else _port_at(member.port, numbers, index)
        if port is None or (down and (member.id in down or (member.id, port) in down)):
            gone.add(member.id)
        else:
            places[member.ordinal] = member.address, port
    return _extend_to_max(slots_of(pool, version, gone)), places


def _port_at(port: TargetPort, numbers: tuple[int, ...], index: int) -> int | None:
    """Return the member's port for the listener port with this index; None if it has none."""
    ports = expand_targets(port, numbers)
    return ports[index] if index < len(ports) else None


def record_moved_slots(
    old: lb.LoadBalancer, new: lb.LoadBalancer, down: Set[HealthKey], when: Transition
) -> Steps[lb.LoadBalancer]:
    """Return `new` with the previous owners of slots that moved since `old`."""
    left: _PreviousOwners = {}
    present = {listener.id for listener in new.listeners}
    for moved in old.moved:
        if moved.until > when.now and moved.listener_id in present:
            where = moved.listener_id, moved.before.version
            left |= {(*where, slot): (moved.before, moved.until) for slot in moved.slots}
    known = {listener.id: listener for listener in old.listeners}
    gone = frozenset(each for each in down if isinstance(each, str))
    for listener in new.listeners:
        was = lb.find_pool(old, known[listener.id].default_pool_id) if listener.id in known else None
        pool = lb.find_pool(new, listener.default_pool_id)
        if was is None or pool is was:
            continue
        for version in sorted(new.ip_versions):
            _record_moves(
                listener.id, version, _addresses(was, version, gone), _addresses(pool, version, gone), when, left
            )
            yield
    return replace(new, moved=_group_moves(left))


def _record_moves(
    listener_id: str,
    version: int,
    before: tuple[IPAddress, ...],
    after: tuple[IPAddress, ...],
    when: Transition,
    left: _PreviousOwners,
) -> None:
    for slot, address in enumerate(before):
        key, now = (listener_id, version, slot), after[slot] if after else None
        if now != address:
            left[key] = address, when.expires_at
        elif key in left and left[key][0] == now:
            del left[key]


def _addresses(pool: lb.Pool | None, version: int, gone: frozenset[str]) -> tuple[IPAddress, ...]:
    """Return the member address of each slot; empty if no member serves. Ports are ignored, because conntrack on the
    member's machine identifies its connections."""
    if pool is None:
        return ()
    addresses = {member.ordinal: member.address for member in pool.members}
    return tuple(addresses[ordinal] for ordinal in _extend_to_max(slots_of(pool, version, gone)))


def _extend_to_max(slots: tuple[int, ...]) -> tuple[int, ...]:
    """Extend a table to `LARGEST` slots by repetition, as tables grow, so each slot keeps its member."""
    return slots * (MAX_SLOTS // len(slots)) if slots else ()


def _group_moves(left: _PreviousOwners) -> tuple[lb.MovedSlots, ...]:
    groups: dict[tuple[datetime, str, IPAddress], list[int]] = {}
    for (listener_id, _, slot), (address, until) in left.items():
        groups.setdefault((until, listener_id, address), []).append(slot)
    ordered = sorted(groups.items(), key=lambda each: (each[0][0], each[0][1], str(each[0][2])))
    return tuple(
        lb.MovedSlots(listener_id=listener_id, before=address, slots=tuple(sorted(slots)), until=until)
        for (until, listener_id, address), slots in ordered[-MAX_MOVED_GROUPS:]
    )

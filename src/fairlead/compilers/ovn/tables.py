"""Slot tables of pools as backends of OVN VIPs, per IP version: a switch does not translate between versions."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field

from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.addresses import render_endpoint
from fairlead.model.documents.apportionment import MAX_SLOTS, shortest_table
from fairlead.model.documents.health import HealthKey
from fairlead.model.documents.pool_slot_tables import slots_for_tiers, slots_of
from fairlead.model.documents.port_ranges import count_ports, expand, expand_targets
from fairlead.model.queries.locality_tiers import Tiers


@dataclass(frozen=True, slots=True)
class Tables:
    """Slot tables of one load balancer in one place. Tables that several ports share are computed once."""

    down: Set[HealthKey]
    """Members out of service in this place, entirely or at one port."""
    _made: dict[tuple[str, int], "_Choice"] = field(default_factory=dict)
    """Tables of pools with one port per member, by pool and IP version."""
    _mapped: dict[tuple[str, str, int], "list[_Choice]"] = field(default_factory=dict)
    """Tables of other pools, by listener, pool and IP version."""
    _buckets: dict[tuple[str, int, frozenset[str]], tuple[tuple[int, ...], tuple[int, ...]]] = field(
        default_factory=dict
    )
    """(pool, IP version, members out of service) -> slots, and buckets."""

    def backends(self, listener: lb.Listener, pool: lb.Pool | None, version: int) -> list[tuple[str, ...]]:
        """Return the backends for each port of the listener."""
        return [choice.backends for choice in self._choices(listener, pool, version)]

    def near(self, listener: lb.Listener, pool: lb.Pool, version: int, tiers: Tiers) -> list[tuple[str, ...]]:
        """Return the backends for each port, for clients with these near members."""
        made: dict[int, tuple[str, ...]] = {}
        choices = self._choices(listener, pool, version)
        for choice in choices:
            if id(choice) not in made:
                slots = slots_for_tiers(pool, version, tiers, choice.gone, choice.slots)
                own = _shortened(pool, slots) if slots is not choice.slots else None
                made[id(choice)] = choice.backends if own is None else tuple(map(choice.places.__getitem__, own))
        return [made[id(choice)] for choice in choices]

    def _choices(self, listener: lb.Listener, pool: lb.Pool | None, version: int) -> "list[_Choice]":
        """Return the choice for each port of the listener; one shared choice if members have one port each."""
        number = count_ports(listener.ports)
        if pool is None or not pool.admin_state_up:
            return [_NO_MEMBERS] * number
        made = self._made.get((pool.id, version))
        if made is None and all(isinstance(member.port, int) for member in pool.members):
            places = {
                each.ordinal: render_endpoint(each.address, each.port)
                for each in pool.members
                if isinstance(each.port, int)
            }
            gone = frozenset(member.id for member in pool.members if member.id in self.down)
            made = self._made[pool.id, version] = self._choice(pool, version, places, gone)
        if made is not None:
            return [made] * number
        key = (listener.id, pool.id, version)
        if key not in self._mapped:
            self._mapped[key] = list(self._map(listener, pool, version))
        return self._mapped[key]

    def backends_without_port(self, pool: lb.Pool | None, version: int) -> tuple[str, ...]:
        """Return the backend addresses for packets to the whole address, without port."""
        if pool is None or not pool.admin_state_up:
            return ()
        places = {member.ordinal: str(member.address) for member in pool.members}
        gone = frozenset(member.id for member in pool.members if member.id in self.down)
        return tuple(map(places.__getitem__, shortest_table(self._table(pool, version, gone)[0])))

    def _map(self, listener: lb.Listener, pool: lb.Pool, version: int) -> "Iterator[_Choice]":
        """Yield the choice for each port: a member may be down at one of its ports and up at others."""
        numbers = tuple(expand(listener.ports))
        at = {member: expand_targets(member.port, numbers) for member in pool.members}
        for index in range(len(numbers)):
            ports = {member: there[index] for member, there in at.items() if index < len(there)}
            gone = frozenset(
                member.id
                for member in pool.members
                if member not in ports or member.id in self.down or (member.id, ports[member]) in self.down
            )
            places = {member.ordinal: render_endpoint(member.address, port) for member, port in ports.items()}
            yield self._choice(pool, version, places, gone)

    def _choice(self, pool: lb.Pool, version: int, places: Mapping[int, str], gone: frozenset[str]) -> "_Choice":
        slots, buckets = self._table(pool, version, gone)
        backends = tuple(map(places.__getitem__, buckets))
        return _Choice(places=places, gone=gone, slots=slots, backends=backends)

    def _table(self, pool: lb.Pool, version: int, gone: frozenset[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        key = (pool.id, version, gone)
        if key not in self._buckets:
            slots = slots_of(pool, version, gone)
            self._buckets[key] = slots, _shortened(pool, slots)
        return self._buckets[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """Backends for one port."""

    places: Mapping[int, str]
    """Member ordinal -> its endpoint."""
    gone: frozenset[str]
    slots: tuple[int, ...]
    """Ordinals by slot, for clients without a near member."""
    backends: tuple[str, ...]
    """The buckets as OVN endpoints."""


_NO_MEMBERS = _Choice(places={}, gone=frozenset(), slots=(), backends=())


def _shortened(pool: lb.Pool, slots: tuple[int, ...]) -> tuple[int, ...]:
    """The slots as buckets of an Open vSwitch group.

    A group without selection fields (`dp_hash`) picks by the low bits of the hash, so a table that repeats itself is
    the same as its first part, and the shortest one leads every client to the same member. With selection fields a
    bucket wins by its number (rendezvous hashing, in `hash` groups of ovs-actions(7)): the number of buckets must stay
    as it is, or clients would move, so the table is repeated up to its full size.
    """
    if not pool.goes_by_fields:
        return shortest_table(slots)
    return slots * (MAX_SLOTS // len(slots)) if len(set(slots)) > 1 else shortest_table(slots)

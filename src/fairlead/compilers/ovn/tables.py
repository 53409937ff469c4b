"""Slot tables of pools as backends of OVN's VIPs: of one family, for a switch translates no IPv4 into IPv6."""

from collections.abc import Set
from dataclasses import dataclass, field

from fairlead.model import loadbalancer as lb
from fairlead.model.addresses import render_endpoint
from fairlead.model.health import HealthKey
from fairlead.model.port_ranges import count, expand, targets
from fairlead.model.shares import shortest_table


@dataclass(frozen=True, slots=True)
class Tables:
    """Of one load balancer in one place. What several ports share is made once: all may lead to one pool, and there
    most members take connections at one port."""

    out: Set[HealthKey]
    """The members that do not serve in this place, or not at some of their ports."""
    _made: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    """Of pools whose members have one port each: (pool, IP version) -> backends."""
    _buckets: dict[tuple[str, int, frozenset[str]], tuple[int, ...]] = field(default_factory=dict)
    """(pool, IP version, members that do not serve) -> ordinals."""

    def backends(self, listener: lb.Listener, pool: lb.Pool | None, version: int) -> list[tuple[str, ...]]:
        """Where clients go, for each port of the listener."""
        number = count(listener.ports)
        if pool is None or not pool.admin_state_up:
            return [()] * number
        if not all(isinstance(member.port, int) for member in pool.members):
            return self._mapped(listener, pool, version)
        made = self._made.get((pool.id, version))
        if made is None:
            places = {
                each.ordinal: render_endpoint(each.address, each.port)
                for each in pool.members
                if isinstance(each.port, int)
            }
            gone = frozenset(member.id for member in pool.members if member.id in self.out)
            made = self._made[pool.id, version] = tuple(map(places.__getitem__, self._table(pool, version, gone)))
        return [made] * number

    def whole(self, pool: lb.Pool | None, version: int) -> tuple[str, ...]:
        """Where clients go with what is for no port: addresses."""
        if pool is None or not pool.admin_state_up:
            return ()
        places = {member.ordinal: str(member.address) for member in pool.members}
        gone = frozenset(member.id for member in pool.members if member.id in self.out)
        return tuple(map(places.__getitem__, self._table(pool, version, gone)))

    def _mapped(self, listener: lb.Listener, pool: lb.Pool, version: int) -> list[tuple[str, ...]]:
        """A member may be down at one of its ports and serve at the others."""
        numbers = tuple(expand(listener.ports))
        found = []
        at = {member: targets(member.port, numbers) for member in pool.members}
        for index in range(len(numbers)):
            ports = {member: there[index] for member, there in at.items() if index < len(there)}
            gone = frozenset(
                member.id
                for member in pool.members
                if member not in ports or member.id in self.out or (member.id, ports[member]) in self.out
            )
            places = {member.ordinal: render_endpoint(member.address, port) for member, port in ports.items()}
            found.append(tuple(map(places.__getitem__, self._table(pool, version, gone))))
        return found

    def _table(self, pool: lb.Pool, version: int, gone: frozenset[str]) -> tuple[int, ...]:
        key = (pool.id, version, gone)
        if key not in self._buckets:
            self._buckets[key] = _shortened(pool, lb.slots_of(pool, version, gone))
        return self._buckets[key]


def _shortened(pool: lb.Pool, slots: tuple[int, ...]) -> tuple[int, ...]:
    """The slots as buckets of an Open vSwitch group: as few as lead every client to the same member.

    A group without selection fields (`dp_hash`) picks by the low bits of the hash, so a table that repeats itself is
    the same as its first part. With selection fields a bucket wins by its number (rendezvous hashing, in `hash` groups
    of ovs-actions(7)): there the number of buckets has to stay as it is, or clients would move.
    """
    return slots if pool.goes_by_source and len(set(slots)) > 1 else shortest_table(slots)

"""Which member of a pool each hash value leads to: the pool's own tables (`model/slots.py`), a tier at a time."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from fairlead.model.loadbalancer import Member, Pool
from fairlead.model.shared_slots import assign_slots
from fairlead.model.shares import LARGEST, SMALLEST
from fairlead.model.slots import SlotTable, deal, lend
from fairlead.model.steps import Steps


def with_slots(pool: Pool, before: Sequence[Member] | None = None, smallest: int = SMALLEST) -> Steps[Pool]:
    """The pool with slot tables for its members, if those `before` had the tables that it has.

    Slots are given here, when the model is written, and never when it is compiled: a restart changes nothing. Where the
    client's address decides, slots are found by rendezvous hashing, in which more slots move clients: such a table has
    its full size from the beginning. `smallest` is the least size of others, a power of two.
    """
    old = replace(pool, members=pool.members if before is None else tuple(before))
    smallest = LARGEST if pool.goes_by_source else smallest
    tables = list[SlotTable]()
    for tier in TIERS:
        table = yield from deal(
            _table(old, *tier), _weights(old, *tier), _weights(pool, *tier), _away(pool, *tier), smallest
        )
        if table.ranks or table.homes:
            tables.append(table)
    return replace(pool, tables=tuple(tables), slots=())


TIERS = ((4, False), (4, True), (6, False), (6, True))
"""IP version, and whether backups: the members of a tier share a table, and no other tier sees what happens to them."""


def slots_of(pool: Pool, version: int, down: Container[str] = frozenset()) -> tuple[int, ...]:
    """The ordinal of the member of this IP version that each hash value leads to; empty when nobody is left.

    The ordinary ones serve, and the backups when none of these does (Octavia API reference, member `backup`).
    """
    for backup in (False, True):
        if living := _weights(pool, version, backup, down):
            return lend(_table(pool, version, backup), living)
    return ()


def slots_near(
    pool: Pool, version: int, near: Iterable[Sequence[Member]], down: Container[str], everywhere: tuple[int, ...]
) -> tuple[int, ...]:
    """The same for clients that have these members near, the nearest ones first: the first of these lists in which
    a member serves is all they are led to. `everywhere` are the slots of clients that have none near (`slots_of`).

    An ordinary member anywhere goes before a backup that is near. It is the same table, so in each place too members
    that come or go take and leave no slot but theirs.
    """
    if not everywhere:
        return ()
    backup = next(member.backup for member in pool.members if member.ordinal == everywhere[0])
    for members in near:
        if living := _weights_of(members, version, backup, down):
            return tuple(living) if len(living) == 1 else lend(_table(pool, version, backup), living)
    return everywhere


def _weights(pool: Pool, version: int, backup: bool, down: Container[str] = frozenset()) -> dict[int, int]:
    return _weights_of(pool.members, version, backup, down)


def _weights_of(members: Iterable[Member], version: int, backup: bool, down: Container[str]) -> dict[int, int]:
    """By the ordinals of those of a tier that take connections."""
    return {
        m.ordinal: m.weight
        for m in members
        if m.address.version == version and m.backup == backup and m.takes_connections and m.id not in down
    }


def _away(pool: Pool, version: int, backup: bool) -> frozenset[int]:
    return frozenset(m.ordinal for m in _tier(pool, version, backup) if not m.takes_connections)


def _tier(pool: Pool, version: int, backup: bool) -> list[Member]:
    return [member for member in pool.members if member.address.version == version and member.backup == backup]


def _table(pool: Pool, version: int, backup: bool) -> SlotTable:
    for table in pool.tables:
        if (table.version, table.backup) == (version, backup):
            return table
    shared = _from_shared(pool, version, backup) if pool.slots else ()
    return SlotTable(version=version, backup=backup, ranks=(shared,) if shared else ())


def _from_shared(pool: Pool, version: int, backup: bool) -> tuple[int, ...]:
    """What this tier had of the one table that the pool has."""
    served = [member for member in _tier(pool, version, backup) if member.takes_connections]
    if served == _served(pool.members):
        return pool.slots
    return assign_slots(pool.slots, {member.ordinal: member.weight for member in served})


def _served(members: Sequence[Member]) -> list[Member]:
    takers = [member for member in members if member.takes_connections]
    return [member for member in takers if not member.backup] or takers

"""Slot tables of a pool (`model/documents/slots.py`): the member of each hash value, tier by tier."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from fairlead.model.documents.apportionment import MAX_SLOTS, MIN_SLOTS
from fairlead.model.documents.legacy_slots import assign_legacy_slots
from fairlead.model.documents.loadbalancer import Member, Pool
from fairlead.model.documents.slots import SlotTable, assign_slot_table, with_substitutes
from fairlead.runtime.steps import Steps


def with_slots(pool: Pool, before: Sequence[Member] | None = None, smallest: int = MIN_SLOTS) -> Steps[Pool]:
    """Return the pool with slot tables for its members; `before` are the members of its present tables.

    Slots are assigned when the model is written, never when it is compiled, so a restart changes nothing. If the client
    address selects the member, the table has its full size from the start, because growing such a table would move
    clients (it uses rendezvous hashing). `smallest` is the minimum size of other tables, a power of two.
    """
    old = replace(pool, members=pool.members if before is None else tuple(before))
    smallest = MAX_SLOTS if pool.hashes_source_only else smallest
    tables = list[SlotTable]()
    for tier in TIERS:
        table = yield from assign_slot_table(
            _table(old, *tier), _weights(old, *tier), _weights(pool, *tier), _draining_ordinals(pool, *tier), smallest
        )
        if table.ranks or table.homes:
            tables.append(table)
    return replace(pool, tables=tuple(tables), slots=())


TIERS = ((4, False), (4, True), (6, False), (6, True))
"""Tiers as (IP version, backup): members of a tier share a table, which is independent of other tiers."""


def slots_of(pool: Pool, version: int, down: Container[str] = frozenset()) -> tuple[int, ...]:
    """Return the member ordinal of each hash value for this IP version; empty if no member serves.

    Backups serve only if no ordinary member does (Octavia API reference, member `backup`).
    """
    for backup in (False, True):
        if living := _weights(pool, version, backup, down):
            return with_substitutes(_table(pool, version, backup), living)
    return ()


def slots_for_tiers(
    pool: Pool, version: int, near: Iterable[Sequence[Member]], down: Container[str], everywhere: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the slots for clients with these tiers of members, the nearest first. The first tier with a serving member
    is used alone. `everywhere` are the slots of clients without near members (`slots_of`).

    An ordinary member anywhere has priority over a near backup. The same table is used, so in every tier too a member
    that is added or removed moves only its own slots.
    """
    if not everywhere:
        return ()
    backup = next(member.backup for member in pool.members if member.ordinal == everywhere[0])
    for members in near:
        if living := _weights_of(members, version, backup, down):
            return tuple(living) if len(living) == 1 else with_substitutes(_table(pool, version, backup), living)
    return everywhere


def _weights(pool: Pool, version: int, backup: bool, down: Container[str] = frozenset()) -> dict[int, int]:
    return _weights_of(pool.members, version, backup, down)


def _weights_of(members: Iterable[Member], version: int, backup: bool, down: Container[str]) -> dict[int, int]:
    """Return ordinal -> weight of a tier's members that accept connections."""
    return {
        m.ordinal: m.weight
        for m in members
        if m.address.version == version and m.backup == backup and m.takes_connections and m.id not in down
    }


def _draining_ordinals(pool: Pool, version: int, backup: bool) -> frozenset[int]:
    return frozenset(m.ordinal for m in _tier(pool, version, backup) if not m.takes_connections)


def _tier(pool: Pool, version: int, backup: bool) -> list[Member]:
    return [member for member in pool.members if member.address.version == version and member.backup == backup]


def _table(pool: Pool, version: int, backup: bool) -> SlotTable:
    for table in pool.tables:
        if (table.version, table.backup) == (version, backup):
            return table
    shared = _from_legacy_table(pool, version, backup) if pool.slots else ()
    return SlotTable(version=version, backup=backup, ranks=(shared,) if shared else ())


def _from_legacy_table(pool: Pool, version: int, backup: bool) -> tuple[int, ...]:
    """Return this tier's part of the pool's old shared table."""
    served = [member for member in _tier(pool, version, backup) if member.takes_connections]
    if served == _serving_members(pool.members):
        return pool.slots
    return assign_legacy_slots(pool.slots, {member.ordinal: member.weight for member in served})


def _serving_members(members: Sequence[Member]) -> list[Member]:
    takers = [member for member in members if member.takes_connections]
    return [member for member in takers if not member.backup] or takers

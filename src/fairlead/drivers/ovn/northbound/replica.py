"""Replica of the managed rows, grouped by owner, kept in sync by the database's notifications.

The cost of a notification is proportional to its change: adding a member to a group of ten thousand costs one element.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, cast

from fairlead.dataplane.ovn import Exclusive, OvnRow
from fairlead.dataplane.ovn_chassis import ChassisVariable
from fairlead.dataplane.ovn_tables import (
    CHILDREN,
    SHARED_AT,
    SHARED_COLUMNS,
    SHARED_OF,
    SHARED_TEXTS,
    SharedElement,
    references,
)
from fairlead.dataplane.rows import Diff, Key
from fairlead.drivers.interface import DriverError, MissingReference
from fairlead.drivers.ovn.northbound.columns import Columns, decode_row, encode_columns, patch_columns, with_holder
from fairlead.drivers.ovn.northbound.drift import Drift, find_drift
from fairlead.drivers.ovn.northbound.marks import (
    Mark,
    Ownership,
    is_mark,
    parse_owner,
    patch_external_id_columns,
    read_address_mark,
    read_external_id_columns,
)
from fairlead.drivers.ovn.northbound.variables import COLUMN as VARIABLES
from fairlead.drivers.ovn.northbound.variables import Variables
from fairlead.drivers.ovsdb.values import Json, decode_map, decode_set, decode_uuids, encode_map, encode_set, patch_map
from fairlead.model.documents.owner import Owner

Tables: TypeAlias = Mapping[str, Mapping[str, Mapping[str, Json]]]
_Place: TypeAlias = tuple[str, str, str]
"""(UUID, column, element) of an element; (UUID, "", "") of a row itself."""
Expected: TypeAlias = Mapping[Owner, Mapping[Key, OvnRow | None]]
_EMPTY_SET: Json = ["set", []]
_EMPTY_MAP: Json = ["map", []]


@dataclass(slots=True)
class _RowState:
    """State of a row in addition to its value: its ownership and other external_ids."""

    table: str
    ownership: Ownership
    other_ids: Mapping[str, str]
    value: Exclusive | None = None
    """Value of an unmanaged row, which belongs to no owner's rows."""


class Replica:
    """Managed rows by owner, as in the database.

    Database contents are kept by UUID. Everything that an event affects is derived from them again, independent of the
    order of rows and references, with a cost proportional to the change and not to the size of the sets.
    """

    def __init__(self, mark: Mark) -> None:
        self.rows: dict[Owner, dict[Key, OvnRow]] = {}
        self.variables = Variables(mark)
        self._mark = mark
        self._entries: dict[str, _RowState] = {}
        self._holds: dict[tuple[str, str], set[str]] = {}
        """(UUID, column) -> contained UUIDs; or all texts of the column, once a mark assigns one to another owner."""
        self._held: dict[str, set[tuple[str, str]]] = {}
        """Inverse of `_holds`, for UUIDs."""
        self._text_owners: dict[str, dict[str, str]] = {}
        """UUID of a row with such texts -> text -> owner in its mark."""
        self._placed: dict[_Place, tuple[Owner, Key]] = {}
        self._orphans: dict[Owner, tuple[Key, str]] = {}
        self._fresh: dict[str, Exclusive] = {}
        self._touched: dict[_Place, None] = {}

    def uuids(self, owner: Owner) -> Callable[[Key], str]:
        """Return the mapping from keys to UUIDs. An orphan's row differs from the one derived from its key."""
        orphan = self._orphans.get(owner)
        if orphan is None:
            return self._mark.uuid
        return lambda key: orphan[1] if key == orphan[0] else self._mark.uuid(key)

    def check(self, owner: Owner, diff: Diff) -> None:
        """Check what the server does not: unique owners of addresses, and weak references. Raises DriverError."""
        for row in diff.creates.values():
            place = self._place_of_text(cast(OvnRow, row))
            other, _ = self._placed.get(place, (owner, ())) if place else (owner, ())
            if other != owner:
                raise DriverError(f"{row} belongs to {other}")
        for row in (*diff.creates.values(), *(update.after for update in diff.updates.values())):
            for key in references(cast(OvnRow, row)):
                if key in diff.deletes:
                    raise MissingReference(f"{row} refers to {diff.deletes[key]}, which the same change deletes")
                if self._orphans and self._is_orphan(self._mark.uuid(key)):
                    raise MissingReference(f"{row} refers to {' '.join(key)}, which has wrong ownership marks")
        for key in diff.deletes:
            if key[0] in ("Load_Balancer", "Logical_Switch_Port"):
                self._check_memberships(key, self.uuids(owner)(key), diff)

    def _place_of_text(self, row: OvnRow) -> _Place | None:
        """Return the place of an element that is no reference."""
        if isinstance(row, ChassisVariable):
            return self.variables.place(row.chassis, row.name)
        shared = SHARED_OF.get(type(row))
        if shared is None or shared.target is not None:
            return None
        holder = self._mark.uuid((shared.table, getattr(row, shared.holder)))
        return holder, shared.column, getattr(row, shared.element)

    def _is_orphan(self, uuid: str) -> bool:
        entry = self._entries.get(uuid)
        return entry is not None and entry.ownership.is_orphan

    def _check_memberships(self, key: Key, uuid: str, diff: Diff) -> None:
        for place in self._references_to(uuid):
            _, member = self._placed.get(place, (None, key))
            if member not in diff.deletes:
                raise MissingReference(f"{' '.join(member)} still refers to {' '.join(key)}")

    def change(self, tables: Tables, expected: Expected) -> dict[Owner, list[Drift]]:
        """Apply changes of the database, and return those that are not `expected`, by owner."""
        for table, changes in tables.items():
            for uuid, change in changes.items():
                self._learn(table, uuid, change)
        found = {place: self._derive(place) for place in self._touched}
        before: dict[tuple[Owner, Key], OvnRow | None] = {}
        for place, row in found.items():
            self._clear(place, row, before)
        for place, row in found.items():
            if row is not None:
                self._put(place, row, expected, before)
        self._touched.clear()
        self._fresh.clear()
        found_foreign: dict[Owner, list[Drift]] = {}
        for (owner, key), old in before.items():
            if self._is_drift(owner, key, old, expected):
                new = self.rows.get(owner, {}).get(key)
                found_foreign.setdefault(owner, []).extend(find_drift(key, old, new))
        return found_foreign

    # Contents of the database

    def _learn(self, table: str, uuid: str, change: Mapping[str, Json]) -> None:
        if table == SHARED_OF[ChassisVariable].table:
            for name in self.variables.learn(uuid, change):
                self._touch((uuid, VARIABLES, name))
            return
        match change:
            case {"initial": columns} | {"insert": columns}:
                self._enter(table, uuid, columns)
            case {"modify": columns} if uuid in self._entries:
                self._modify(self._entries[uuid], uuid, columns)
            case {"delete": _} if uuid in self._entries:
                self._leave(uuid)
            case _:
                pass  # a group of another writer

    def _enter(self, table: str, uuid: str, columns: Columns) -> None:
        claim = self._mark.read(table, uuid, columns)
        if claim is None:
            return
        self._entries[uuid] = _RowState(table, claim, {})
        marks = columns.get("external_ids", _EMPTY_MAP)
        self._set_ownership(uuid, claim, decode_map(marks))
        for column in SHARED_COLUMNS[table]:
            self._toggle(uuid, column, decode_uuids(columns.get(column, _EMPTY_SET)))
        shared = SHARED_TEXTS.get(table)
        if shared is not None and not claim.is_unmanaged:
            columns = {**columns, shared.column: encode_set(self._change_texts(uuid, shared, columns, ()))}
        self._keep(uuid, decode_row(claim.key, {**columns, **read_external_id_columns(marks)}, ""))
        self._touch_around(uuid)

    def _modify(self, entry: _RowState, uuid: str, difference: Columns) -> None:
        row = self._row(uuid)
        difference = dict(difference)
        for column in SHARED_COLUMNS[entry.table]:
            self._toggle(uuid, column, decode_uuids(difference.pop(column, _EMPTY_SET)))
        shared = SHARED_TEXTS.get(entry.table)
        if shared is not None and not entry.ownership.is_unmanaged:
            own: Mapping[str, Any] = {
                shared.column: self._change_texts(uuid, shared, difference, getattr(row, shared.column))
            }
            row = replace(row, **own)
            difference.pop(shared.column, None)
        marks = difference.pop("external_ids", _EMPTY_MAP)
        old = encode_columns(row)
        difference |= patch_external_id_columns(old, marks)
        if difference:
            row = decode_row(entry.ownership.key, patch_columns(old, difference), "")
        self._keep(uuid, row)
        self._touch((uuid, "", ""))
        self._change_marks(entry, uuid, marks, renamed=entry.ownership.is_unmanaged and "name" in difference)

    def _keep(self, uuid: str, row: Exclusive) -> None:
        entry = self._entries[uuid]
        entry.value = row if entry.ownership.is_unmanaged else None
        self._fresh[uuid] = row

    def _leave(self, uuid: str) -> None:
        entry = self._entries[uuid]
        self._touch_around(uuid)
        for column in SHARED_COLUMNS[entry.table]:
            self._toggle(uuid, column, tuple(self._holds.get((uuid, column), ())))
        shared = SHARED_TEXTS.get(entry.table)
        if shared is not None:
            self._holds.pop((uuid, shared.column), None)
        self._text_owners.pop(uuid, None)
        self._orphans.pop(entry.ownership.owner, None)
        del self._entries[uuid]

    def _change_marks(self, entry: _RowState, uuid: str, difference: Json, *, renamed: bool) -> None:
        """Apply changed ownership marks. A row without the mark is not received any more."""
        changed = {mark: text for mark, text in decode_map(difference).items() if is_mark(mark)}
        if changed or renamed:
            row, marks = self._row(uuid), patch_map(self._marks(entry), encode_map(changed))
            columns = {"external_ids": encode_map(marks), "name": getattr(row, "name", "")}
            claim = self._mark.read(entry.table, uuid, columns) or entry.ownership
            self._touch_around(uuid)
            self._set_ownership(uuid, claim, marks)
            self._keep(uuid, row)

    def _set_ownership(self, uuid: str, claim: Ownership, marks: Mapping[str, str]) -> None:
        entry = self._entries[uuid]
        self._orphans.pop(entry.ownership.owner, None)
        if claim.is_orphan:
            self._orphans[claim.owner] = claim.key, uuid
        entry.ownership, entry.other_ids = claim, {}
        implied = self._marks(entry)
        entry.other_ids = {mark: text for mark, text in marks.items() if implied.get(mark) != text and is_mark(mark)}

    def _marks(self, entry: _RowState) -> dict[str, str]:
        implied = (
            {}
            if entry.ownership.is_orphan or entry.ownership.is_unmanaged
            else self._mark.external_ids(entry.ownership.owner, entry.ownership.key)
        )
        return {**implied, **entry.other_ids}

    def _change_texts(
        self, uuid: str, shared: SharedElement, difference: Columns, own: Iterable[str]
    ) -> tuple[str, ...]:
        """Apply changed texts, and return those of the row itself, which no mark assigns to another owner."""
        changed = set(decode_set(difference.get(shared.column, _EMPTY_SET)))
        marks = decode_map(difference.get("external_ids", _EMPTY_MAP))
        given = {text: owner for mark, owner in marks.items() if (text := read_address_mark(mark)) is not None}
        place = uuid, shared.column
        if not given and place not in self._holds:
            return tuple(sorted({*own} ^ changed))
        texts = self._holds.setdefault(place, {*own})
        owners = self._text_owners.setdefault(uuid, {})
        texts ^= changed
        changed |= given.keys()
        for text, owner in given.items():
            if owners.get(text) == owner:
                del owners[text]
            else:
                owners[text] = owner
        for text in changed:
            self._touch((uuid, shared.column, text))
        kept = {*own} - changed
        return tuple(sorted(kept | {text for text in changed & texts if text not in owners}))

    def _toggle(self, uuid: str, column: str, targets: Iterable[str]) -> None:
        place = uuid, column
        holds = self._holds.setdefault(place, set())
        for target in targets:
            held = self._held.setdefault(target, set())
            holds ^= {target}
            held ^= {place}
            if not held:
                del self._held[target]
            self._touch(self._place_of(uuid, column, target))
        if not holds:
            del self._holds[place]

    def _touch(self, place: _Place) -> None:
        self._touched[place] = None

    def _touch_around(self, uuid: str) -> None:
        """Mark everything derived from this row for derivation."""
        self._touch((uuid, "", ""))
        for place in self._references_to(uuid):
            self._touch(place)
        table = self._entries[uuid].table
        shared = SHARED_TEXTS.get(table)
        for column in (*SHARED_COLUMNS[table], *([shared.column] if shared else [])):
            for element in self._holds.get((uuid, column), ()):
                self._touch(self._place_of(uuid, column, element))

    def _references_to(self, uuid: str) -> Iterator[_Place]:
        return (self._place_of(holder, column, uuid) for holder, column in self._held.get(uuid, ()))

    def _place_of(self, uuid: str, column: str, element: str) -> _Place:
        """Return the place of an element. A child row in its parent's set has the row's own place."""
        return (element, "", "") if (self._entries[uuid].table, column) in CHILDREN else (uuid, column, element)

    # Derived rows

    def _derive(self, place: _Place) -> tuple[Owner, Key, OvnRow] | None:
        uuid, column, element = place
        if column == VARIABLES:
            found = self.variables.find(uuid, element)
            return None if found is None else (found[0], found[1].key, found[1])
        entry = self._entries.get(uuid)
        if entry is None:
            return None
        if not column:
            if entry.ownership.is_unmanaged:
                return None
            return entry.ownership.owner, entry.ownership.key, with_holder(self._row(uuid), partial(self._holder, uuid))
        if element not in self._holds.get((uuid, column), ()):
            return None
        shared = SHARED_AT[entry.table, column]
        if shared.target is None:
            return self._derive_text(entry, shared, uuid, element)
        target = self._entries.get(element)
        if target is None:
            return None
        row: OvnRow = shared.row(**{shared.holder: entry.ownership.key[1], shared.element: target.ownership.key[1]})
        by_holder = (
            shared.owned_by_holder and not target.ownership.is_orphan
        )  # an orphan is deleted with all references to it
        whose = entry if entry.ownership.is_orphan or by_holder else target
        return whose.ownership.owner, row.key, row

    def _derive_text(
        self, entry: _RowState, shared: SharedElement, uuid: str, text: str
    ) -> tuple[Owner, Key, OvnRow] | None:
        mark = self._text_owners[uuid].get(text)
        if mark is None:
            return None
        row: OvnRow = shared.row(**{shared.holder: entry.ownership.key[1], shared.element: text})
        owner = entry.ownership.owner if entry.ownership.is_orphan else parse_owner(mark, f"{uuid}-{text}")
        return owner, row.key, row

    def _row(self, uuid: str) -> Exclusive:
        """Return the newest value, even if it is not placed yet."""
        if uuid in self._fresh:
            return self._fresh[uuid]
        if (value := self._entries[uuid].value) is not None:
            return value
        owner, key = self._placed[uuid, "", ""]
        return cast(Exclusive, self.rows[owner][key])

    def _holder(self, uuid: str) -> str:
        """Return the name of the row's parent; "" if it is not managed, an orphan, or ambiguous."""
        held = (
            (self._entries[holder], column) for holder, column in self._held.get(uuid, ()) if holder in self._entries
        )
        claims = [entry.ownership for entry, column in held if (entry.table, column) in CHILDREN]
        return claims[0].key[1] if len(claims) == 1 and not claims[0].is_orphan else ""

    def _clear(
        self, place: _Place, row: tuple[Owner, Key, OvnRow] | None, before: dict[tuple[Owner, Key], OvnRow | None]
    ) -> None:
        old = self._placed.get(place)
        if old is not None and (row is None or row[:2] != old):
            del self._placed[place]
            owner, key = old
            before.setdefault(old, self.rows[owner].pop(key))
            if not self.rows[owner]:
                del self.rows[owner]

    def _put(
        self,
        place: _Place,
        found: tuple[Owner, Key, OvnRow],
        expected: Expected,
        before: dict[tuple[Owner, Key], OvnRow | None],
    ) -> None:
        """Store a row, reusing an equal object that exists or that the writer holds."""
        owner, key, row = found
        rows = self.rows.setdefault(owner, {})
        old = rows.get(key)
        if old != row:
            before.setdefault((owner, key), old)
            wanted = expected.get(owner, {}).get(key)
            rows[key] = wanted if wanted == row else row
        self._placed[place] = owner, key

    def _is_drift(self, owner: Owner, key: Key, before: OvnRow | None, expected: Expected) -> bool:
        row = self.rows.get(owner, {}).get(key)
        mine = expected.get(owner, {})
        return row != before and not (key in mine and row == mine[key])

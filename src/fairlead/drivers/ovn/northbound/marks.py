"""Ownership marks of rows. No I/O.

* `external_ids` of a row name its owner. Load_Balancer_Group has no such column, so its name contains the mark.

* The UUID of a row is derived from its key, so references need no lookup, and a repeated insert creates no duplicate.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1
from urllib.parse import quote, unquote
from uuid import UUID, uuid5

from fairlead.dataplane.ovn import SOURCE_IPV6
from fairlead.dataplane.ovn_tables import (
    EXTERNAL_ID_COLUMNS,
    SHARED,
    SHARED_COLUMNS,
    TABLES,
    UNMANAGED_TABLES,
    unmanaged_name,
    unmanaged_uuid,
)
from fairlead.dataplane.rows import Key
from fairlead.drivers.ovsdb.protocol import TableMonitor
from fairlead.drivers.ovsdb.values import Json, decode_map, encode_map, patch_map
from fairlead.model.documents.owner import Owner

_UNMARKED = "Load_Balancer_Group"
"""Table without `external_ids`."""
_NAMESPACE = UUID("a3c1a5f4-6c0e-5d0b-9d5e-0b6f1a1c7e11")
_MARK, _OWNER, _KEY, _ADDRESS = "fairlead", "fairlead:owner", "fairlead:key", "fairlead:address:"
_VARIABLE = "fairlead:variable:"
_SAFE = "/:;@+=()[]{} "  # readable in a mark without quoting; the comma is the separator
_PLAIN = re.compile(r"[A-Za-z0-9_.\-~/:;@+=()\[\]{} ]*")  # needs no quoting


@dataclass(frozen=True, kw_only=True)
class Ownership:
    """Ownership of a row.

    `orphan`: the row has the mark, but is not the row that its key identifies, or names no valid owner. `foreign`: the
    row is unmanaged, and only managed rows in it, or references to it, matter.
    """

    owner: Owner
    key: Key
    is_orphan: bool = False
    is_unmanaged: bool = False


@dataclass(frozen=True)
class Mark:
    """Identifies the rows of one deployment."""

    deployment: str

    @cached_property
    def _namespace(self) -> UUID:
        return uuid5(_NAMESPACE, self.deployment)

    @cached_property
    def default_lock(self) -> str:
        """Lock name, an <id> (RFC 7047 section 3.1): letters, digits and underscores."""
        return f"fairlead_{self._namespace.hex}"

    def uuid(self, key: Key) -> str:
        """Return the name-based UUID of a key (RFC 9562 section 5.5); for an unmanaged row its own UUID.

        Computed without the `uuid` module, because a resync needs 100,000 of them.
        """
        foreign = unmanaged_uuid(key)
        if foreign is not None:
            return foreign
        digest = bytearray(sha1(self._namespace.bytes + join_mark(key).encode(), usedforsecurity=False).digest()[:16])
        digest[6] = digest[6] & 0x0F | 0x50
        digest[8] = digest[8] & 0x3F | 0x80
        text = digest.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def external_ids(self, owner: Owner, key: Key, words: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return a row's external_ids. `words` are additional values, by column."""
        said = {EXTERNAL_ID_COLUMNS[column]: text for column, text in (words or {}).items() if text}
        return {_MARK: self.deployment, _OWNER: str(owner), _KEY: join_mark(key), **said}

    @property
    def managed_condition(self) -> Json:
        """Condition on `external_ids` that selects managed rows."""
        return encode_map({_MARK: self.deployment})

    def group_name(self, owner: Owner, name: str) -> str:
        return join_mark((_MARK, self.deployment, str(owner), name))

    @property
    def shared_row_ids(self) -> dict[str, str]:
        """external_ids of a shared row that Fairlead created."""
        return {_MARK: self.deployment}

    def variable_mark(self, owner: Owner, name: str) -> dict[str, str]:
        """external_ids entry for a template variable."""
        return {_VARIABLE + name: join_mark((self.deployment, str(owner)))}

    def read_variable_owner(self, text: str, place: str) -> Owner | None:
        """Return a variable's owner; None if it is not managed; `orphan_owner` of this place for an invalid mark."""
        deployment, *owner = split_mark(text)
        return parse_owner(",".join(owner), place) if deployment == self.deployment else None

    def monitors(self) -> dict[str, TableMonitor]:
        """Return the monitored tables and conditions.

        Unmanaged rows are not received, except groups, identified only by their names, shared rows, and rows that may
        hold managed rows: switches, routers, and router-type ports.
        """
        ours = (["external_ids", "includes", self.managed_condition],)
        every: dict[str, tuple[Json, ...]] = dict.fromkeys(UNMANAGED_TABLES, ())
        wheres = {**every, "Logical_Switch_Port": (*ours, ["type", "==", "router"])}  # conditions are alternatives
        monitors = {}
        for name, table in TABLES.items():
            own = (each.name for each in table.columns if each.read and each.name not in EXTERNAL_ID_COLUMNS)
            if name == _UNMARKED:
                monitors[name] = TableMonitor(columns=(*own, *SHARED_COLUMNS[name]))
            else:
                columns = (*own, *SHARED_COLUMNS[name], "external_ids")
                monitors[name] = TableMonitor(columns=columns, where=wheres.get(name, ours))
        for shared in SHARED:
            if shared.value:
                monitors[shared.table] = TableMonitor(columns=(shared.holder, shared.column, "external_ids"))
        return monitors

    def read(self, table: str, uuid: str, columns: Mapping[str, Json]) -> Ownership | None:
        """Return the ownership of a row; None if it is not managed."""
        if table == _UNMARKED:
            match split_mark(columns.get("name", "")):
                case (word, deployment, owner, name) if (word, deployment) == (_MARK, self.deployment):
                    return self._read_ownership(uuid, owner, (table, name))
            return None
        marks = decode_map(columns.get("external_ids", ["map", []]))
        if marks.get(_MARK) != self.deployment:
            if table not in UNMANAGED_TABLES:
                return None
            name = unmanaged_name(columns.get("name", ""), uuid)
            return Ownership(owner=orphan_owner(uuid), key=(table, name), is_unmanaged=True)
        key = split_mark(marks.get(_KEY, ""))
        well_formed = key[0] == table and len(key) == TABLES[table].key_parts
        return self._read_ownership(uuid, marks.get(_OWNER, ""), (table, *(key[1:] if well_formed else (uuid,))))

    def _read_ownership(self, uuid: str, owner: str, key: Key) -> Ownership:
        try:
            claim = Ownership(owner=Owner.parse(owner), key=key)
        except ValueError:
            return Ownership(owner=orphan_owner(uuid), key=key, is_orphan=True)
        return claim if self.uuid(key) == uuid else Ownership(owner=orphan_owner(uuid), key=key, is_orphan=True)


def orphan_owner(place: str) -> Owner:
    """Owner that no model has, so that a resync deletes its rows."""
    return Owner.parse(f"loadbalancer/orphan-{place}")


def join_mark(parts: Iterable[str]) -> str:
    """Join parts as one readable text; the inverse of `split_mark`."""
    return ",".join(part if _PLAIN.fullmatch(part) else quote(part, safe=_SAFE) for part in parts)


def split_mark(text: str) -> tuple[str, ...]:
    return tuple(unquote(part) for part in text.split(","))


def read_address_mark(mark: str) -> str | None:
    """Return the address in an address mark's key; None for other keys."""
    return mark.removeprefix(_ADDRESS) if mark.startswith(_ADDRESS) else None


def read_variable_mark(mark: str) -> str | None:
    """Return the template variable in a variable mark's key; None for other keys."""
    return mark.removeprefix(_VARIABLE) if mark.startswith(_VARIABLE) else None


def variable_mark_key(name: str) -> str:
    return _VARIABLE + name


def read_external_id_columns(marks: Json) -> dict[str, Json]:
    """Return the columns that are stored as keys of `external_ids`."""
    said = decode_map(marks)
    return {column: said.get(word, "") for column, word in EXTERNAL_ID_COLUMNS.items()}


def patch_external_id_columns(columns: Mapping[str, Json], difference: Json) -> dict[str, Json]:
    """Return those columns after a "modify" of `external_ids`; only changed ones that the row has."""
    said, found = decode_map(difference), dict[str, Json]()
    for column, word in EXTERNAL_ID_COLUMNS.items():
        if word in said and column in columns:
            before = {word: columns[column]} if columns[column] else {}
            found[column] = patch_map(before, encode_map({word: said[word]})).get(word, "")
    return found


def is_mark(word: str) -> bool:
    """Whether this key of `external_ids` is an ownership mark, and not an address mark or a column."""
    return word not in EXTERNAL_ID_COLUMNS.values() and not word.startswith(_ADDRESS)


def parse_owner(text: str, place: str) -> Owner:
    """Parse the owner in a mark; `orphan_owner` of this place if it is invalid."""
    try:
        return Owner.parse(text)
    except ValueError:
        return orphan_owner(place)


def read_abilities(schema: Json) -> frozenset[str]:
    """Return the optional abilities of this OVN, from the Northbound schema (RFC 7047, 3.2)."""
    match schema:
        case {
            "tables": {"Load_Balancer": {"columns": {"selection_fields": {"type": {"key": {"enum": ["set", fields]}}}}}}
        }:
            return frozenset({SOURCE_IPV6} & set(fields))
        case _:
            return frozenset()


def decode_group_name(text: str) -> str:
    """Decode a group's name from its mark; "" for a renamed group, which is then repaired."""
    match split_mark(text):
        case (word, _, _, name) if word == _MARK:
            return name
        case _:
            return ""


def replace_external_id(word: str, text: str) -> list[Json]:
    """Mutations that replace a key of `external_ids`: an insert does not change an existing key (RFC 7047, 5.1)."""
    new = [["external_ids", "insert", encode_map({word: text})]] if text else []
    return [["external_ids", "delete", word], *new]


def replace_address_mark(address: str, owner: Owner | None) -> list[Json]:
    """Mutations of an address mark; None removes it, and the address is the port owner's then."""
    return replace_external_id(_ADDRESS + address, "" if owner is None else str(owner))

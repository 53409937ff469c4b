"""Rows of the OVN Northbound database as OVSDB has them, and back. No I/O.

`decode_row(encode_columns(row)) == row`: what was written reads as what the compiler made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias, cast

from fairlead.dataplane.ovn import Displaced, Element, Exclusive, VirtualService, pairs
from fairlead.dataplane.ovn_tables import SHARED_OF, TABLE_OF, TABLES, Form, Shared, Table
from fairlead.dataplane.rows import Key
from fairlead.drivers.ovn.marks import decode_group_name, join_text, split_text
from fairlead.drivers.ovsdb.values import (
    Json,
    decode_map,
    decode_optional,
    decode_set,
    encode_map,
    encode_optional,
    encode_set,
    patch_map,
)

Columns: TypeAlias = Mapping[str, Json]
_EMPTY_SET: Json = ["set", []]
_EMPTY_MAP: Json = ["map", []]


def _same(value: Any) -> Any:
    return value


def _new(old: Json, difference: Json) -> Json:
    return difference


def _patch_set(old: Json, difference: Json) -> Json:
    return encode_set(set(decode_set(old)) ^ set(decode_set(difference)))


def _patch_map(old: Json, difference: Json) -> Json:
    return encode_map(patch_map(decode_map(old), difference))


@lru_cache(maxsize=2**10)
def _one(options: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """All load balancers have the same options: one object in memory."""
    return options


def _decode_backends(text: str) -> tuple[str, ...]:
    """A slot table names few members many times: one text of each is kept."""
    known: dict[str, str] = {}
    backends = text.split(",") if text else []
    return tuple(map(known.setdefault, backends, backends))


def _decode_services(vips: Json) -> tuple[VirtualService, ...]:
    texts = decode_map(vips)
    return tuple(VirtualService(vip=vip, backends=_decode_backends(texts[vip])) for vip in sorted(texts))


def _encode_services(services: tuple[VirtualService, ...]) -> Json:
    return encode_map({service.vip: ",".join(service.backends) for service in services})


def _decode_displaced(text: str) -> Displaced | None:
    """None too for what somebody has made unreadable: then it is written again."""
    parts = split_text(text)
    return Displaced(*parts) if len(parts) == 2 else None


@dataclass(frozen=True, slots=True)
class _Codec:
    encode: Callable[[Any], Json] | None = _same
    """None where somebody else writes the column."""
    decode: Callable[[Json], Any] = _same
    absent: Json = ""
    """What a column that is left out means."""
    patch: Callable[[Json, Json], Json] = _new
    """The value after a "modify" with this difference."""


_CODECS: Mapping[Form, _Codec] = {
    Form.TEXT: _Codec(),
    Form.TITLE: _Codec(),
    Form.DISPLACED: _Codec(lambda displaced: join_text(displaced) if displaced else "", _decode_displaced),
    Form.NUMBER: _Codec(absent=0),
    Form.TEXT_OR_NONE: _Codec(
        lambda text: encode_optional(text or None), lambda value: decode_optional(value) or "", _EMPTY_SET
    ),
    Form.NUMBER_OR_NONE: _Codec(encode_optional, decode_optional, _EMPTY_SET),
    Form.TEXTS: _Codec(encode_set, decode_set, _EMPTY_SET, _patch_set),
    Form.PAIRS: _Codec(
        lambda value: encode_map(dict(value)), lambda value: _one(pairs(decode_map(value))), _EMPTY_MAP, _patch_map
    ),
    Form.RATE: _Codec(
        lambda rate: encode_map({"rate": rate}), lambda value: decode_map(value).get("rate", 0), _EMPTY_MAP, _patch_map
    ),
    Form.ENABLED: _Codec(
        lambda enabled: encode_optional(None if enabled else False),
        lambda value: decode_optional(value) is not False,
        _EMPTY_SET,
    ),
    Form.SERVICES: _Codec(_encode_services, _decode_services, _EMPTY_MAP, _patch_map),
    Form.MARK: _Codec(None, decode_group_name),
}
_Coded: TypeAlias = tuple[str, str, _Codec]


def _coded(table: Table, *, read: bool) -> tuple[_Coded, ...]:
    columns = (column for column in table.columns if column.read or not read)
    return tuple((column.name, column.field or column.name, _CODECS[column.form]) for column in columns)


_WRITTEN = {row: _coded(table, read=False) for row, table in TABLE_OF.items()}
_READ = {name: _coded(table, read=True) for name, table in TABLES.items()}
_PATCHES = {name: codec.patch for coded in _READ.values() for name, _, codec in coded}


def encode_columns(row: Exclusive) -> dict[str, Json]:
    """The columns that are this row's alone. A group has none: its name is its mark."""
    return {
        name: codec.encode(getattr(row, field))
        for name, field, codec in _WRITTEN[type(row)]
        if codec.encode is not None
    }


def decode_row(key: Key, columns: Columns, holder: str) -> Exclusive:
    """The row of this key; `holder` is the name of the row whose set it is in. A column left out has its default."""
    table = TABLES[key[0]]
    values = {field: codec.decode(columns.get(name, codec.absent)) for name, field, codec in _READ[table.name]}
    if table.holder is not None:
        values[table.holder.field] = holder
    if table.named_by_key:
        values["name"] = key[1]
    return cast(Exclusive, table.row(**values))


def patch_columns(columns: Columns, difference: Columns) -> dict[str, Json]:
    """The columns after a "modify": sets bear what came or went, maps what `patch_map` takes, others their value."""
    return {
        **columns,
        **{name: _PATCHES.get(name, _new)(columns.get(name), value) for name, value in difference.items()},
    }


def holder_of(row: Exclusive) -> tuple[tuple[str, str], str] | None:
    """The row, and its column, in whose set this row is; None for one that stands alone. The name may be unknown."""
    held = TABLE_OF[type(row)].holder
    return None if held is None else ((held.table, getattr(row, held.field)), held.column)


def with_holder(row: Exclusive, name: Callable[[], str]) -> Exclusive:
    """The row in the set of the one of this name, which is asked for where rows have one."""
    held = TABLE_OF[type(row)].holder
    if held is None:
        return row
    held_by: Mapping[str, Any] = {held.field: name()}
    return replace(row, **held_by)


def place_of(row: Element) -> tuple[Shared, tuple[str, str]]:
    """The shared column of which the row is an element, and the row that has the column."""
    shared = SHARED_OF[type(row)]
    return shared, (shared.table, getattr(row, shared.holder))

"""Codec between rows and columns of the OVN Northbound database. No I/O.

`decode_row(encode_columns(row)) == row`: a written row reads back as the compiler's value.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias, cast

from fairlead.dataplane.ovn import Element, Exclusive, StockRows, VirtualService, pairs
from fairlead.dataplane.ovn_tables import SHARED_OF, TABLE_OF, TABLES, Form, ManagedTable, SharedElement
from fairlead.dataplane.rows import Key
from fairlead.drivers.ovn.northbound.marks import decode_group_name, join_mark, split_mark
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
    """Share equal options, because all load balancers have the same."""
    return options


def _decode_backends(text: str) -> tuple[str, ...]:
    """Decode a slot table, sharing equal texts, because it has few different members."""
    known: dict[str, str] = {}
    backends = text.split(",") if text else []
    return tuple(map(known.setdefault, backends, backends))


def _decode_services(vips: Json) -> tuple[VirtualService, ...]:
    texts = decode_map(vips)
    return tuple(VirtualService(vip=vip, backends=_decode_backends(texts[vip])) for vip in sorted(texts))


def _encode_services(services: tuple[VirtualService, ...]) -> Json:
    return encode_map({service.vip: ",".join(service.backends) for service in services})


def _decode_displaced(text: str) -> StockRows | None:
    """Decode; None also for a malformed text, which is then repaired."""
    parts = split_mark(text)
    return StockRows(*parts) if len(parts) == 2 else None


@dataclass(frozen=True, slots=True)
class _Codec:
    encode: Callable[[Any], Json] | None = _same
    """None for a column that is written elsewhere."""
    decode: Callable[[Json], Any] = _same
    absent: Json = ""
    """Value of a missing column."""
    patch: Callable[[Json, Json], Json] = _new
    """Applies a "modify" difference."""


_CODECS: Mapping[Form, _Codec] = {
    Form.TEXT: _Codec(),
    Form.TITLE: _Codec(),
    Form.STOCK_ROWS: _Codec(lambda displaced: join_mark(displaced) if displaced else "", _decode_displaced),
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


def _coded(table: ManagedTable, *, read: bool) -> tuple[_Coded, ...]:
    columns = (column for column in table.columns if column.read or not read)
    return tuple((column.name, column.field or column.name, _CODECS[column.form]) for column in columns)


_WRITTEN = {row: _coded(table, read=False) for row, table in TABLE_OF.items()}
_READ = {name: _coded(table, read=True) for name, table in TABLES.items()}
_PATCHES = {name: codec.patch for coded in _READ.values() for name, _, codec in coded}


def encode_columns(row: Exclusive) -> dict[str, Json]:
    """Return the columns that belong to this row alone. A group has none, because its name is its mark."""
    return {
        name: codec.encode(getattr(row, field))
        for name, field, codec in _WRITTEN[type(row)]
        if codec.encode is not None
    }


def decode_row(key: Key, columns: Columns, holder: str) -> Exclusive:
    """Decode the row of this key. `holder` is the name of its parent row. A missing column has its default."""
    table = TABLES[key[0]]
    values = {field: codec.decode(columns.get(name, codec.absent)) for name, field, codec in _READ[table.name]}
    if table.parent is not None:
        values[table.parent.field] = holder
    if table.named_by_key:
        values["name"] = key[1]
    return cast(Exclusive, table.row(**values))


def patch_columns(columns: Columns, difference: Columns) -> dict[str, Json]:
    """Apply a "modify": a difference for sets, `patch_map` for maps, the new value for other columns."""
    return {
        **columns,
        **{name: _PATCHES.get(name, _new)(columns.get(name), value) for name, value in difference.items()},
    }


def holder_of(row: Exclusive) -> tuple[tuple[str, str], str] | None:
    """Return the parent row and column of a row; None for a root row. The name may be unknown."""
    held = TABLE_OF[type(row)].parent
    return None if held is None else ((held.table, getattr(row, held.field)), held.column)


def with_holder(row: Exclusive, name: Callable[[], str]) -> Exclusive:
    """Return the row with its parent's name, which is requested only for rows with a parent."""
    held = TABLE_OF[type(row)].parent
    if held is None:
        return row
    held_by: Mapping[str, Any] = {held.field: name()}
    return replace(row, **held_by)


def place_of(row: Element) -> tuple[SharedElement, tuple[str, str]]:
    """Return the column, with elements of several owners, that holds this element, and the key of its row."""
    shared = SHARED_OF[type(row)]
    return shared, (shared.table, getattr(row, shared.holder))

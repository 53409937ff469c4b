"""What somebody else did to a row of ours, in words: which row, which column, what it was and what it is.

Tenants choose some of the values, and so does everybody else who writes there: each is cut to a length and cleaned.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairlead.dataplane.ovn import Element, Exclusive, OvnRow
from fairlead.dataplane.ovn_tables import Shared
from fairlead.dataplane.rows import Key
from fairlead.drivers.ovn.columns import encode_columns, holder_of, place_of
from fairlead.drivers.ovsdb.values import Json
from fairlead.model.texts import shorten

LONGEST_VALUE = 60
LONGEST_NAME = 100
MOST_TOLD = 3
"""Changes of one owner that are told at once; the others are counted."""
WHOLE = "row"
"""In the place of a column, for a row that came or went."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignChange:
    table: str
    name: str
    column: str
    before: str
    after: str
    """"" is nothing."""

    def __str__(self) -> str:
        words = f"{self.table} {shorten(self.name, LONGEST_NAME)}"
        if self.column == WHOLE:
            return f"{words} was {'deleted' if self.before else 'made'}"
        before, after = (shorten(text, LONGEST_VALUE) or "nothing" for text in (self.before, self.after))
        return f"{words}: {self.column} was {before}, is {after}"


def describe_all(changes: Sequence[ForeignChange]) -> str:
    told = "; ".join(map(str, changes[:MOST_TOLD]))
    return f"{told}; and {len(changes) - MOST_TOLD} more" if len(changes) > MOST_TOLD else told


def foreign_changes(key: Key, before: OvnRow | None, after: OvnRow | None) -> Iterator[ForeignChange]:
    """A change for each column that differs."""
    row = after or before
    if row is None:
        return
    if isinstance(row, Element):
        shared, (table, name) = place_of(row)
        texts = {"before": _element(shared, before), "after": _element(shared, after)}
        yield ForeignChange(table=table, name=name, column=shared.column, **texts)
        return
    table, name = key[0], " ".join(key[1:])
    if not isinstance(before, Exclusive) or not isinstance(after, Exclusive):
        texts = {"before": WHOLE if before else "", "after": WHOLE if after else ""}
        yield ForeignChange(table=table, name=name, column=WHOLE, **texts)
        return
    old, new = _columns(before), _columns(after)
    for column in sorted(old.keys() & new.keys()):
        if old[column] != new[column]:
            was, now = _difference(old[column], new[column])
            yield ForeignChange(table=table, name=name, column=column, before=was, after=now)


def _element(shared: Shared, row: OvnRow | None) -> str:
    if row is None:
        return ""
    element: str = getattr(row, shared.element)
    return f"{element}={','.join(getattr(row, shared.value))}" if shared.value else element


def _columns(row: Exclusive) -> dict[str, Json]:
    """And who holds it: a row that somebody put elsewhere."""
    place = holder_of(row)
    holder = {} if place is None else {f"{place[0][0]}.{place[1]}": place[0][1]}
    return {"name": row.name, **holder} if not (found := encode_columns(row)) else {**found, **holder}  # type: ignore[union-attr]


def _difference(old: Json, new: Json) -> tuple[str, str]:
    """Of sets and maps, what differs: of a thousand VIPs one was changed."""
    before, after = _elements(old), _elements(new)
    common = set(before) & set(after)
    return tuple(", ".join(text for text in texts if text not in common) for texts in (before, after))  # type: ignore[return-value]


def _elements(value: Json) -> list[str]:
    match value:
        case ["set", [*elements]]:
            return sorted(map(str, elements))
        case ["map", [*pairs]]:
            return sorted(f"{key}={text}" for key, text in pairs)
        case _:
            return [str(value)]

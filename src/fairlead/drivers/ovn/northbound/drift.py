"""Descriptions of drift: row, column, previous and present value.

Values may come from tenants or other writers, so they are truncated and cleaned.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairlead.dataplane.ovn import Element, Exclusive, OvnRow
from fairlead.dataplane.ovn_tables import SharedElement
from fairlead.dataplane.rows import Key
from fairlead.drivers.ovn.northbound.columns import encode_columns, holder_of, place_of
from fairlead.drivers.ovsdb.values import Json
from fairlead.model.documents.sanitize import shorten

MAX_VALUE_LENGTH = 60
MAX_NAME_LENGTH = 100
MAX_DESCRIBED = 3
"""Maximum changes of one owner in one description; the others are counted."""
WHOLE_ROW = "row"
"""Pseudo column for a row that was created or deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    table: str
    name: str
    column: str
    before: str
    after: str
    """"" for a missing value."""

    def __str__(self) -> str:
        words = f"{self.table} {shorten(self.name, MAX_NAME_LENGTH)}"
        if self.column == WHOLE_ROW:
            return f"{words} was {'deleted' if self.before else 'created'}"
        before, after = (shorten(text, MAX_VALUE_LENGTH) or "empty" for text in (self.before, self.after))
        return f"{words}: {self.column} was {before}, is {after}"


def describe_drift(changes: Sequence[Drift]) -> str:
    told = "; ".join(map(str, changes[:MAX_DESCRIBED]))
    return f"{told}; and {len(changes) - MAX_DESCRIBED} more" if len(changes) > MAX_DESCRIBED else told


def find_drift(key: Key, before: OvnRow | None, after: OvnRow | None) -> Iterator[Drift]:
    """Yield a change for each column that differs."""
    row = after or before
    if row is None:
        return
    if isinstance(row, Element):
        shared, (table, name) = place_of(row)
        texts = {"before": _element(shared, before), "after": _element(shared, after)}
        yield Drift(table=table, name=name, column=shared.column, **texts)
        return
    table, name = key[0], " ".join(key[1:])
    if not isinstance(before, Exclusive) or not isinstance(after, Exclusive):
        texts = {"before": WHOLE_ROW if before else "", "after": WHOLE_ROW if after else ""}
        yield Drift(table=table, name=name, column=WHOLE_ROW, **texts)
        return
    old, new = _columns(before), _columns(after)
    for column in sorted(old.keys() & new.keys()):
        if old[column] != new[column]:
            was, now = _difference(old[column], new[column])
            yield Drift(table=table, name=name, column=column, before=was, after=now)


def _element(shared: SharedElement, row: OvnRow | None) -> str:
    if row is None:
        return ""
    element: str = getattr(row, shared.element)
    return f"{element}={','.join(getattr(row, shared.value))}" if shared.value else element


def _columns(row: Exclusive) -> dict[str, Json]:
    """Return the columns of a row, with its parent, to detect moved rows."""
    place = holder_of(row)
    holder = {} if place is None else {f"{place[0][0]}.{place[1]}": place[0][1]}
    return {"name": row.name, **holder} if not (found := encode_columns(row)) else {**found, **holder}  # type: ignore[union-attr]


def _difference(old: Json, new: Json) -> tuple[str, str]:
    """Reduce sets and maps to their differences: a load balancer may have a thousand VIPs."""
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

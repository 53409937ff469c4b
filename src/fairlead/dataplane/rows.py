"""What every dataplane's rows have in common: a stable key, a canonical text, and one way to compare.

A key names the row, whatever the database calls it. Equal rows mean the same thing, so `==` is the whole comparison.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Key: TypeAlias = tuple[str, ...]


class Row(Protocol):
    """Frozen; `str()` is its canonical text, one line, as a case file and `fairlead plan` print it."""

    def __str__(self) -> str: ...


class KeyedRow(Row, Protocol):
    """One that knows its key."""

    @property
    def key(self) -> Key: ...


Rows: TypeAlias = Mapping[Key, Row]
NO_ROWS: Rows = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    before: Row
    after: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Creates and updates are in key order, deletes in reverse: what is referred to exists while it is."""

    creates: Mapping[Key, Row]
    updates: Mapping[Key, Update]
    deletes: Mapping[Key, Row]

    def __bool__(self) -> bool:
        return bool(self.creates or self.updates or self.deletes)

    def __str__(self) -> str:
        return "\n".join(
            [
                *(f"+ {row}" for row in self.creates.values()),
                *(f"~ {update.before}\n  -> {update.after}" for update in self.updates.values()),
                *(f"- {row}" for row in self.deletes.values()),
            ]
        )

    @property
    def counts(self) -> str:
        """`+1 ~0 -2`, for a log line."""
        return f"+{len(self.creates)} ~{len(self.updates)} -{len(self.deletes)}"


NO_CHANGE = Diff(creates={}, updates={}, deletes={})


def diff(desired: Rows, applied: Rows) -> Diff:
    """What turns `applied` into `desired`; a row that is already right is not in it."""
    if desired == applied:
        return NO_CHANGE
    keys = sorted(desired)
    return Diff(
        creates={key: desired[key] for key in keys if key not in applied},
        updates={
            key: Update(before=applied[key], after=desired[key])
            for key in keys
            if key in applied and applied[key] != desired[key]
        },
        deletes={key: applied[key] for key in sorted(applied, reverse=True) if key not in desired},
    )

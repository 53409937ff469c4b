"""Common parts of every dataplane's rows: a stable key, a canonical text, and one way to compare.

A key names the row independently of the database's ids. Equal rows mean the same, so `==` is the whole comparison.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Key: TypeAlias = tuple[str, ...]


class Row(Protocol):
    """Frozen row; `str()` is its canonical text, one line, as in case files and `fairlead plan`."""

    def __str__(self) -> str: ...


class KeyedRow(Row, Protocol):
    """Row that has its key."""

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
    """Difference of rows. Creates and updates are in key order, deletes in reverse, so referenced rows exist."""

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
        """Counts for a log line: `+1 ~0 -2`."""
        return f"+{len(self.creates)} ~{len(self.updates)} -{len(self.deletes)}"


NO_CHANGE = Diff(creates={}, updates={}, deletes={})


def diff(desired: Rows, applied: Rows) -> Diff:
    """Return the changes from `applied` to `desired`; rows that are already right are not included."""
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

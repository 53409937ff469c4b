"""Strict in-memory driver, shipped with the product: it rejects everything that a real one would.

It rejects duplicate rows, updates and deletes of missing rows, references to missing rows, and deletes of referenced
rows.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum, auto
from typing import Any

from fairlead.dataplane.rows import NO_ROWS, Diff, Key, Row, Rows
from fairlead.drivers.interface import DriverError, MissingReference
from fairlead.model.documents.owner import Owner


class Fault(Enum):
    """Outcome of one apply."""

    NONE = auto()
    REJECTED = auto()
    """Rejected: nothing was changed."""
    ANSWER_LOST = auto()
    """Committed, but the answer is lost: the caller gets the same error."""


class FakeDriver:
    """Driver for any dataplane; `references` returns the keys of the rows that a row needs.

    `fault` is called at every apply. `applies` counts those that changed something.
    """

    def __init__(
        self, references: Callable[[Any], Iterable[Key]], fault: Callable[[], Fault] = lambda: Fault.NONE
    ) -> None:
        self.rows: dict[Owner, dict[Key, Row]] = {}
        self.applies = 0
        self.listings = 0
        self._references, self._fault = references, fault

    async def read_all(self) -> Mapping[Owner, Rows]:
        self.listings += 1
        return {owner: dict(rows) for owner, rows in self.rows.items()}

    async def read(self, owner: Owner) -> Rows:
        return dict(self.rows.get(owner, NO_ROWS))

    async def apply(self, owner: Owner, diff: Diff) -> None:
        self._transact({owner: diff})

    def _transact(self, diffs: Mapping[Owner, Diff]) -> None:
        fault = self._fault()
        if fault is Fault.REJECTED:
            raise DriverError("refused")
        after = {owner: self._after(self.rows.get(owner, {}), diff) for owner, diff in diffs.items()}
        rows = {**self.rows, **after}
        for owner, diff in diffs.items():
            others = [its for other, its in rows.items() if other != owner]
            self._check(rows[owner], diff, {key: row for its in others for key, row in its.items()})
        self.rows = {owner: its for owner, its in rows.items() if its or owner not in diffs}
        self.applies += 1
        if fault is Fault.ANSWER_LOST:
            raise DriverError("the connection was lost")

    def _after(self, mine: Mapping[Key, Row], diff: Diff) -> dict[Key, Row]:
        result = dict(mine)
        for key, row in diff.creates.items():
            if key in result:
                raise DriverError(f"duplicate row {row}")
            result[key] = row
        for key, update in diff.updates.items():
            if result.get(key) != update.before:
                raise DriverError(f"no such row to update: {update.before}")
            result[key] = update.after
        for key, deleted in diff.deletes.items():
            if result.pop(key, None) != deleted:
                raise DriverError(f"no such row to delete: {deleted}")
        return result

    def _check(self, mine: Mapping[Key, Row], diff: Diff, others: Mapping[Key, Row]) -> None:
        for key in diff.creates:
            if key in others:
                raise DriverError(f"{others[key]} belongs to another owner")
        for row in mine.values():
            for key in self._references(row):
                if key not in mine and key not in others:
                    raise MissingReference(f"{row} refers to {' '.join(key)}, which does not exist")
        for row in others.values():
            for key in self._references(row):
                if key in diff.deletes:
                    raise MissingReference(f"{row} still refers to {' '.join(key)}")


class FakeBulkDriver(FakeDriver):
    """Fake driver that applies several owners in one transaction."""

    async def read_some(self, owners: Collection[Owner]) -> Mapping[Owner, Rows]:
        return {owner: dict(self.rows.get(owner, NO_ROWS)) for owner in owners}

    async def apply_all(self, diffs: Mapping[Owner, Diff]) -> None:
        self._transact(diffs)

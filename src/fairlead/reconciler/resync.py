"""Full comparison of model and dataplane at one moment, owner by owner, and the mass-deletion guard.

The comparison yields to the event loop after each slice, so the server goes on answering requests and applying changes.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from typing import NamedTuple

from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.rows import NO_CHANGE, NO_ROWS, Diff, Rows, diff
from fairlead.drivers.interface import NotSynced
from fairlead.model.documents.owner import Kind, Owner, creation_order
from fairlead.model.registry.changeset import owners_with_rows
from fairlead.model.snapshot import Snapshot

MASS_DELETE_MIN_OWNERS = 20
MASS_DELETE_MIN_SHARE = 0.3
MAX_STEP_SECONDS = 0.01
"""Maximum seconds for the comparison to hold the event loop."""


class MassDelete(Exception):
    """Raised when a resync would delete the rows of too many owners; an operator has to confirm (`force`).

    The limit is 30 % of the owners if there are more than 20, not counting owners that the store records as deleted.
    With an empty store (revision 0) any deletion raises, because the server may be using the wrong store. The resync
    has repaired all other differences.
    """

    def __init__(self, words: str, meant: list[Owner]) -> None:
        super().__init__(words)
        self.recorded_deletions = meant
        """Owners that the store records as deleted."""


class OwnerComparison(NamedTuple):
    """Comparison of one owner: desired and actual rows with their difference, or the reason why compiling failed."""

    owner: Owner
    desired: Rows
    actual: Rows
    change: Diff
    failure: Exception | None = None


class FullComparison:
    def __init__(
        self,
        kinds: Container[Kind],
        compile_owner: Callable[[Snapshot, Owner], Awaitable[Rows]],
        clock: Callable[[], float],
        logger: logging.Logger,
    ) -> None:
        """`compile_owner` raises Unsupported and Unheard."""
        self._kinds, self._compile, self._clock, self._logger = kinds, compile_owner, clock, logger

    async def compare(self, snapshot: Snapshot, actual: Mapping[Owner, Rows]) -> AsyncIterator[OwnerComparison]:
        """Yield each owner of the model or the dataplane, in slices. Owners that cannot be compiled stay unchanged."""
        await asyncio.sleep(0)  # building each of the lists below is a slice of its own
        owners = [owner for owner in owners_with_rows(snapshot) if owner.kind in self._kinds]
        await asyncio.sleep(0)
        orphans = sorted(actual.keys() - set(owners), key=creation_order, reverse=True)
        await asyncio.sleep(0)
        began = self._clock()
        for owner in (*owners, *orphans):
            yield await self._compare_one(snapshot, owner, actual.get(owner, NO_ROWS))
            if self._clock() - began > MAX_STEP_SECONDS:
                await asyncio.sleep(0)
                began = self._clock()

    async def _compare_one(self, snapshot: Snapshot, owner: Owner, actual: Rows) -> OwnerComparison:
        try:
            desired = await self._compile(snapshot, owner)
        except Exception as failure:
            if not isinstance(failure, Unsupported | NotSynced):
                self._logger.exception("BUG: comparing %s failed (please report)", owner)
            return OwnerComparison(owner, NO_ROWS, actual, NO_CHANGE, failure)
        return OwnerComparison(owner, desired, actual, diff(desired, actual))


async def guard_mass_deletion(
    snapshot: Snapshot, gone: list[Owner], owners: int, deleted: Callable[[], Awaitable[Container[Owner]]]
) -> list[Owner]:
    """Mass-deletion guard: return `gone`, the owners to delete.

    Raises MassDelete, with the owners that the store records as deleted. These are intended and may be deleted.
    """

    def holds(some: list[Owner]) -> bool:
        many = owners > MASS_DELETE_MIN_OWNERS and len(some) > MASS_DELETE_MIN_SHARE * owners
        return bool(some) and (many or snapshot.revision == 0)

    if holds(gone):
        meant = await deleted()
        strange = [owner for owner in gone if owner not in meant]
        if holds(strange):
            words = f"a resync would delete the rows of {len(strange)} of {owners} owners"
            raise MassDelete(words, [owner for owner in gone if owner in meant])
    return gone

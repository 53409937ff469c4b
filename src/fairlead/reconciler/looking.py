"""A look at everything: the model and the dataplane as they were at one moment, owner by owner, and what holds a look
back that would delete too much. It works in slices, so that doors answer and changes are applied while it goes on."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from typing import NamedTuple

from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.rows import NO_CHANGE, NO_ROWS, Diff, Rows, diff
from fairlead.drivers.interface import Unheard
from fairlead.model.owner import Kind, Owner, creation_order
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import owners_with_rows

BRAKE_OWNERS = 20
BRAKE_SHARE = 0.3
SLICE = 0.01
"""Seconds for which a look at everything may keep the event loop."""


class MassDelete(Exception):
    """A resync would delete more than 30 % of more than 20 owners that the store does not know to have deleted, or any
    because nothing was ever stored (is it the right store?): somebody has to say that this is meant.

    Everything else that the resync found has been set right all the same.
    """

    def __init__(self, words: str, meant: list[Owner]) -> None:
        super().__init__(words)
        self.meant = meant
        """Those that the store does know to have deleted."""


class Compared(NamedTuple):
    """An owner at one moment: what it should have and what it had; or why it could not be compiled."""

    owner: Owner
    desired: Rows
    actual: Rows
    change: Diff
    failure: Exception | None = None


class Looking:
    def __init__(
        self,
        kinds: Container[Kind],
        compile_owner: Callable[[Snapshot, Owner], Awaitable[Rows]],
        clock: Callable[[], float],
        logger: logging.Logger,
    ) -> None:
        """`compile_owner` raises Unsupported and Unheard."""
        self._kinds, self._compile, self._clock, self._logger = kinds, compile_owner, clock, logger

    async def compare(self, snapshot: Snapshot, actual: Mapping[Owner, Rows]) -> AsyncIterator[Compared]:
        """Each owner of the model or of the dataplane, in slices. What cannot be compiled is left as it is."""
        await asyncio.sleep(0)  # these lists are slices of their own
        owners = [owner for owner in owners_with_rows(snapshot) if owner.kind in self._kinds]
        await asyncio.sleep(0)
        orphans = sorted(actual.keys() - set(owners), key=creation_order, reverse=True)
        await asyncio.sleep(0)
        began = self._clock()
        for owner in (*owners, *orphans):
            yield await self._compare_one(snapshot, owner, actual.get(owner, NO_ROWS))
            if self._clock() - began > SLICE:
                await asyncio.sleep(0)
                began = self._clock()

    async def _compare_one(self, snapshot: Snapshot, owner: Owner, actual: Rows) -> Compared:
        try:
            desired = await self._compile(snapshot, owner)
        except Exception as failure:
            if not isinstance(failure, Unsupported | Unheard):
                self._logger.exception("a mistake of Fairlead's own in %s", owner)
            return Compared(owner, NO_ROWS, actual, NO_CHANGE, failure)
        return Compared(owner, desired, actual, diff(desired, actual))


async def brake(
    snapshot: Snapshot, gone: list[Owner], owners: int, deleted: Callable[[], Awaitable[Container[Owner]]]
) -> list[Owner]:
    """Those that may go: all. Raises MassDelete, which has those that the store knows to have deleted: they are meant,
    and go all the same."""

    def holds(some: list[Owner]) -> bool:
        many = owners > BRAKE_OWNERS and len(some) > BRAKE_SHARE * owners
        return bool(some) and (many or snapshot.revision == 0)

    if holds(gone):
        meant = await deleted()
        strange = [owner for owner in gone if owner not in meant]
        if holds(strange):
            words = f"a resync would delete the rows of {len(strange)} of {owners} owners"
            raise MassDelete(words, [owner for owner in gone if owner in meant])
    return gone

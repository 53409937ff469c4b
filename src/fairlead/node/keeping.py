"""A dataplane of this node: the reconciler of its rows, by the slice of the model that the node is given.

It is the same loop as a server's. What it could not apply is reported. What is applied outlives the agent.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Protocol

from fairlead.dataplane.interface import Dataplane
from fairlead.drivers.interface import Driver, DriverError
from fairlead.model.owner import Owner
from fairlead.model.snapshot import Snapshot
from fairlead.node.channel import Slice
from fairlead.node.complaints import Complaints
from fairlead.node.reporting import Reports
from fairlead.reconciler.looking import MassDelete
from fairlead.reconciler.loop import Reconciler

LOG = logging.getLogger(__name__)
AGAIN = 5.0
"""Seconds until what an earlier agent left is looked for again."""


class NodeDriver(Driver, Protocol):
    """A driver of rows that are there without the agent too."""

    async def open(self) -> None:
        """Find what an earlier agent left. Raises DriverError, OSError."""

    async def close(self) -> None:
        """The rows stay."""


async def _nothing() -> None:
    return


class Keeping:
    def __init__(
        self,
        dataplane: Dataplane,
        given: Slice,
        reports: Reports,
        driver: NodeDriver,
        view: Callable[[], Snapshot] | None = None,
        failure_of: Callable[[Owner], str | None] = lambda _: None,
    ) -> None:
        """`view` is the slice with what this node observes by itself. `failure_of` says why what was applied of an
        owner does not work all the same; None if it does."""
        self._dataplane = dataplane
        self._given = given
        self._reports = reports
        self._driver = driver
        self._failure_of = failure_of
        self.found = asyncio.Event()
        """Set when it is known what an earlier agent left."""
        self._reconciler = Reconciler(
            dataplane=dataplane, driver=driver, snapshot=view or (lambda: given.snapshot), clock=time.monotonic
        )
        self._reconciler.follow(self._tell)
        given.subscribe(self._reconciler.mark)

    def mark(self, owners: Iterable[Owner]) -> None:
        """They have to be looked at again."""
        self._reconciler.mark(owners)

    def tell(self, owners: Iterable[Owner]) -> None:
        """Another thing is true of these owners, though nothing was applied."""
        for owner in owners:
            self._tell(owner)

    async def resync(self) -> None:
        """Believe nothing of what was applied. Raises DriverError."""
        try:
            await self._reconciler.resync()
        except MassDelete as brake:
            LOG.error("%s: they go on; is this node given the right model?", brake)

    async def tried(self) -> None:
        """Wait until each row that the last resync found wrong was applied, or has failed."""
        await self._reconciler.tried.wait()

    async def run(
        self,
        *beside: Callable[[], Coroutine[None, None, None]],
        observed: Callable[[], Awaitable[object]] = _nothing,
    ) -> None:
        """Until it is cancelled. No row is written before `observed` has returned: then what the node observes by
        itself is known. What goes on `beside` it starts then too, and what was there is found by then."""
        await self._given.ready.wait()
        try:
            await self._open()
            await observed()
            async with asyncio.TaskGroup() as tasks:
                for each in (self._reconciler.run, *beside):
                    tasks.create_task(each())
        finally:
            await asyncio.shield(self._driver.close())

    async def _open(self) -> None:
        """Nothing else that the agent does waits for it, or ends with it."""
        complaints = Complaints(f"finding what this node has of {self._dataplane.title}")
        while True:
            try:
                await self._driver.open()
                await self.resync()
            except (DriverError, OSError) as error:
                complaints.say(error, AGAIN)
                await asyncio.sleep(AGAIN)
                continue
            complaints.end()
            self.found.set()
            return

    def _tell(self, owner: Owner) -> None:
        error = self._reconciler.applied(owner).error or self._failure_of(owner)
        self._reports.failed(self._dataplane.name, owner, error)

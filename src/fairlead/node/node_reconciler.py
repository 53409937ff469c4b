"""Reconciler of one dataplane on this node, by the node's slice.

It runs the same loop as a server, and reports owners that it could not apply. Applied rows outlive the agent.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Protocol

from fairlead.dataplane.interface import Dataplane
from fairlead.drivers.interface import Driver, DriverError
from fairlead.model.documents.owner import Owner
from fairlead.model.snapshot import Snapshot
from fairlead.node.channel import NodeSlice
from fairlead.node.log_once import LogOnce
from fairlead.node.reports import Reports
from fairlead.reconciler.loop import Reconciler
from fairlead.reconciler.resync import MassDelete

LOG = logging.getLogger(__name__)
RETRY_INTERVAL = 5.0
"""Retry interval of opening the driver, in seconds."""


class NodeDriver(Driver, Protocol):
    """Driver of rows that exist without the agent, too."""

    async def open(self) -> None:
        """Find the rows of an earlier agent. Raises DriverError, OSError."""

    async def close(self) -> None:
        """Close the driver; the rows remain."""


async def _observe_nothing() -> None:
    return


class NodeReconciler:
    def __init__(
        self,
        dataplane: Dataplane,
        given: NodeSlice,
        reports: Reports,
        driver: NodeDriver,
        view: Callable[[], Snapshot] | None = None,
        failure_of: Callable[[Owner], str | None] = lambda _: None,
    ) -> None:
        """`view` returns the slice with the node's own observations. `failure_of` returns why an applied owner does not
        work; None if it does."""
        self._dataplane = dataplane
        self._slice = given
        self._reports = reports
        self._driver = driver
        self._failure_of = failure_of
        self.rows_known = asyncio.Event()
        """Set when the rows of an earlier agent are known."""
        self._reconciler = Reconciler(
            dataplane=dataplane, driver=driver, snapshot=view or (lambda: given.snapshot), clock=time.monotonic
        )
        self._reconciler.subscribe(self._report)
        given.subscribe(self._reconciler.mark)

    def mark(self, owners: Iterable[Owner]) -> None:
        """Mark owners for reconciliation."""
        self._reconciler.mark(owners)

    def report(self, owners: Iterable[Owner]) -> None:
        """Report the current state of owners without applied changes."""
        for owner in owners:
            self._report(owner)

    async def resync(self) -> None:
        """Read all rows and reconcile every owner. Raises DriverError."""
        try:
            await self._reconciler.resync()
        except MassDelete as brake:
            LOG.error("%s: deletion continues; check that the servers send this node the right slice", brake)

    async def wait_attempted(self) -> None:
        """Wait until each difference found by the last resync was applied or has failed."""
        await self._reconciler.resync_applied.wait()

    async def run(
        self,
        *beside: Callable[[], Coroutine[None, None, None]],
        observed: Callable[[], Awaitable[object]] = _observe_nothing,
    ) -> None:
        """Reconcile until cancelled. No row is written before `observed` has returned, when the node's own observations
        are complete. The tasks in `beside` start then, too, after the existing rows were found."""
        await self._slice.ready.wait()
        try:
            await self._open()
            await observed()
            async with asyncio.TaskGroup() as tasks:
                for each in (self._reconciler.run, *beside):
                    tasks.create_task(each())
        finally:
            await asyncio.shield(self._driver.close())

    async def _open(self) -> None:
        """Open the driver with retries, without blocking or ending other parts of the agent."""
        complaints = LogOnce(f"opening {self._dataplane.title}")
        while True:
            try:
                await self._driver.open()
                await self.resync()
            except (DriverError, OSError) as error:
                complaints.report(error, RETRY_INTERVAL)
                await asyncio.sleep(RETRY_INTERVAL)
                continue
            complaints.report_recovery()
            self.rows_known.set()
            return

    def _report(self, owner: Owner) -> None:
        error = self._reconciler.applied(owner).error or self._failure_of(owner)
        self._reports.set_apply_error(self._dataplane.name, owner, error)

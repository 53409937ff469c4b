"""Services of a plain Linux host: reconciles its kernel rows by the slice and the reachable hosts."""

import asyncio
import logging
import time

from fairlead.compilers.native import NATIVE
from fairlead.drivers.interface import DriverError
from fairlead.drivers.native.driver import CheckResult, Native
from fairlead.model.snapshot import Snapshot
from fairlead.node.channel import NodeSlice
from fairlead.node.log_once import LogOnce
from fairlead.node.node_reconciler import NodeReconciler
from fairlead.node.peers import Peers
from fairlead.node.reports import Reports
from fairlead.node.returned_members import ReturnedMembers

LOG = logging.getLogger(__name__)
CHECK_INTERVAL = 0.05
"""Interval in seconds between two checks of our objects in the kernel. For this time, and while they are restored, a
VIP may lead to the host's own sockets."""
BACKOFF_FACTOR = 4
"""Factor of the time that restoring took, until the next check, in case another process removes the objects
repeatedly."""
RETRY_INTERVAL = 5.0
"""Retry interval in seconds."""


class PlainHost:
    def __init__(self, given: NodeSlice, reports: Reports, driver: Native) -> None:
        self._slice = given
        self._driver = driver
        self._peers = Peers(given)
        self._returned_members = ReturnedMembers(given)
        self._reconciler = NodeReconciler(NATIVE, given, reports, driver, view=self._view)
        self._peers.subscribe(self._reconciler.mark)
        self._returned_members.subscribe(self._reconciler.mark)
        self._table_lost = asyncio.Event()
        self._tunnels_closed = asyncio.Event()
        """Set while tunnels may be closed: at the start, and after the table was recreated."""
        self._tunnels_closed.set()
        driver.subscribe(self._table_lost.set)

    async def run(self) -> None:
        """Serve until cancelled; the kernel continues afterwards.

        Differences are computed while the other hosts are probed, and written once their state is known; otherwise
        members of a dead host would have slots for a moment.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._peers.run())
            tasks.create_task(self._returned_members.run())
            tasks.create_task(
                self._reconciler.run(self._watch_kernel, self._open_tunnels, observed=self._peers.ready.wait)
            )

    def _view(self) -> Snapshot:
        """Return the slice with the host's own observations."""
        return self._returned_members.with_returned(self._peers.snapshot)

    async def _open_tunnels(self) -> None:
        """Open the tunnels, after which other hosts may send packets here (`node/peers.py`)."""
        complaints = LogOnce("opening tunnels for other hosts")
        while True:
            await self._tunnels_closed.wait()
            self._tunnels_closed.clear()
            await self._reconciler.wait_attempted()
            try:
                await self._driver.open_tunnels()
            except DriverError as error:
                self._tunnels_closed.set()
                complaints.report(error, RETRY_INTERVAL)
                await asyncio.sleep(RETRY_INTERVAL)
            else:
                complaints.report_recovery()
                LOG.info("all rows are applied; tunnels are open, so other hosts send packets to this host")

    async def _watch_kernel(self) -> None:
        """Restore our objects when other processes flush nftables, routing rules or addresses."""
        complaints = LogOnce("checking the rules, routes and addresses of this host")
        pause = CHECK_INTERVAL
        while True:
            await asyncio.sleep(pause)
            try:
                pause = await self._check_kernel()
            except DriverError as error:
                pause = RETRY_INTERVAL
                complaints.report(error, pause)
            else:
                complaints.report_recovery()

    async def _check_kernel(self) -> float:
        """Check once, and return the seconds until the next check. Raises DriverError."""
        begun = time.monotonic()
        kept = CheckResult.LOST if self._table_lost.is_set() else await self._driver.check_and_restore()
        if kept is CheckResult.UNCHANGED:
            return CHECK_INTERVAL
        if kept is CheckResult.RESTORED:
            LOG.warning("restored rules, routes or addresses removed by another process")
        else:
            LOG.warning("nftables table removed by another process; restoring all rules")
            self._table_lost.clear()
            try:
                await self._reconciler.resync()
            finally:
                self._tunnels_closed.set()
        return max(CHECK_INTERVAL, BACKOFF_FACTOR * (time.monotonic() - begun))

"""Services of a plain Linux host: reconciles its kernel rows by the slice and the reachable hosts."""

import asyncio
import logging
import time

from fairlead.compilers.native import NATIVE
from fairlead.drivers.interface import DriverError
from fairlead.drivers.native.driver import Kept, Native
from fairlead.model.snapshot import Snapshot
from fairlead.node.channel import Slice
from fairlead.node.log_once import Complaints
from fairlead.node.node_reconciler import Keeping
from fairlead.node.peers import Peers
from fairlead.node.reports import Reports
from fairlead.node.returned_members import Returns

LOG = logging.getLogger(__name__)
LOOK = 0.05
"""Interval in seconds between two checks of our objects in the kernel. For this time, and while they are restored, a
VIP may lead to the host's own sockets."""
PAUSE = 4
"""Factor of the time that restoring took, until the next check, in case another process removes the objects
repeatedly."""
AGAIN = 5.0
"""Retry interval in seconds."""


class PlainHost:
    def __init__(self, given: Slice, reports: Reports, driver: Native) -> None:
        self._given = given
        self._driver = driver
        self._peers = Peers(given)
        self._returns = Returns(given)
        self._keeping = Keeping(NATIVE, given, reports, driver, view=self._view)
        self._peers.follow(self._keeping.mark)
        self._returns.follow(self._keeping.mark)
        self._lost = asyncio.Event()
        self._closed = asyncio.Event()
        """Set while tunnels may be closed: at the start, and after the table was recreated."""
        self._closed.set()
        driver.follow(self._lost.set)

    async def run(self) -> None:
        """Serve until cancelled; the kernel continues afterwards.

        Differences are computed while the other hosts are probed, and written once their state is known; otherwise
        members of a dead host would have slots for a moment.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._peers.run())
            tasks.create_task(self._returns.run())
            tasks.create_task(self._keeping.run(self._guard, self._open_tunnels, observed=self._peers.ready.wait))

    def _view(self) -> Snapshot:
        """Return the slice with the host's own observations."""
        return self._returns.seen_in(self._peers.snapshot)

    async def _open_tunnels(self) -> None:
        """Open the tunnels, after which other hosts may send packets here (`node/peers.py`)."""
        complaints = Complaints("opening tunnels for other hosts")
        while True:
            await self._closed.wait()
            self._closed.clear()
            await self._keeping.tried()
            try:
                await self._driver.open_tunnels()
            except DriverError as error:
                self._closed.set()
                complaints.say(error, AGAIN)
                await asyncio.sleep(AGAIN)
            else:
                complaints.end()
                LOG.info("all rows are applied: other hosts may lead packets here")

    async def _guard(self) -> None:
        """Restore our objects when other processes flush nftables, routing rules or addresses."""
        complaints = Complaints("looking after what this host serves")
        pause = LOOK
        while True:
            await asyncio.sleep(pause)
            try:
                pause = await self._mend()
            except DriverError as error:
                pause = AGAIN
                complaints.say(error, pause)
            else:
                complaints.end()

    async def _mend(self) -> float:
        """Check once, and return the seconds until the next check. Raises DriverError."""
        begun = time.monotonic()
        kept = Kept.LOST if self._lost.is_set() else await self._driver.look_after()
        if kept is Kept.WHOLE:
            return LOOK
        if kept is Kept.MENDED:
            LOG.warning("somebody had removed some of what this host serves by: it was made anew")
        else:
            LOG.warning("somebody has removed what this host serves by: it is made anew")
            self._lost.clear()
            try:
                await self._keeping.resync()
            finally:
                self._closed.set()
        return max(LOOK, PAUSE * (time.monotonic() - begun))

"""A plain Linux host: the reconciler of what it serves, by the slice that it is given and by which hosts it reaches."""

import asyncio
import logging
import time

from fairlead.compilers.native import NATIVE
from fairlead.drivers.interface import DriverError
from fairlead.drivers.native.driver import Kept, Native
from fairlead.model.snapshot import Snapshot
from fairlead.node.channel import Slice
from fairlead.node.complaints import Complaints
from fairlead.node.keeping import Keeping
from fairlead.node.peers import Peers
from fairlead.node.reporting import Reports
from fairlead.node.returns import Returns

LOG = logging.getLogger(__name__)
LOOK = 0.05
"""Seconds from look to look whether what is ours in the kernel is still there: as long, and as long as it takes to make
it anew, a VIP may lead to the host's own sockets."""
PAUSE = 4
"""Times as long as it took to make it anew, until the next look: somebody may take it away again and again."""
AGAIN = 5.0
"""Seconds after it could not be made."""


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
        """Set while tunnels may be closed: at the start, and after the table was made anew."""
        self._closed.set()
        driver.follow(self._lost.set)

    async def run(self) -> None:
        """Until it is cancelled. What it serves goes on then.

        What has to be written is found while the other hosts are asked, and written when they are known: or members of
        one that is dead would have slots again, for a moment."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._peers.run())
            tasks.create_task(self._returns.run())
            tasks.create_task(self._keeping.run(self._guard, self._open_tunnels, observed=self._peers.ready.wait))

    def _view(self) -> Snapshot:
        """What the host is given, and what it sees by itself."""
        return self._returns.seen_in(self._peers.snapshot)

    async def _open_tunnels(self) -> None:
        """Other hosts lead packets here from then on (`node/peers.py`)."""
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
        """Others flush all of nftables, all rules of routing or all addresses: what of it is ours is made anew."""
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
        """Seconds until the next look. Raises DriverError."""
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

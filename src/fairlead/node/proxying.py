"""The proxies of this node: the reconciler of HAProxy's rows, by the slice that the node is given.

It is the same loop as a server's. What it could not apply, and at which ports proxies take connections, is reported.
Keys and certificates are asked of a server when rows name them, and looked after from time to time.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from fairlead.compilers.haproxy import HAPROXY
from fairlead.drivers.haproxy import HAProxy
from fairlead.drivers.interface import DriverError
from fairlead.model.owner import Owner
from fairlead.node.channel import Slice
from fairlead.node.complaints import Complaints
from fairlead.node.reporting import Reports
from fairlead.reconciler.looking import MassDelete
from fairlead.reconciler.loop import Reconciler

LOG = logging.getLogger(__name__)
AGAIN = 5.0
"""Seconds until what an earlier agent left is looked for again."""


class Proxying:
    def __init__(self, given: Slice, reports: Reports, make: Callable[..., HAProxy], renewal: float) -> None:
        """`make` is given whom to tell what proxies serve; `renewal` is the seconds from look to look whether keys and
        certificates were renewed."""
        self._given = given
        self._reports = reports
        self._driver = make(reports.serves)
        self._reconciler = Reconciler(
            dataplane=HAPROXY, driver=self._driver, snapshot=lambda: given.snapshot, clock=time.monotonic
        )
        self._renewal = renewal
        self._reconciler.follow(self._tell)
        given.subscribe(self._reconciler.mark)

    async def run(self) -> None:
        """Until it is cancelled; processes go on then."""
        await self._given.ready.wait()
        try:
            await self._open()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._reconciler.run())
                tasks.create_task(self._renew())
        finally:
            await asyncio.shield(self._driver.close())

    async def _open(self) -> None:
        """Nothing else that the agent does waits for it, or ends with it."""
        complaints = Complaints("finding the proxies of this node")
        while True:
            try:
                await self._driver.open()
                await self._reconciler.resync()
            except MassDelete as brake:
                LOG.error("%s: they go on; is this node given the right model?", brake)
            except (DriverError, OSError) as error:
                complaints.say(error, AGAIN)
                await asyncio.sleep(AGAIN)
                continue
            complaints.end()
            return

    async def _renew(self) -> None:
        """Until it is cancelled. What somebody waits for is asked for sooner."""
        complaints, due = Complaints("asking for keys and certificates"), 0.0
        while True:
            if self._driver.lacks or time.monotonic() >= due:
                due = time.monotonic() + self._renewal
                try:
                    await self._driver.renew()
                except DriverError as error:
                    complaints.say(error, self._renewal)
                else:
                    complaints.end()
            await asyncio.sleep(min(AGAIN, self._renewal))

    def _tell(self, owner: Owner) -> None:
        self._reports.failed(HAPROXY.name, owner, self._reconciler.applied(owner).error)

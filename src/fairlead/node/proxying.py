"""The proxies of this node: the reconciler of HAProxy's rows, by the slice that the node is given.

It is the same loop as a server's. What it could not apply, and at which ports proxies take connections, is reported;
what they have counted is added to the sums of the node. Keys and certificates are asked of a server when rows name
them, and looked after from time to time.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

from fairlead.compilers.haproxy import HAPROXY
from fairlead.drivers.haproxy import HAProxy
from fairlead.drivers.haproxy.process import is_running
from fairlead.drivers.interface import DriverError
from fairlead.model.owner import Owner
from fairlead.node.channel import Slice
from fairlead.node.complaints import Complaints
from fairlead.node.counting import Tally
from fairlead.node.reporting import Reports
from fairlead.reconciler.looking import MassDelete
from fairlead.reconciler.loop import Reconciler

LOG = logging.getLogger(__name__)
AGAIN = 5.0
"""Seconds until what an earlier agent left is looked for again."""


@dataclass(frozen=True, slots=True)
class Looks:
    """How often what is looked at, in seconds."""

    tally: Tally
    """To which the driver adds what proxies have counted."""
    interval: float
    """Of what they count."""
    renewal: float
    """Of keys and certificates: whether they were renewed."""


class Proxying:
    def __init__(self, given: Slice, reports: Reports, driver: HAProxy, looks: Looks) -> None:
        self._given = given
        self._reports = reports
        self._driver = driver
        self._tally, self._interval, self._renewal = looks.tally, looks.interval, looks.renewal
        self._reconciler = Reconciler(
            dataplane=HAPROXY, driver=self._driver, snapshot=lambda: given.snapshot, clock=time.monotonic
        )
        self._reconciler.follow(self._tell)
        driver.follow(self._reconciler.mark, self._tell_all)
        given.subscribe(self._reconciler.mark)

    async def run(self) -> None:
        """Until it is cancelled; processes go on then."""
        await self._given.ready.wait()
        try:
            await self._open()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._reconciler.run())
                tasks.create_task(self._renew())
                tasks.create_task(self._count())
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

    async def _count(self) -> None:
        while True:
            await self._driver.look()
            self._tally.forget_processes([each for each in self._tally.processes if not is_running(each)])
            await asyncio.sleep(self._interval)

    def _tell_all(self, owners: Iterable[Owner]) -> None:
        for owner in owners:
            self._tell(owner)

    def _tell(self, owner: Owner) -> None:
        error = self._reconciler.applied(owner).error or self._driver.failure_of(owner)
        self._reports.failed(HAPROXY.name, owner, error)

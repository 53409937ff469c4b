"""The proxies of this node: the reconciler of HAProxy's rows, by the slice that the node is given.

At which ports proxies take connections is reported, and what they have counted is added to the sums of the node. Keys
and certificates are asked of a server when rows name them, and looked after from time to time.
"""

import asyncio
import time
from dataclasses import dataclass

from fairlead.compilers.haproxy import HAPROXY
from fairlead.drivers.haproxy import HAProxy
from fairlead.drivers.haproxy.process import is_running
from fairlead.drivers.interface import DriverError
from fairlead.node.channel import Slice
from fairlead.node.complaints import Complaints
from fairlead.node.counting import Tally
from fairlead.node.keeping import AGAIN, Keeping
from fairlead.node.reporting import Reports


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
        self._driver = driver
        self._tally, self._interval, self._renewal = looks.tally, looks.interval, looks.renewal
        self._keeping = Keeping(HAPROXY, given, reports, driver, failure_of=driver.failure_of)
        driver.follow(self._keeping.mark, self._keeping.tell)

    @property
    def found(self) -> asyncio.Event:
        """Set when it is known which processes an earlier agent left."""
        return self._keeping.found

    async def run(self) -> None:
        """Until it is cancelled; processes go on then."""
        await self._keeping.run(self._renew, self._count)

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

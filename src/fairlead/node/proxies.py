"""Proxies of this node: reconciles HAProxy's rows by the node's slice.

The ports that proxies serve are reported, and their counters are added to the node's sums. Keys and certificates are
fetched from a server when rows reference them, and refreshed periodically.
"""

import asyncio
import time
from dataclasses import dataclass

from fairlead.compilers.haproxy import HAPROXY
from fairlead.drivers.haproxy import HAProxy
from fairlead.drivers.haproxy.process import is_running
from fairlead.drivers.interface import DriverError
from fairlead.node.channel import Slice
from fairlead.node.listener_counters import Tally
from fairlead.node.log_once import Complaints
from fairlead.node.node_reconciler import AGAIN, Keeping
from fairlead.node.reports import Reports


@dataclass(frozen=True, slots=True)
class Looks:
    """Intervals in seconds."""

    tally: Tally
    """Sums of counters; the driver adds those of proxies."""
    interval: float
    """Interval of reading counters."""
    renewal: float
    """Interval of refreshing keys and certificates."""


class Proxying:
    def __init__(self, given: Slice, reports: Reports, driver: HAProxy, looks: Looks) -> None:
        self._driver = driver
        self._tally, self._interval, self._renewal = looks.tally, looks.interval, looks.renewal
        self._keeping = Keeping(HAPROXY, given, reports, driver, failure_of=driver.failure_of)
        driver.follow(self._keeping.mark, self._keeping.tell)

    @property
    def found(self) -> asyncio.Event:
        """Event that is set when the processes of an earlier agent are known."""
        return self._keeping.found

    async def run(self) -> None:
        """Reconcile until cancelled; the processes continue."""
        await self._keeping.run(self._renew, self._count)

    async def _renew(self) -> None:
        """Refresh keys and certificates until cancelled; missing ones are fetched sooner."""
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

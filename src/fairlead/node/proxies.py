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
from fairlead.node.channel import NodeSlice
from fairlead.node.listener_counters import CounterSums
from fairlead.node.log_once import LogOnce
from fairlead.node.node_reconciler import RETRY_INTERVAL, NodeReconciler
from fairlead.node.reports import Reports


@dataclass(frozen=True, slots=True)
class ProxyIntervals:
    """Intervals in seconds."""

    sums: CounterSums
    """Sums of counters; the driver adds those of proxies."""
    interval: float
    """Interval of reading counters."""
    secret_refresh: float
    """Interval of refreshing keys and certificates."""


class ProxyReconciler:
    def __init__(self, given: NodeSlice, reports: Reports, driver: HAProxy, looks: ProxyIntervals) -> None:
        self._driver = driver
        self._sums, self._interval, self._secret_refresh = looks.sums, looks.interval, looks.secret_refresh
        self._reconciler = NodeReconciler(HAPROXY, given, reports, driver, failure_of=driver.failure_of)
        driver.subscribe(self._reconciler.mark, self._reconciler.report)

    @property
    def processes_known(self) -> asyncio.Event:
        """Event that is set when the processes of an earlier agent are known."""
        return self._reconciler.rows_known

    async def run(self) -> None:
        """Reconcile until cancelled; the processes continue."""
        await self._reconciler.run(self._refresh_secrets, self._poll_counters)

    async def _refresh_secrets(self) -> None:
        """Refresh keys and certificates until cancelled; missing ones are fetched sooner."""
        complaints, due = LogOnce("fetching keys and certificates"), 0.0
        while True:
            if self._driver.has_missing_secrets or time.monotonic() >= due:
                due = time.monotonic() + self._secret_refresh
                try:
                    await self._driver.refresh_secrets()
                except DriverError as error:
                    complaints.report(error, self._secret_refresh)
                else:
                    complaints.report_recovery()
            await asyncio.sleep(min(RETRY_INTERVAL, self._secret_refresh))

    async def _poll_counters(self) -> None:
        while True:
            await self._driver.poll()
            self._sums.forget_processes([each for each in self._sums.processes if not is_running(each)])
            await asyncio.sleep(self._interval)

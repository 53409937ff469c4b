"""Proxies of a plain host with HAProxy. Without an HAProxy program the agent reports it as missing and checks again
until it is installed.

The processes of an earlier agent are found before the first report, because a report without proxies would reassign the
host's slots for a moment.
"""

import asyncio
import logging
import shutil

from fairlead.compilers.haproxy import HAPROXY
from fairlead.model.documents.owner import Kind, Owner
from fairlead.node.channel import NodeSlice
from fairlead.node.node_reconciler import RETRY_INTERVAL
from fairlead.node.proxies import ProxyReconciler
from fairlead.node.reports import Reports

LOG = logging.getLogger(__name__)
MAX_FIRST_REPORT_DELAY = 5.0
"""Maximum delay of the first report, in seconds, while processes are found."""


class HostProxyReconciler:
    def __init__(self, given: NodeSlice, reports: Reports, proxying: ProxyReconciler, program: str) -> None:
        """`program` is HAProxy's path or name."""
        self._owner = Owner(Kind.HOST, given.name)
        self._reports = reports
        self._reconciler = proxying
        self._program = program
        self._has_no_program = asyncio.Event()
        """Set when there is no HAProxy, so no processes to find."""

    async def run(self) -> None:
        """Apply the proxies' rows until cancelled; the processes continue."""
        missing = (
            f"HAProxy not found at {self._program} (agent.haproxy_binary); other hosts serve the listeners that need it"
        )
        while shutil.which(self._program) is None:
            if not self._has_no_program.is_set():
                LOG.warning("%s", missing)
            self._reports.set_apply_error(HAPROXY.name, self._owner, missing)
            self._has_no_program.set()
            await asyncio.sleep(RETRY_INTERVAL)
        self._reports.set_apply_error(HAPROXY.name, self._owner, None)
        await self._reconciler.run()

    async def run_reports(self) -> None:
        """Send reports until cancelled."""
        waiting = [
            asyncio.ensure_future(each.wait()) for each in (self._has_no_program, self._reconciler.processes_known)
        ]
        try:
            await asyncio.wait(waiting, timeout=MAX_FIRST_REPORT_DELAY, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        await self._reports.run()

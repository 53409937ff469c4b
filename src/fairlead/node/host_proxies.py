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
from fairlead.node.channel import Slice
from fairlead.node.node_reconciler import AGAIN
from fairlead.node.proxies import Proxying
from fairlead.node.reports import Reports

LOG = logging.getLogger(__name__)
LONGEST = 5.0
"""Maximum delay of the first report, in seconds, while processes are found."""


class HostProxying:
    def __init__(self, given: Slice, reports: Reports, proxying: Proxying, program: str) -> None:
        """`program` is HAProxy's path or name."""
        self._owner = Owner(Kind.HOST, given.name)
        self._reports = reports
        self._proxying = proxying
        self._program = program
        self._known = asyncio.Event()
        """Set when there is no HAProxy, so no processes to find."""

    async def run(self) -> None:
        """Apply the proxies' rows until cancelled; the processes continue."""
        missing = (
            f"there is no HAProxy at {self._program} (agent.haproxy_binary): listeners that need one go to other hosts"
        )
        while shutil.which(self._program) is None:
            if not self._known.is_set():
                LOG.warning("%s", missing)
            self._reports.failed(HAPROXY.name, self._owner, missing)
            self._known.set()
            await asyncio.sleep(AGAIN)
        self._reports.failed(HAPROXY.name, self._owner, None)
        await self._proxying.run()

    async def tell(self) -> None:
        """Send reports until cancelled."""
        waiting = [asyncio.ensure_future(each.wait()) for each in (self._known, self._proxying.found)]
        try:
            await asyncio.wait(waiting, timeout=LONGEST, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        await self._reports.run()

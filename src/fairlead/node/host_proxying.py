"""The proxies of a plain host, where there is an HAProxy: until one is installed the agent says that it is missing.

What a process serves that an earlier agent has left is told with the first word that servers hear: who says nothing of
it has none, and its slots would be others' for a moment.
"""

import asyncio
import logging
import shutil

from fairlead.compilers.haproxy import HAPROXY
from fairlead.model.owner import Kind, Owner
from fairlead.node.channel import Slice
from fairlead.node.keeping import AGAIN
from fairlead.node.proxying import Proxying
from fairlead.node.reporting import Reports

LOG = logging.getLogger(__name__)
LONGEST = 5.0
"""Seconds for which servers hear nothing while what is there is looked for."""


class HostProxying:
    def __init__(self, given: Slice, reports: Reports, proxying: Proxying, program: str) -> None:
        """`program` is HAProxy's path, or its name."""
        self._owner = Owner(Kind.HOST, given.name)
        self._reports = reports
        self._proxying = proxying
        self._program = program
        self._known = asyncio.Event()
        """Set when nothing can be found."""

    async def run(self) -> None:
        """Until it is cancelled; processes go on then."""
        missing = f"there is no HAProxy at {self._program} (agent.haproxy): listeners that need one go to other hosts"
        while shutil.which(self._program) is None:
            if not self._known.is_set():
                LOG.warning("%s", missing)
            self._reports.failed(HAPROXY.name, self._owner, missing)
            self._known.set()
            await asyncio.sleep(AGAIN)
        self._reports.failed(HAPROXY.name, self._owner, None)
        await self._proxying.run()

    async def tell(self) -> None:
        """Report what this host sees, until it is cancelled."""
        waiting = [asyncio.ensure_future(each.wait()) for each in (self._known, self._proxying.found)]
        try:
            await asyncio.wait(waiting, timeout=LONGEST, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        await self._reports.run()

"""Own addresses of this plain host among those that placements route to it, reported to servers. Services never forward
to them.

Only the host knows them: for instance addresses of bridges to its machines.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from fairlead.drivers.interface import DriverError
from fairlead.drivers.native.own_addresses import read_addresses
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.placement import filter_own_addresses
from fairlead.node.channel import NodeSlice
from fairlead.node.log_once import LogOnce
from fairlead.node.reports import Reports
from fairlead.node.threads import run_in_daemon_thread

POLL_INTERVAL = 2.0
"""Poll interval in seconds for the kernel's addresses; a change of the host's declaration takes effect immediately."""


class OwnAddresses:
    def __init__(
        self, given: NodeSlice, reports: Reports, read: Callable[[], frozenset[IPAddress]] = read_addresses
    ) -> None:
        """`read` blocks its thread, and raises DriverError and OSError."""
        self._slice = given
        self._reports = reports
        self._read = read
        self._declaration_changed = asyncio.Event()

    async def run(self) -> None:
        """Report until cancelled. While the addresses cannot be read, the last report is valid."""
        complaints = LogOnce("reading this host's addresses")
        self._slice.subscribe(self._mark)
        await self._slice.ready.wait()
        while True:
            self._declaration_changed.clear()
            try:
                found = await run_in_daemon_thread(self._read)
            except (DriverError, OSError) as error:
                complaints.report(error, POLL_INTERVAL)
            else:
                complaints.report_recovery()
                self._reports.set_own_addresses(filter_own_addresses(self._slice.snapshot, self._slice.name, found))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL):
                    await self._declaration_changed.wait()

    def _mark(self, owners: Iterable[Owner]) -> None:
        if Owner(Kind.HOST, self._slice.name) in owners:
            self._declaration_changed.set()

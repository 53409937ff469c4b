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
from fairlead.model.queries.placement import own_among
from fairlead.node.channel import Slice
from fairlead.node.log_once import Complaints
from fairlead.node.reports import Reports
from fairlead.node.threads import beside

LOOK = 2.0
"""Poll interval in seconds for the kernel's addresses; a change of the host's declaration takes effect immediately."""


class OwnAddresses:
    def __init__(
        self, given: Slice, reports: Reports, read: Callable[[], frozenset[IPAddress]] = read_addresses
    ) -> None:
        """`read` blocks its thread, and raises DriverError and OSError."""
        self._given = given
        self._reports = reports
        self._read = read
        self._declared = asyncio.Event()

    async def run(self) -> None:
        """Report until cancelled. While the addresses cannot be read, the last report is valid."""
        complaints = Complaints("reading this host's addresses")
        self._given.subscribe(self._mark)
        await self._given.ready.wait()
        while True:
            self._declared.clear()
            try:
                found = await beside(self._read)
            except (DriverError, OSError) as error:
                complaints.say(error, LOOK)
            else:
                complaints.end()
                self._reports.has(own_among(self._given.snapshot, self._given.name, found))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._declared.wait()

    def _mark(self, owners: Iterable[Owner]) -> None:
        if Owner(Kind.HOST, self._given.name) in owners:
            self._declared.set()

"""Which of the addresses behind this plain host are its own, told to servers: a service leads nobody there.

Nobody but the host knows them: those of the bridges to its machines, and whatever else an operator gives it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from fairlead.drivers.interface import DriverError
from fairlead.drivers.native.own_addresses import read_addresses
from fairlead.model.addresses import IPAddress
from fairlead.model.behind import own_among
from fairlead.model.owner import Kind, Owner
from fairlead.node.channel import Slice
from fairlead.node.complaints import Complaints
from fairlead.node.reporting import Reports
from fairlead.node.threads import beside

LOOK = 2.0
"""Seconds from look to look at the kernel's; another declaration of the host is looked at when it comes."""


class OwnAddresses:
    def __init__(
        self, given: Slice, reports: Reports, read: Callable[[], frozenset[IPAddress]] = read_addresses
    ) -> None:
        """`read` holds its thread, and raises DriverError and OSError."""
        self._given = given
        self._reports = reports
        self._read = read
        self._declared = asyncio.Event()

    async def run(self) -> None:
        """Until it is cancelled. What cannot be read stays as it was told last."""
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

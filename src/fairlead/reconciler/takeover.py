"""When a server that stands by takes the place of the one that writes.

A writer that ends loses its lock with its connection. A frozen writer keeps both: nobody probes a unix socket. So a
server that waits in vain takes the lock. The frozen writer is told so when it goes on, and each of its transactions
asserts the lock: nothing is written twice.

A server that does not know all that the writer may know (the store, what probes say) never takes the lock: it would
write old rows.

A server waits in vain if something that is wanted is not in the dataplane, if this server could write it, and if no row
of ours has changed for a while. It asks the dataplane for a sign of life first: if the server itself was frozen, it
hears what has happened meanwhile before it acts. Two servers that live and disagree must not take the lock from each
other for ever: patience grows with each takeover, and shrinks only after a long time without any.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from fairlead.drivers.interface import DriverError
from fairlead.reconciler.loop import Reconciler

LOG = logging.getLogger(__name__)
FIRST_PATIENCE = 2.5
LONGEST_PATIENCE = 600.0
PEACE = 3600.0
"""Seconds without a takeover after which the patience is what it was first."""
PAUSE = 1.0
"""Seconds until a dataplane that does not answer is asked again."""


class Writer(Protocol):
    """A driver through which only one server writes at a time."""

    @property
    def has_lock(self) -> bool: ...

    async def ping(self) -> None:
        """Returns when the dataplane has answered, and all that it said before was heard. Raises DriverError."""

    async def take_lock(self) -> None:
        """From the server that has it. Raises DriverError."""


@dataclass(slots=True)
class Patience:
    """Seconds of one clock; pure."""

    takeovers: int = 0
    _last: float = 0.0

    def seconds(self, now: float) -> float:
        if self.takeovers and now - self._last > PEACE:
            self.takeovers = 0
        return min(FIRST_PATIENCE * float(1 << min(self.takeovers, 16)), LONGEST_PATIENCE)

    def took(self, now: float) -> None:
        self.takeovers, self._last = self.takeovers + 1, now


class Takeover:
    def __init__(
        self,
        writer: Writer,
        reconciler: Reconciler,
        clock: Callable[[], float],
        knows_all: Callable[[], Awaitable[bool]],
    ) -> None:
        """`knows_all` returns when this server has heard what others have stored: whether it could hear all."""
        self.takeovers = 0
        self._knows_all = knows_all
        self._writer = writer
        self._reconciler = reconciler
        self._clock = clock
        self._patience = Patience()

    async def run(self) -> None:
        """Until cancelled. It sleeps while nothing waits for another server."""
        while True:
            await self._reconciler.stood_by.wait()
            self._reconciler.stood_by.clear()
            while not self._writer.has_lock and (waited := self._reconciler.awaited()) is not None:
                missing = self._patience.seconds(self._clock()) - waited
                if missing > 0:
                    await asyncio.sleep(missing)
                else:
                    await self._take_over()

    async def _take_over(self) -> None:
        try:
            await self._writer.ping()
            if not await self._knows_all():
                await asyncio.sleep(PAUSE)
                return
            waited = self._reconciler.awaited()
            if self._writer.has_lock or waited is None or waited < self._patience.seconds(self._clock()):
                return
            LOG.warning("the server that writes has not written for %.1f s what waits: taking its place", waited)
            self.takeovers += 1
            self._patience.took(self._clock())
            await self._writer.take_lock()
        except DriverError as error:
            LOG.info("cannot take the place of the server that writes: %s", error)
            await asyncio.sleep(PAUSE)

"""Read barrier: gives every reader a snapshot at least as new as any write committed before the read began.

Several servers write to one store, and a client may write through one and read through another. So a reader waits for a
poll of the store's revision that starts after its own arrival, and for newer changes to be read. Readers that arrive
during a poll share the next one, so a server has at most one poll in flight.

A failed poll is repeated until one succeeds, even without readers: a server that is not ready receives no requests and
would otherwise never notice that the store is back.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fairlead.store.interface import StoreUnavailable

LOG = logging.getLogger(__name__)
PATIENCE = 5.0
"""Seconds that a reader waits for a poll: longer than an election of etcd or the failover from a hung member."""
SHORT_PATIENCE = 0.5
"""Seconds that a reader waits while the last poll has failed, so that requests do not pile up."""
AGAIN = 0.5
"""Seconds between polls of an unavailable store."""


class NotKnown(StoreUnavailable):
    """The store is unreachable, so this server's model may be outdated."""


class Looks:
    def __init__(self, look: Callable[[], Awaitable[None]]) -> None:
        """`look` polls the store and reads newer changes. Raises StoreUnavailable."""
        self._look = look
        self._next: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._failure = ""
        self._away_since: float | None = None
        self._went_away = asyncio.Event()
        self.made = self.shared = 0
        """Number of polls, and of readers that shared them."""

    @property
    def away(self) -> float:
        """Seconds since the store became unavailable; 0 while it answers."""
        return 0.0 if self._away_since is None else time.monotonic() - self._away_since

    async def newest(self) -> None:
        """Wait until the model has everything stored before this call. Raises StoreUnavailable."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running), name="a look at the store")
            self._next.add_done_callback(_heard)
        self.shared += 1
        await asyncio.shield(self._next)

    async def newest_in_time(self) -> None:
        """Wait as `newest`, with a timeout. Raises NotKnown."""
        patience = PATIENCE if self._away_since is None else SHORT_PATIENCE
        try:
            async with asyncio.timeout(patience):
                await self.newest()
        except TimeoutError:
            reason = self._failure or f"it has not answered for {patience:g} s"
            raise NotKnown(f"what is stored by now is not known: {reason}") from None
        except StoreUnavailable as error:
            raise NotKnown(f"what is stored by now is not known: {error}") from None

    @asynccontextmanager
    async def made_again(self) -> AsyncIterator[None]:
        """Repeat failed polls until one succeeds, during the context."""
        task = asyncio.create_task(self._again(), name="looks at a store that is away")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _again(self) -> None:
        while True:
            await self._went_away.wait()
            await asyncio.sleep(AGAIN)
            with contextlib.suppress(StoreUnavailable):
                await self.newest()

    async def _after(self, before: asyncio.Task[None] | None) -> None:
        """Poll after the previous poll has ended. A reader that arrives after its start shares the next one."""
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        self.made += 1
        try:
            await self._look()
        except StoreUnavailable as error:
            self.failed(error)
            raise
        self._answered()

    def failed(self, error: StoreUnavailable) -> None:
        self._failure = str(error)
        self._went_away.set()
        if self._away_since is None:
            self._away_since = time.monotonic()
            LOG.warning("the store cannot be read (%s): what other servers write is not known until it can", error)

    def _answered(self) -> None:
        if self._away_since is not None:
            LOG.info("the store can be read again, after %.1f s", self.away)
        self._away_since, self._failure = None, ""
        self._went_away.clear()


def _heard(look: asyncio.Task[None]) -> None:
    """Retrieve the exception of a poll that no reader awaits any more, so that asyncio does not log it."""
    if not look.cancelled():
        look.exception()

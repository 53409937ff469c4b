"""Looks at the store for those who read: whoever is answered knows all that was stored before they asked.

Several servers write to one store, and a client that wrote at one may read at another. So a reader waits for a look
that begins after it came: whether anything newer is there, and to take that in. All who come while one look is on its
way share the next one, so the store is asked one thing at a time by each server, however many read.

A look that failed is made again until one has an answer, though nobody reads: a server that is not ready is asked
nothing, and would never learn that the store is back.
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
"""Seconds that a reader waits for a look: an election of etcd, and a member that stands still, end within that."""
SHORT_PATIENCE = 0.5
"""The same, while the last look has failed: readers must not pile up for a store that is away."""
AGAIN = 0.5
"""Seconds until a store that is away is asked again."""


class NotKnown(StoreUnavailable):
    """The store cannot be asked whether anything newer is there than this server knows."""


class Looks:
    def __init__(self, look: Callable[[], Awaitable[None]]) -> None:
        """`look` raises StoreUnavailable."""
        self._look = look
        self._next: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._failure = ""
        self._away_since: float | None = None
        self._went_away = asyncio.Event()
        self.made = self.shared = 0
        """Looks, and readers who had one."""

    @property
    def away(self) -> float:
        """Seconds since which the store does not answer; 0 while it does."""
        return 0.0 if self._away_since is None else time.monotonic() - self._away_since

    async def newest(self) -> None:
        """Know all that was stored before this was called. Raises StoreUnavailable."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running), name="a look at the store")
            self._next.add_done_callback(_heard)
        self.shared += 1
        await asyncio.shield(self._next)

    async def newest_in_time(self) -> None:
        """The same. Raises NotKnown."""
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
        """Within it a look that failed is made again, until one has an answer."""
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
        """Who comes from the moment on in which the look begins has to wait for another one."""
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
    """Whoever waited for it may have gone."""
    if not look.cancelled():
        look.exception()

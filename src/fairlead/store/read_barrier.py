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
TIMEOUT = 5.0
"""Seconds that a reader waits for a poll: longer than an election of etcd or the failover from a hung member."""
SHORT_TIMEOUT = 0.5
"""Seconds that a reader waits while the last poll has failed, so that requests do not pile up."""
RETRY_INTERVAL = 0.5
"""Seconds between polls of an unavailable store."""


class StoreStale(StoreUnavailable):
    """The store is unreachable, so this server's model may be outdated."""


class ReadBarrier:
    def __init__(self, look: Callable[[], Awaitable[None]]) -> None:
        """`look` polls the store and reads newer changes. Raises StoreUnavailable."""
        self._poll = look
        self._next: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._failure = ""
        self._unavailable_since: float | None = None
        self._became_unavailable = asyncio.Event()
        self.polls = self.shared = 0
        """Number of polls, and of readers that shared them."""

    @property
    def unavailable_seconds(self) -> float:
        """Seconds since the store became unavailable; 0 while it answers."""
        return 0.0 if self._unavailable_since is None else time.monotonic() - self._unavailable_since

    async def wait(self) -> None:
        """Wait until the model has everything stored before this call. Raises StoreUnavailable."""
        if self._next is None:
            self._next = asyncio.create_task(self._poll_after(self._running), name="store poll")
            self._next.add_done_callback(_retrieve_exception)
        self.shared += 1
        await asyncio.shield(self._next)

    async def wait_with_timeout(self) -> None:
        """Wait as `newest`, with a timeout. Raises NotKnown."""
        patience = TIMEOUT if self._unavailable_since is None else SHORT_TIMEOUT
        try:
            async with asyncio.timeout(patience):
                await self.wait()
        except TimeoutError:
            reason = self._failure or f"no response for {patience:g} s"
            raise StoreStale(f"cannot read the latest revision of the store: {reason}") from None
        except StoreUnavailable as error:
            raise StoreStale(f"cannot read the latest revision of the store: {error}") from None

    @asynccontextmanager
    async def retrying(self) -> AsyncIterator[None]:
        """Repeat failed polls until one succeeds, during the context."""
        task = asyncio.create_task(self._retry(), name="retry store polls")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _retry(self) -> None:
        while True:
            await self._became_unavailable.wait()
            await asyncio.sleep(RETRY_INTERVAL)
            with contextlib.suppress(StoreUnavailable):
                await self.wait()

    async def _poll_after(self, before: asyncio.Task[None] | None) -> None:
        """Poll after the previous poll has ended. A reader that arrives after its start shares the next one."""
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        self.polls += 1
        try:
            await self._poll()
        except StoreUnavailable as error:
            self.record_failure(error)
            raise
        self._record_success()

    def record_failure(self, error: StoreUnavailable) -> None:
        self._failure = str(error)
        self._became_unavailable.set()
        if self._unavailable_since is None:
            self._unavailable_since = time.monotonic()
            LOG.warning(
                "the store is unavailable (%s): changes of other servers are not visible until it responds", error
            )

    def _record_success(self) -> None:
        if self._unavailable_since is not None:
            LOG.info("the store is available again after %.1f s", self.unavailable_seconds)
        self._unavailable_since, self._failure = None, ""
        self._became_unavailable.clear()


def _retrieve_exception(look: asyncio.Task[None]) -> None:
    """Retrieve the exception of a poll that no reader awaits any more, so that asyncio does not log it."""
    if not look.cancelled():
        look.exception()

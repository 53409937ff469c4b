"""A central dataplane in a server: its driver, its reconciler, and when a resync runs.

One server is the leader and writes; the others are standbys, and one of them takes over from a leader that does not
write.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, Self

from fairlead.dataplane.interface import Dataplane
from fairlead.drivers.interface import Driver, DriverError
from fairlead.model.documents.owner import Owner
from fairlead.reconciler.dataplanes import Central
from fairlead.reconciler.failover import Failover, LockingDriver
from fairlead.reconciler.loop import Reconciler
from fairlead.reconciler.resync import MassDelete
from fairlead.server.tasks import background_tasks
from fairlead.store.interface import StoreError
from fairlead.store.model import Model

LOG = logging.getLogger(__name__)
START_TIMEOUT = 5.0
"""Seconds that the start waits for dataplanes before it serves requests without them."""
RESYNC_INTERVAL = 3600.0
LOCK_TIMEOUT = 0.5
"""Seconds that a resync waits for the lock, so that one resync is enough for a new connection and its lock."""
STORE_RETRY_INTERVAL = 1.0
"""Seconds between attempts to read an unavailable store; nothing signals its recovery."""


class CentralDriver(Driver, LockingDriver, Protocol):
    """Driver with the additional methods that a server needs."""

    @property
    def connected(self) -> bool:
        """Whether the dataplane can be read."""

    def start(self) -> None:
        """Connect and reconnect, in a task of the running loop."""

    async def close(self) -> None: ...

    async def wait_ready(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as in drivers
        """Wait until this server may write. Raises TimeoutError."""


class DataplaneControl(Protocol):
    """A running central dataplane with its helpers; an asynchronous context."""

    def connect(self) -> None:
        """Start reading the dataplane; allowed before the model is loaded and before entering the context."""

    central: "CentralDataplane"

    def for_front_ends(self) -> Central: ...

    async def wait_for_facts(self) -> None:
        """Wait, with a limit, until the observed state of nodes is known."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


async def _no_wait() -> None:
    pass


async def _always() -> bool:
    return True


def _no_missing_facts(_: Owner) -> str:
    return ""


class CentralDataplane:
    """Driver, reconciler and failover of a central dataplane; an asynchronous context.

    Its reconciler receives every change of the model from the start.

    - `first_hear` returns when the observed facts are known, or after a timeout; the first resync waits for it.
    - `hears` returns whether facts are being received now; a standby without them does not take over.
    - `unheard` returns why an owner still cannot be compiled, or "".
    """

    def __init__(
        self,
        dataplane: Dataplane,
        model: Model,
        driver: CentralDriver,
        *,
        first_hear: Callable[[], Awaitable[None]] = _no_wait,
        hears: Callable[[], Awaitable[bool]] = _always,
        unheard: Callable[[Owner], str] = _no_missing_facts,
    ) -> None:
        self.driver = driver
        self.reconciler = Reconciler(
            dataplane=dataplane,
            driver=driver,
            snapshot=lambda: model.snapshot,
            clock=time.monotonic,
            deleted=model.deleted,
            unheard=unheard,
        )
        self.failover = Failover(driver, self.reconciler, time.monotonic, self._is_up_to_date)
        self._model = model
        self._title = dataplane.title
        self._wait_for_facts, self._receives_facts = first_hear, hears
        self._resync_requested = asyncio.Event()
        self._synced = asyncio.Event()
        self._facts_known = asyncio.Event()
        self._tasks = contextlib.AsyncExitStack()
        model.subscribe(self.reconciler.mark)

    def connect(self) -> None:
        """Connect early: reading ten thousand load balancers takes a second, during which the model is loaded."""
        self._tasks.push_async_callback(self.driver.close)
        self.driver.start()

    async def __aenter__(self) -> Self:
        works = (self._reconcile, self._run_resyncs, self.failover.run)
        await self._tasks.enter_async_context(background_tasks(*works))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()

    def request_resync(self) -> None:
        """Request a resync, because the dataplane reconnected or this server became the leader."""
        self._resync_requested.set()

    async def wait_synced(self, seconds: float = START_TIMEOUT) -> None:
        """Wait for the first resync, with a limit."""
        try:
            async with asyncio.timeout(seconds):
                await self._synced.wait()
        except TimeoutError:
            LOG.warning(
                "%s is not writable yet; serving without it: changes are applied when it is writable",
                self._title,
            )

    async def _is_up_to_date(self) -> bool:
        """Whether everything stored and observed is known."""
        try:
            await self._model.catch_up()
        except StoreError:
            return False
        return await self._receives_facts()

    async def _reconcile(self) -> None:
        """Run the reconciler once the facts are known, because owners marked during loading depend on them."""
        await self._facts_known.wait()
        await self.reconciler.run()

    async def _run_resyncs(self) -> None:
        """Run a resync at the start, after reconnecting, and hourly. After a bug, the restarted task repeats it."""
        if not self._facts_known.is_set():
            await self._wait_for_facts()
            self._facts_known.set()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RESYNC_INTERVAL):
                    await self._resync_requested.wait()
            with contextlib.suppress(TimeoutError):
                await self.driver.wait_ready(LOCK_TIMEOUT)
            self._resync_requested.clear()
            with contextlib.ExitStack() as failing:
                failing.callback(self._resync_requested.set)
                await self._resync()
                failing.pop_all()

    async def _resync(self) -> None:
        """Run a resync and handle its errors."""
        try:
            await self._model.catch_up()  # the lock may arrive before the previous holder's last changes
            changed = await self.reconciler.resync()
        except MassDelete as brake:
            LOG.error("%s: nothing was deleted; check store.url, or delete them with `fairlead resync --force`", brake)
            self._mark_synced()
        except DriverError as error:
            LOG.warning("resync failed: %s; it is repeated when %s reconnects", error, self._title)
        except StoreError as error:
            LOG.warning("resync failed: %s; retrying", error)
            await asyncio.sleep(STORE_RETRY_INTERVAL)
            self._resync_requested.set()
        else:
            LOG.info("resync: %d owners differ", changed)
            self._mark_synced()

    def _mark_synced(self) -> None:
        self.reconciler.retry_now()
        self._synced.set()

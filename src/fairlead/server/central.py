"""A central dataplane in a server, whichever it is: its driver, its reconciler, and when all of it is looked at again.

One server writes; the others stand by, and one of them takes the place of a writer that does not write.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, Self

from fairlead.dataplane.interface import Dataplane
from fairlead.drivers.interface import Driver, DriverError
from fairlead.model.owner import Owner
from fairlead.reconciler.dataplanes import Central
from fairlead.reconciler.looking import MassDelete
from fairlead.reconciler.loop import Reconciler
from fairlead.reconciler.takeover import Takeover, Writer
from fairlead.server.tasks import at_work
from fairlead.store.interface import StoreError
from fairlead.store.model import Model

LOG = logging.getLogger(__name__)
PATIENCE = 5.0
"""Seconds that the start waits for dataplanes before the doors open without them."""
RESYNC_INTERVAL = 3600.0
LOCK_PATIENCE = 0.5
"""Seconds that a look at everything waits until this server is the one that writes: one look is enough for a connection
and its lock."""
STORE_PAUSE = 1.0
"""Seconds until a store that could not be read is tried again: nothing else says that it can be read now."""


class CentralDriver(Driver, Writer, Protocol):
    """What a server asks of a driver besides."""

    @property
    def connected(self) -> bool:
        """Whether the dataplane can be read."""

    def start(self) -> None:
        """Connect, and stay connected, in a task of the running loop."""

    async def close(self) -> None: ...

    async def wait_ready(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - what drivers have
        """Until this server may write. Raises TimeoutError."""


class Control(Protocol):
    """A central dataplane at work, with all that it needs of its own: an asynchronous context."""

    def connect(self) -> None:
        """Begin to read what the dataplane has; it may be done before the model is loaded, and before the context."""

    central: "CentralDataplane"

    def for_doors(self) -> Central: ...

    async def wait_told(self) -> None:
        """Until what is observed of nodes is known, or is not waited for any longer."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


async def _at_once() -> None:
    pass


async def _yes() -> bool:
    return True


def _of_nothing(_: Owner) -> str:
    return ""


class CentralDataplane:
    """An asynchronous context. Its reconciler hears of every change of the model from the beginning.

    `first_hear` returns when what is observed was heard, or is not waited for any longer: the first look at everything
    comes after it. `hears` says whether what is observed is heard now: who is deaf does not take a writer's place.
    `unheard` says why an owner cannot be looked at all the same, or "".
    """

    def __init__(
        self,
        dataplane: Dataplane,
        model: Model,
        driver: CentralDriver,
        *,
        first_hear: Callable[[], Awaitable[None]] = _at_once,
        hears: Callable[[], Awaitable[bool]] = _yes,
        unheard: Callable[[Owner], str] = _of_nothing,
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
        self.takeover = Takeover(driver, self.reconciler, time.monotonic, self._knows_all)
        self._model = model
        self._title = dataplane.title
        self._first_hear, self._hears = first_hear, hears
        self._look_wanted = asyncio.Event()
        self._synced = asyncio.Event()
        self._heard = asyncio.Event()
        self._tasks = contextlib.AsyncExitStack()
        model.subscribe(self.reconciler.mark)

    def connect(self) -> None:
        """Ten thousand load balancers take a second to be told of: meanwhile the model is loaded."""
        self._tasks.push_async_callback(self.driver.close)
        self.driver.start()

    async def __aenter__(self) -> Self:
        works = (self._reconcile, self._look_when_wanted, self.takeover.run)
        await self._tasks.enter_async_context(at_work(*works))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()

    def look_again(self) -> None:
        """At everything: the dataplane is there again, or this server is the one that writes now."""
        self._look_wanted.set()

    async def wait_synced(self, seconds: float = PATIENCE) -> None:
        """Until the first look at everything, or until it is served without the dataplane."""
        try:
            async with asyncio.timeout(seconds):
                await self._synced.wait()
        except TimeoutError:
            LOG.warning(
                "%s cannot be written yet; serving without it: what is asked for is applied when it is there",
                self._title,
            )

    async def _knows_all(self) -> bool:
        """What is stored, and what is observed."""
        try:
            await self._model.catch_up()
        except StoreError:
            return False
        return await self._hears()

    async def _reconcile(self) -> None:
        """What was marked while the model was loaded waits for what is observed, too."""
        await self._heard.wait()
        await self.reconciler.run()

    async def _look_when_wanted(self) -> None:
        """At the start, when the dataplane comes back, and hourly. A look that fails by a mistake is made again when
        this task is started again."""
        if not self._heard.is_set():
            await self._first_hear()
            self._heard.set()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RESYNC_INTERVAL):
                    await self._look_wanted.wait()
            with contextlib.suppress(TimeoutError):
                await self.driver.wait_ready(LOCK_PATIENCE)
            self._look_wanted.clear()
            with contextlib.ExitStack() as failing:
                failing.callback(self._look_wanted.set)
                await self._look()
                failing.pop_all()

    async def _look(self) -> None:
        """At everything."""
        try:
            await self._model.catch_up()  # the lock may come before what its last holder has stored
            changed = await self.reconciler.resync()
        except MassDelete as brake:
            LOG.error("%s: they are left; is this the right store? `fairlead resync --force` deletes them", brake)
            self._in_step()
        except DriverError as error:
            LOG.warning("no resync: %s; there will be one when %s is back", error, self._title)
        except StoreError as error:
            LOG.warning("no resync: %s; trying again", error)
            await asyncio.sleep(STORE_PAUSE)
            self._look_wanted.set()
        else:
            LOG.info("resync: %d owners differ", changed)
            self._in_step()

    def _in_step(self) -> None:
        self.reconciler.retry_now()
        self._synced.set()

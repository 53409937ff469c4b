"""The tasks of a server: they end with it, and never by themselves."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

LOG = logging.getLogger(__name__)
Work = Callable[[], Awaitable[None]]


@contextlib.asynccontextmanager
async def at_work(*works: Work) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(_watched(work), name=getattr(work, "__qualname__", "")) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watched(work: Work) -> None:
    """A task of the server never ends by itself: if one does, that is a mistake which must be seen and outlived."""
    while True:
        try:
            await work()
        except Exception:  # the outermost level of a main task
            LOG.exception("%s failed; starting it again", work)
            await asyncio.sleep(1)

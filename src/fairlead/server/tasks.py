"""Background tasks of a server, which run until it stops."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

LOG = logging.getLogger(__name__)
Work = Callable[[], Awaitable[None]]


@contextlib.asynccontextmanager
async def background_tasks(*works: Work) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(_watched(work), name=getattr(work, "__qualname__", "")) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watched(work: Work) -> None:
    """Run a task that must not end. If it fails, that is a bug, which is logged, and the task is restarted."""
    while True:
        try:
            await work()
        except Exception:  # outermost level of a task
            LOG.exception("BUG: task %s failed; restarting in 1 s (please report)", work)
            await asyncio.sleep(1)

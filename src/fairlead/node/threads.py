"""Threads for blocking work that does not delay the end of the process."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


async def run_in_daemon_thread(work: Callable[[], _T]) -> _T:
    """Run the work in a daemon thread, and return or raise its result. asyncio's own pool would be joined at exit, and
    a long poll may take long."""
    done: Future[_T] = Future()

    def run() -> None:
        try:
            found = work()
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            done.set_exception(error)
        else:
            done.set_result(found)

    done.set_running_or_notify_cancel()
    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(done)

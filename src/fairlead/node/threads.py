"""Work beside the event loop that nobody waits for when the process ends."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


async def beside(work: Callable[[], _T]) -> _T:
    """What the work returns or raises.

    A thread of asyncio's own pool would be waited for at the end of the process, and a question that waits for news may
    take long.
    """
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

"""Whether a process serves that is there: one that stands still takes connections, and answers none of them.

HAProxy ends by itself when it is stuck. One that has all the memory that it may have answers nothing new, and goes on
with the connections that it has: it is not killed. One that stands still is not given the processor: somebody has
stopped it, or its node has no memory. As long as it may come back others serve in its place; then another one takes
that.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from fairlead.drivers.haproxy.process import Running, kill
from fairlead.drivers.haproxy.runtime import running_pid

LOOK = 1.0
"""Seconds between two questions."""
SILENT, GIVEN_UP = 3.0, 10.0
"""Seconds without an answer until nobody is to be led there, and until it is killed: its connections end with it."""
LATE = 0.5
"""Seconds by which a question may take longer: if it does, this process was not given the processor either."""


async def look_after(
    running: Running,
    control: Path,
    is_busy: Callable[[], bool],
    has_filled: Callable[[Running], bool],
    tell: Callable[[bool], None],
) -> None:
    """Until it is killed. `tell` is told whether it answers; while somebody is busy with it nothing is said of it."""
    loop, since = asyncio.get_running_loop(), None
    while running.is_there:
        await asyncio.sleep(LOOK)
        began = loop.time()
        answers = await _answers(control)
        late = loop.time() - began > SILENT + LATE
        if answers:
            tell(True)
        if answers or late or is_busy():
            since = None
            continue
        since = began if since is None else since
        if loop.time() - since >= GIVEN_UP and not has_filled(running):
            kill(running)
        elif loop.time() - since >= SILENT:
            tell(False)


async def _answers(control: Path) -> bool:
    try:
        async with asyncio.timeout(SILENT):
            return await running_pid(control) is not None
    except TimeoutError:
        return False

"""Liveness check of a running process: a stalled process accepts connections and serves none of them.

- HAProxy ends by itself when its watchdog finds it stuck.
- A process at its memory limit does not respond to new requests but serves its existing connections. It is not killed.
- A stalled process gets no CPU time: it was stopped by a signal, or the node has no memory left. Traffic goes to other
  nodes while it may recover; after `KILL_TIMEOUT` seconds it is killed and replaced.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from fairlead.drivers.haproxy.process import RunningProcess, kill
from fairlead.drivers.haproxy.runtime import running_pid

CHECK_INTERVAL = 1.0
"""Seconds between two checks."""
UNRESPONSIVE_TIMEOUT, KILL_TIMEOUT = 3.0, 10.0
"""Seconds without a response until the process is reported unresponsive, and until it is killed with its connections.
"""
MAX_OVERRUN = 0.5
"""Maximum seconds that a check may overrun `SILENT`. After a longer overrun the agent itself got no CPU time, so the
check does not count."""


async def watch_liveness(
    running: RunningProcess,
    control: Path,
    is_busy: Callable[[], bool],
    has_filled: Callable[[RunningProcess], bool],
    tell: Callable[[bool], None],
) -> None:
    """Check a process until it ends or is killed.

    `tell` receives whether it responds. While `is_busy()`, a missing response does not count.
    """
    loop, since = asyncio.get_running_loop(), None
    while running.is_alive:
        await asyncio.sleep(CHECK_INTERVAL)
        began = loop.time()
        answers = await _is_responding(control)
        late = loop.time() - began > UNRESPONSIVE_TIMEOUT + MAX_OVERRUN
        if answers:
            tell(True)
        if answers or late or is_busy():
            since = None
            continue
        since = began if since is None else since
        if loop.time() - since >= KILL_TIMEOUT and not has_filled(running):
            kill(running)
        elif loop.time() - since >= UNRESPONSIVE_TIMEOUT:
            tell(False)


async def _is_responding(control: Path) -> bool:
    try:
        async with asyncio.timeout(UNRESPONSIVE_TIMEOUT):
            return await running_pid(control) is not None
    except TimeoutError:
        return False

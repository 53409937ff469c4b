"""Work in threads that need not end before the process."""

import asyncio
import subprocess
import sys
import threading

import pytest

from fairlead.node.threads import beside
from harness.waiting import DEADLINE, eventually


async def test_what_the_work_returns_or_raises_comes_back():
    assert await beside(lambda: 7) == 7
    with pytest.raises(OSError, match="nobody is there"):
        await beside(_fail)


def _fail() -> None:
    raise OSError("nobody is there")


def test_the_process_does_not_wait_for_it():
    program = """
import asyncio, threading
from fairlead.node.threads import beside

async def story():
    try:
        async with asyncio.timeout(0.1):
            await beside(threading.Event().wait)
    except TimeoutError:
        print("not waited for")

asyncio.run(story())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert (done.stdout, done.stderr) == ("not waited for\n", "")


async def test_what_comes_too_late_disturbs_nobody(caplog):
    threads, go = list[threading.Thread](), threading.Event()

    def work() -> None:
        threads.append(threading.current_thread())
        go.wait()

    waiting = asyncio.ensure_future(beside(work))
    [thread] = await eventually(lambda: threads)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go.set()
    await eventually(lambda: not thread.is_alive())
    assert caplog.text == ""

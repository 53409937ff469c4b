"""Work that nobody waits for when the process ends."""

import asyncio
import subprocess
import sys
import threading

import pytest

from fairlead.node.threads import beside


async def test_what_the_work_returns_or_raises_comes_back():
    assert await beside(lambda: 7) == 7
    with pytest.raises(OSError, match="nobody is there"):
        await beside(_fail)


def _fail() -> None:
    raise OSError("nobody is there")


def test_the_process_does_not_wait_for_it():
    program = """
import asyncio, time
from fairlead.node.threads import beside

async def story():
    try:
        async with asyncio.timeout(0.1):
            await beside(lambda: time.sleep(60))
    except TimeoutError:
        print("not waited for")

asyncio.run(story())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout, done.stderr) == ("not waited for\n", "")


async def test_what_comes_too_late_disturbs_nobody(caplog):
    go = threading.Event()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await beside(go.wait)
    threads = set(threading.enumerate()) - {threading.current_thread()}
    go.set()
    for thread in threads:
        if thread.daemon:
            thread.join(5)
    assert caplog.text == ""

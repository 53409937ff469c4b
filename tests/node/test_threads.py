"""Work in threads that need not end before the process."""

import asyncio
import subprocess
import sys
import threading

import pytest

from fairlead.node.threads import run_in_daemon_thread
from harness.waiting import DEADLINE, eventually


async def test_call_in_a_thread_returns_the_result_or_raises_the_error_of_the_work():
    assert await run_in_daemon_thread(lambda: 7) == 7
    with pytest.raises(OSError, match="nobody is there"):
        await run_in_daemon_thread(_fail)


def _fail() -> None:
    raise OSError("nobody is there")


def test_process_exit_does_not_wait_for_the_thread():
    program = """
import asyncio, threading
from fairlead.node.threads import run_in_daemon_thread

async def story():
    try:
        async with asyncio.timeout(0.1):
            await run_in_daemon_thread(threading.Event().wait)
    except TimeoutError:
        print("not waited for")

asyncio.run(story())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert (done.stdout, done.stderr) == ("not waited for\n", "")


async def test_late_result_of_a_cancelled_call_is_ignored(caplog):
    threads, go = list[threading.Thread](), threading.Event()

    def work() -> None:
        threads.append(threading.current_thread())
        go.wait()

    waiting = asyncio.ensure_future(run_in_daemon_thread(work))
    [thread] = await eventually(lambda: threads)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go.set()
    await eventually(lambda: not thread.is_alive())
    assert caplog.text == ""

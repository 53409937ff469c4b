"""The event loop lag measures how long the loop served no task."""

import asyncio

import pytest

from fairlead.api.loop_lag import BEAT, LONG, LoopLag
from harness.virtual_clock import VirtualClockLoop


@pytest.mark.virtual_clock
async def test_work_that_holds_the_loop_is_noticed_and_a_pause_is_not(monkeypatch: pytest.MonkeyPatch):
    loop, worked = asyncio.get_running_loop(), 0.0
    assert isinstance(loop, VirtualClockLoop)
    monkeypatch.setattr("time.thread_time", lambda: worked)
    loop_lag = LoopLag()
    beating = asyncio.create_task(loop_lag.beat())
    await asyncio.sleep(2.5 * BEAT)
    loop.advance(2 * LONG)  # another process has the CPU: not Fairlead's work
    await asyncio.sleep(2.5 * BEAT)
    assert loop_lag.long == 0
    loop.advance(3 * LONG)
    worked += 3 * LONG
    await asyncio.sleep(2.5 * BEAT)
    assert loop_lag.long == 1
    assert 3 * LONG - BEAT <= loop_lag.longest <= 3 * LONG
    beating.cancel()

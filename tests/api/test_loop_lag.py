"""The event loop's lag is the time for which one piece of work blocked it."""

import asyncio

import pytest

from fairlead.runtime.loop_lag import POLL_INTERVAL, LoopLag
from harness.event_loop_lag import longest_lag
from harness.virtual_clock import VirtualClockLoop

LONG = 0.05  # seconds


@pytest.mark.virtual_clock
async def test_blocking_work_counts_as_loop_lag_and_a_process_pause_does_not(monkeypatch: pytest.MonkeyPatch):
    loop, worked = asyncio.get_running_loop(), 0.0
    assert isinstance(loop, VirtualClockLoop)
    monkeypatch.setattr("time.thread_time", lambda: worked)
    loop_lag, lags = LoopLag(), list[float]()
    loop_lag.set_observer(lags.append)
    beating = asyncio.create_task(loop_lag.measure())
    await asyncio.sleep(2.5 * POLL_INTERVAL)
    loop.advance(2 * LONG)  # another process has the processor: no work of ours
    await asyncio.sleep(2.5 * POLL_INTERVAL)
    assert max(lags) == 0
    loop.advance(3 * LONG)
    worked += 3 * LONG
    await asyncio.sleep(2.5 * POLL_INTERVAL)
    assert sum(lag > LONG for lag in lags) == 1
    assert 3 * LONG - POLL_INTERVAL <= max(lags) <= 3 * LONG
    beating.cancel()


def test_the_longest_lag_is_read_from_the_histogram():
    name = "fairlead_event_loop_lag_seconds_bucket"
    text = f'{name}{{le="0.005"}} 3.0\n{name}{{le="0.05"}} 4.0\n{name}{{le="+Inf"}} 4.0\n'
    assert longest_lag(text) == 0.05
    assert longest_lag(text.replace("4.0", "3.0")) == 0.005
    assert longest_lag("") is None

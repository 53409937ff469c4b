"""The lag of the event loop says for how long nobody was served."""

import asyncio
import time

from fairlead.api.loop_lag import LONG, LoopLag


async def test_work_that_holds_the_loop_is_noticed_and_a_pause_is_not():
    async def run() -> LoopLag:
        loop_lag = LoopLag()
        beating = asyncio.create_task(loop_lag.beat())
        await asyncio.sleep(0.05)
        time.sleep(0.1)  # noqa: ASYNC251 - another process has the processor: no work of ours
        await asyncio.sleep(0.05)
        assert loop_lag.long == 0
        end = time.thread_time() + 3 * LONG
        while time.thread_time() < end:
            pass
        await asyncio.sleep(0.05)
        beating.cancel()
        return loop_lag

    loop_lag = await run()
    assert loop_lag.long == 1
    assert loop_lag.longest > LONG

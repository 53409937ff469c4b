"""The pulse of the event loop says for how long nobody was served."""

import asyncio
import time

from fairlead.api.pulse import LONG, Pulse


def test_work_that_holds_the_loop_is_noticed_and_a_pause_is_not():
    async def run() -> Pulse:
        pulse = Pulse()
        beating = asyncio.create_task(pulse.beat())
        await asyncio.sleep(0.05)
        time.sleep(0.1)  # noqa: ASYNC251 - another process has the processor: no work of ours
        await asyncio.sleep(0.05)
        assert pulse.long == 0
        end = time.thread_time() + 3 * LONG
        while time.thread_time() < end:
            pass
        await asyncio.sleep(0.05)
        beating.cancel()
        return pulse

    pulse = asyncio.run(run())
    assert pulse.long == 1
    assert pulse.longest > LONG

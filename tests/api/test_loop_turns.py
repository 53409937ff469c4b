"""Expensive work of many callers runs one at a time, one per turn of the event loop."""

import asyncio

import pytest

from fairlead.runtime.loop_turns import LoopTurns


async def test_each_turn_of_the_loop_is_for_one():
    async def run() -> list[int]:
        turns, loop, done = LoopTurns(), asyncio.get_running_loop(), []
        passed = 0

        def count() -> None:
            nonlocal passed
            passed += 1
            if len(done) < 10:
                loop.call_soon(count)

        async def work() -> None:
            await turns.take()
            done.append(passed)

        loop.call_soon(count)
        await asyncio.gather(*(work() for _ in range(10)))
        return done

    found = await run()
    assert len(set(found)) == 10, "two worked in the same turn"


@pytest.mark.virtual_clock
async def test_who_has_hung_up_has_no_turn():
    turns = LoopTurns()
    gone = [asyncio.create_task(turns.take()) for _ in range(100)]
    await asyncio.sleep(0)
    for each in gone:
        each.cancel()
    async with asyncio.timeout(60):
        await turns.take()
        await turns.take()

"""Expensive work of many callers runs one at a time, one per turn of the event loop."""

import asyncio

import pytest

from fairlead.runtime.loop_turns import TurnScheduler


async def test_event_loop_iteration_serves_one_caller():
    async def run() -> list[int]:
        turns, loop, done = TurnScheduler(), asyncio.get_running_loop(), []
        passed = 0

        def count() -> None:
            nonlocal passed
            passed += 1
            if len(done) < 10:
                loop.call_soon(count)

        async def work() -> None:
            await turns.wait_for_turn()
            done.append(passed)

        loop.call_soon(count)
        await asyncio.gather(*(work() for _ in range(10)))
        return done

    found = await run()
    assert len(set(found)) == 10, "two worked in the same turn"


@pytest.mark.virtual_clock
async def test_cancelled_caller_takes_no_turn():
    turns = TurnScheduler()
    gone = [asyncio.create_task(turns.wait_for_turn()) for _ in range(100)]
    await asyncio.sleep(0)
    for each in gone:
        each.cancel()
    async with asyncio.timeout(60):
        await turns.wait_for_turn()
        await turns.wait_for_turn()

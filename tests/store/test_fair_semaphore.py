"""FairSemaphore: fairness between keys, bounded queues, and cancellation."""

import asyncio

import pytest

from fairlead.runtime.fair_semaphore import ClientDisconnected, FairSemaphore, WaitQueueFull

pytestmark = pytest.mark.virtual_clock


async def take(turns: FairSemaphore, key: str, order: list[str]) -> None:
    async with turns.turn(key):
        order.append(key)
        await asyncio.sleep(0)


async def test_keys_are_served_round_robin():
    turns, order = FairSemaphore(at_once=1, of_one=1, waiting=100), list[str]()
    await asyncio.gather(
        *(take(turns, "a", order) for _ in range(50)), take(turns, "b", order), take(turns, "c", order)
    )
    assert order[:4] == ["a", "a", "b", "c"]
    assert (len(order), turns.waiting) == (52, 0)


async def test_one_key_has_a_concurrency_limit_that_does_not_delay_others():
    turns, order = FairSemaphore(of_one=2, waiting=10), list[str]()
    async with turns.turn("a"), turns.turn("a"):
        third = asyncio.create_task(take(turns, "a", order))
        await asyncio.sleep(0)
        await take(turns, "b", order)
        assert order == ["b"]
    await third
    assert order == ["b", "a"]


async def test_queue_of_one_key_and_the_total_queue_are_bounded():
    turns = FairSemaphore(at_once=1, of_one=1, waiting=2, in_all=3)
    async with turns.turn("a"):
        waiting = [asyncio.create_task(take(turns, key, [])) for key in ("a", "a", "b")]
        await asyncio.sleep(0)
        for key in ("a", "b", "c"):
            with pytest.raises(WaitQueueFull):
                await take(turns, key, [])
    await asyncio.gather(*waiting)
    await take(turns, "c", [])


async def test_cancelled_or_timed_out_waiters_are_skipped():
    turns, order, gone = FairSemaphore(at_once=1, of_one=1, waiting=9), list[str](), asyncio.Event()

    async def leave() -> None:
        async with turns.turn("a", gone=gone):
            order.append("gone")

    loop = asyncio.get_running_loop()
    async with turns.turn("a"):
        leaving, cancelled = asyncio.create_task(leave()), asyncio.create_task(take(turns, "b", order))
        staying = asyncio.create_task(take(turns, "c", order))
        await asyncio.sleep(0)
        gone.set()
        with pytest.raises(ClientDisconnected):
            await leaving
        cancelled.cancel()
        with pytest.raises(TimeoutError):
            async with turns.turn("b", patience=3):
                pass
        assert (turns.waiting, loop.time()) == (1, 3)
    await staying
    assert order == ["c"]
    await take(turns, "a", order)


async def test_turn_granted_to_a_cancelled_waiter_goes_to_the_next():
    turns, order = FairSemaphore(at_once=1, of_one=1, waiting=9), list[str]()
    async with turns.turn("a"):
        leaving, staying = (asyncio.create_task(take(turns, key, order)) for key in ("b", "c"))
        await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, staying, return_exceptions=True)
    assert order == ["c"]


async def test_slot_of_a_slow_holder_is_released_once_after_its_time():
    semaphore, never = FairSemaphore(at_once=1, of_one=1, waiting=10), asyncio.Event()

    async def hang(key: str) -> None:
        async with semaphore.turn(key, counted=2):
            await never.wait()

    slow = [asyncio.create_task(hang(key)) for key in "aab"]
    await asyncio.sleep(0)
    async with semaphore.turn("b"):
        assert (semaphore.waiting, asyncio.get_running_loop().time()) == (0, 6)  # three others held it before
    for each in slow:
        each.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    async with semaphore.turn("a"):
        second = asyncio.create_task(hang("c"))
        await asyncio.sleep(0)
        assert semaphore.waiting == 1
    second.cancel()

"""FairSemaphore: fairness between keys, bounded queues, and cancellation."""

import asyncio

import pytest

from fairlead.runtime.fair_semaphore import FairSemaphore, Gone, TooMany

pytestmark = pytest.mark.virtual_clock


async def take(turns: FairSemaphore, key: str, order: list[str]) -> None:
    async with turns.turn(key):
        order.append(key)
        await asyncio.sleep(0)


async def test_lines_are_served_in_rounds():
    turns, order = FairSemaphore(at_once=1, of_one=1, waiting=100), list[str]()
    await asyncio.gather(
        *(take(turns, "a", order) for _ in range(50)), take(turns, "b", order), take(turns, "c", order)
    )
    assert order[:4] == ["a", "a", "b", "c"]
    assert (len(order), turns.waiting) == (52, 0)


async def test_one_key_has_so_many_at_once_and_others_are_not_kept_waiting():
    turns, order = FairSemaphore(of_one=2, waiting=10), list[str]()
    async with turns.turn("a"), turns.turn("a"):
        third = asyncio.create_task(take(turns, "a", order))
        await asyncio.sleep(0)
        await take(turns, "b", order)
        assert order == ["b"]
    await third
    assert order == ["b", "a"]


async def test_a_line_has_an_end_and_so_have_all_of_them():
    turns = FairSemaphore(at_once=1, of_one=1, waiting=2, in_all=3)
    async with turns.turn("a"):
        waiting = [asyncio.create_task(take(turns, key, [])) for key in ("a", "a", "b")]
        await asyncio.sleep(0)
        for key in ("a", "b", "c"):
            with pytest.raises(TooMany):
                await take(turns, key, [])
    await asyncio.gather(*waiting)
    await take(turns, "c", [])


async def test_who_leaves_is_not_waited_for():
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
        with pytest.raises(Gone):
            await leaving
        cancelled.cancel()
        with pytest.raises(TimeoutError):
            async with turns.turn("b", patience=3):
                pass
        assert (turns.waiting, loop.time()) == (1, 3)
    await staying
    assert order == ["c"]
    await take(turns, "a", order)


async def test_a_turn_that_comes_as_one_leaves_goes_to_the_next():
    turns, order = FairSemaphore(at_once=1, of_one=1, waiting=9), list[str]()
    async with turns.turn("a"):
        leaving, staying = (asyncio.create_task(take(turns, key, order)) for key in ("b", "c"))
        await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, staying, return_exceptions=True)
    assert order == ["c"]


async def test_a_turn_that_counts_no_more_is_given_back_once():
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

"""Read barrier: readers share a poll of the store, but never one that began before their request."""

import asyncio

import pytest

from fairlead.store.interface import StoreUnavailable
from fairlead.store.read_barrier import SHORT_TIMEOUT, TIMEOUT, ReadBarrier, StoreStale
from harness.waiting import run_ready_tasks

pytestmark = pytest.mark.virtual_clock


class Slow:
    """Store whose responses the test releases."""

    def __init__(self) -> None:
        self.begun = 0
        self.answers = asyncio.Event()
        self.away = False

    async def look(self) -> None:
        self.begun += 1
        await self.answers.wait()
        if self.away:
            raise StoreUnavailable("it is away")


async def test_readers_during_a_store_poll_share_the_next_one():
    store = Slow()
    shared = ReadBarrier(store.look)
    first = [asyncio.create_task(shared.wait()) for _ in range(3)]
    await run_ready_tasks()
    assert store.begun == 1
    later = [asyncio.create_task(shared.wait()) for _ in range(50)]
    await run_ready_tasks()
    assert store.begun == 1
    store.answers.set()
    await asyncio.gather(*first)
    assert not any(each.done() for each in later)
    await asyncio.gather(*later)
    assert (store.begun, shared.polls, shared.shared) == (2, 2, 53)


async def test_cancelled_reader_does_not_cancel_the_shared_poll():
    store = Slow()
    shared = ReadBarrier(store.look)
    one, other = (asyncio.create_task(shared.wait()) for _ in range(2))
    await run_ready_tasks()
    one.cancel()
    await run_ready_tasks()
    store.answers.set()
    await other
    assert store.begun == 1


async def test_read_barrier_times_out_and_fails_faster_while_the_store_is_away():
    loop, store = asyncio.get_running_loop(), Slow()
    shared = ReadBarrier(store.look)
    with pytest.raises(StoreStale, match=rf"no response for {TIMEOUT:g} s"):
        await shared.wait_with_timeout()
    assert loop.time() == TIMEOUT
    store.away = True
    store.answers.set()
    await run_ready_tasks()
    assert shared.unavailable_seconds == 0
    store.answers.clear()
    with pytest.raises(StoreStale, match="it is away"):
        await shared.wait_with_timeout()
    assert shared.unavailable_seconds == loop.time() - TIMEOUT == SHORT_TIMEOUT
    store.away = False
    store.answers.set()
    await shared.wait_with_timeout()
    assert shared.unavailable_seconds == 0

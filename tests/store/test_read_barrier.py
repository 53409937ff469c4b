"""Read barrier: readers share a poll of the store, but never one that began before their request."""

import asyncio

import pytest

from fairlead.store.interface import StoreUnavailable
from fairlead.store.read_barrier import PATIENCE, SHORT_PATIENCE, Looks, NotKnown
from harness.waiting import turns

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


async def test_all_who_come_while_a_look_is_on_its_way_share_the_next_one():
    store = Slow()
    shared = Looks(store.look)
    first = [asyncio.create_task(shared.newest()) for _ in range(3)]
    await turns()
    assert store.begun == 1
    later = [asyncio.create_task(shared.newest()) for _ in range(50)]
    await turns()
    assert store.begun == 1
    store.answers.set()
    await asyncio.gather(*first)
    assert not any(each.done() for each in later)
    await asyncio.gather(*later)
    assert (store.begun, shared.made, shared.shared) == (2, 2, 53)


async def test_a_reader_that_goes_takes_nobodys_look_along():
    store = Slow()
    shared = Looks(store.look)
    one, other = (asyncio.create_task(shared.newest()) for _ in range(2))
    await turns()
    one.cancel()
    await turns()
    store.answers.set()
    await other
    assert store.begun == 1


async def test_nobody_waits_long_for_a_store_that_is_known_to_be_away():
    loop, store = asyncio.get_running_loop(), Slow()
    shared = Looks(store.look)
    with pytest.raises(NotKnown, match=rf"has not answered for {PATIENCE:g} s"):
        await shared.newest_in_time()
    assert loop.time() == PATIENCE
    store.away = True
    store.answers.set()
    await turns()
    assert shared.away == 0
    store.answers.clear()
    with pytest.raises(NotKnown, match="it is away"):
        await shared.newest_in_time()
    assert shared.away == loop.time() - PATIENCE == SHORT_PATIENCE
    store.away = False
    store.answers.set()
    await shared.newest_in_time()
    assert shared.away == 0

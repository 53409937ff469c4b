"""What is written to an etcd, transaction by transaction: read once, or heard on one stream that is kept open.

A watch that begins in the past is served every 100 ms, one that is kept within a few. So who follows has a stream, and
the newest that came on it are kept for whoever asks what was written since. Nobody relies on it: a stream that stands
still is late, and what it has not got is read.

Events are put together by what was written, not by what etcd says of it: a watch that begins at the very revision that
is compacted leaves out deletes (etcd 18089), and each transaction of ours writes down which keys it deletes.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from fairlead.store import etcd_pb2 as pb
from fairlead.store.etcd_calls import PAUSE, TXN, Members, Refused, Unreached
from fairlead.store.etcd_requests import Keys, after_all, look, ranges
from fairlead.store.interface import Batch, Compacted, StoreUnavailable

KEPT, KEPT_BYTES = 1000, 8 * 2**20
"""Transactions, and bytes of their documents, that are kept for who asks what was written since."""
LARGEST, MOST = 32 * 2**20, 100_000
"""Bytes and documents of one transaction: more is gathered only while somebody replaces the whole store."""
IN_TIME = 0.25
"""Seconds in which a stream brings what is written, or it is not waited for any longer and begun anew."""
LEFT_ALONE = 1.0
"""Seconds for which a stream that was begun anew is."""


async def transactions(members: Members, keys: Keys, after: int, patience: float | None) -> AsyncGenerator[Batch, None]:
    """Those after a revision, for ever; no message for `patience` seconds is no answer.

    Raises Compacted, also for who has read anything of a store that was replaced since, StoreUnavailable, Refused and
    Unreached.
    """
    create = pb.WatchCreateRequest(key=keys.root, range_end=after_all(keys.root), start_revision=after + 1)
    written: dict[str, bytes | None] = {}
    size = 0
    async with contextlib.aclosing(members.watch(create, patience)) as messages:
        async for message in messages:
            if message.compact_revision:
                raise Compacted(f"history begins at revision {message.compact_revision}")
            if message.canceled:
                raise StoreUnavailable(message.cancel_reason or "the watch was canceled")
            for event in message.events:
                if after and event.kv.key == keys.offset:
                    raise Compacted("the store was replaced")
                written.update(_documents(keys, event))
                size += len(event.kv.value)
                if event.kv.key == keys.head:  # which comes last
                    yield Batch(revision=event.kv.mod_revision, documents=written)
                    written, size = {}, 0
            if size > LARGEST or len(written) > MOST:
                raise Compacted("more was written than one change can be")


def _documents(keys: Keys, event: Any) -> dict[str, bytes | None]:
    key, is_put = event.kv.key, event.type == pb.Event.PUT
    if key.startswith(keys.documents):
        return {keys.name(key): event.kv.value if is_put else None}
    if key.startswith(keys.gone) and is_put:
        return dict.fromkeys(msgspec.json.decode(event.kv.value, type=list[str]))
    return {}


def size_of(batch: Batch) -> int:
    return sum(len(value) for value in batch.documents.values() if value)


class Feed:
    """The stream of one server. It begins when somebody first follows."""

    def __init__(self, members: Members, keys: Keys) -> None:
        self._members, self._keys = members, keys
        self._batches: deque[Batch] = deque()
        self._bytes = 0
        self._began: int | None = None
        self._reached = 0
        """All after the one, up to the other, is kept."""
        self._started = 0.0
        self._came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._started = asyncio.get_running_loop().time()
            self._task = asyncio.create_task(self._run(), name="the stream of the store")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def lose(self) -> None:
        """What is kept never was: the store has gone back to what it was before. The stream is another one then."""
        follows = self._task is not None
        await self.close()
        self._forget()
        if follows:
            self.start()

    @property
    def newest(self) -> int:
        """The revision of the newest that is kept; 0 for none."""
        return self._batches[-1].revision if self._batches else 0

    def since(self, revision: int) -> list[Batch] | None:
        """What came after it; None when that is not kept."""
        if self._began is None or not self._began <= revision <= self._reached:
            return None
        newest: deque[Batch] = deque()
        for batch in reversed(self._batches):
            if batch.revision <= revision:
                break
            newest.appendleft(batch)
        return list(newest)

    async def up_to(self, after: int, head: int) -> list[Batch] | None:
        """What came after a revision, at least until the head has come; None when it does not come in time."""
        if self._task is None or (self._began is not None and after < self._began):
            return None
        try:
            async with asyncio.timeout(IN_TIME):
                await self.news(head - 1)
        except TimeoutError:
            await self._begin_anew()
            return None
        return self.since(after)

    async def news(self, after: int) -> None:
        """Returns when anything later than this revision has come."""
        while self._reached <= after:
            await self._came.wait()

    async def _begin_anew(self) -> None:
        """At the member that answers now: the other one stands still, or is cut off. Others may have done it."""
        if asyncio.get_running_loop().time() - self._started > LEFT_ALONE:
            await self.close()
            self.start()

    async def _run(self) -> None:
        """A call that fails in the moment in which it is cancelled says only that it has failed."""
        while self._task is asyncio.current_task():
            try:
                await self._listen()
            except Compacted:
                self._forget()
            except (Refused, Unreached, StoreUnavailable):
                pass
            await asyncio.sleep(PAUSE)

    async def _listen(self) -> None:
        start = self._reached
        if self._began is None:
            looks = [look(self._keys.head), look(self._keys.seal)]
            answer = await self._members.ask(TXN, pb.TxnRequest(success=looks))
            head, seal = (each.kvs for each in ranges(answer.responses))
            start = answer.header.revision
            # Under a seal somebody may have written half of what will be the next one: it is for nobody.
            self._began = self._reached = start if seal else max((each.mod_revision for each in head), default=0)
            self._wake()  # there may be nothing new, and whoever waits for what is there has it
        heard = transactions(self._members, self._keys, start, patience=None)
        async with contextlib.aclosing(heard) as batches:
            async for batch in batches:
                self._take(batch)

    def _take(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._bytes += size_of(batch)
        self._reached = batch.revision
        while len(self._batches) > KEPT or self._bytes > KEPT_BYTES:
            oldest = self._batches.popleft()
            self._bytes -= size_of(oldest)
            self._began = oldest.revision
        self._wake()

    def _wake(self) -> None:
        """Whoever waits for news: `_reached` is another one."""
        came, self._came = self._came, asyncio.Event()
        came.set()

    def _forget(self) -> None:
        self._batches.clear()
        self._bytes = self._reached = 0
        self._began = None

"""Change feed of an etcd store, by transaction: read once, or received on a stream that is kept open.

etcd serves a watch that starts in the past every 100 ms, an established one within a few. So a server keeps one stream
open, and caches its newest transactions for readers of changes. The cache is an optimisation: if the stream hangs,
changes are read from etcd.

Batches are built from the written keys and not from etcd's delete events, because a watch that starts exactly at the
compacted revision omits deletes (etcd issue 18089). So each transaction also stores the list of keys it deletes.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from fairlead.store import etcd_pb2 as pb
from fairlead.store.etcd_calls import RETRY_INTERVAL, TXN, EtcdError, EtcdMembers, EtcdUnreachable
from fairlead.store.etcd_requests import EtcdKeys, after_all, range_responses, read_revision
from fairlead.store.interface import Batch, Compacted, StoreUnavailable

MAX_CACHED_TRANSACTIONS, MAX_CACHED_BYTES = 1000, 8 * 2**20
"""Maximum transactions, and bytes of their documents, in the cache."""
MAX_TRANSACTION_BYTES, MAX_TRANSACTION_DOCUMENTS = 32 * 2**20, 100_000
"""Maximum bytes and documents of one transaction. Only replacing the whole store writes more."""
DELIVERY_TIMEOUT = 0.25
"""Seconds to wait for the stream to deliver a committed change, before the stream is restarted."""
MIN_RESTART_INTERVAL = 1.0
"""Minimum seconds between two restarts of the stream."""


async def stream_transactions(
    members: EtcdMembers, keys: EtcdKeys, after: int, patience: float | None
) -> AsyncGenerator[Batch, None]:
    """Yield the transactions after a revision, without end. `patience` is the maximum seconds between two messages.

    Raises Compacted, also if the store was replaced since `after`; StoreUnavailable, Refused and Unreached.
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
                if event.kv.key == keys.head:  # the head is the last key of a transaction
                    yield Batch(revision=event.kv.mod_revision, documents=written)
                    written, size = {}, 0
            if size > MAX_TRANSACTION_BYTES or len(written) > MAX_TRANSACTION_DOCUMENTS:
                raise Compacted("the watch received more data than one change can have")


def _documents(keys: EtcdKeys, event: Any) -> dict[str, bytes | None]:
    key, is_put = event.kv.key, event.type == pb.Event.PUT
    if key.startswith(keys.documents):
        return {keys.name(key): event.kv.value if is_put else None}
    if key.startswith(keys.gone) and is_put:
        return dict.fromkeys(msgspec.json.decode(event.kv.value, type=list[str]))
    return {}


def size_of(batch: Batch) -> int:
    return sum(len(value) for value in batch.documents.values() if value)


class Feed:
    """The change stream of one server, with its cache. It starts with the first watcher."""

    def __init__(self, members: EtcdMembers, keys: EtcdKeys) -> None:
        self._members, self._keys = members, keys
        self._batches: deque[Batch] = deque()
        self._bytes = 0
        self._start_revision: int | None = None
        self._end_revision = 0
        """The cache has all transactions after `_start_revision` up to `_end_revision`."""
        self._started = 0.0
        self._arrived = asyncio.Event()
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

    async def reset(self) -> None:
        """Drop the cache and restart the stream, because the store has been restored to an older state."""
        follows = self._task is not None
        await self.close()
        self._forget()
        if follows:
            self.start()

    @property
    def newest(self) -> int:
        """Revision of the newest transaction in the cache; 0 if it is empty."""
        return self._batches[-1].revision if self._batches else 0

    def since(self, revision: int) -> list[Batch] | None:
        """Return the transactions after a revision; None if the cache does not reach back that far."""
        if self._start_revision is None or not self._start_revision <= revision <= self._end_revision:
            return None
        newest: deque[Batch] = deque()
        for batch in reversed(self._batches):
            if batch.revision <= revision:
                break
            newest.appendleft(batch)
        return list(newest)

    async def read_up_to(self, after: int, head: int) -> list[Batch] | None:
        """Return the transactions after a revision, at least up to `head`; None if they need more than
        `DELIVERY_TIMEOUT`."""
        if self._task is None or (self._start_revision is not None and after < self._start_revision):
            return None
        try:
            async with asyncio.timeout(DELIVERY_TIMEOUT):
                await self.wait_after(head - 1)
        except TimeoutError:
            await self._restart()
            return None
        return self.since(after)

    async def wait_after(self, after: int) -> None:
        """Wait until a transaction later than this revision has arrived."""
        while self._end_revision <= after:
            await self._arrived.wait()

    async def _restart(self) -> None:
        """Restart the stream at the member that answers now, unless it was restarted recently.

        The stream's member hangs or is unreachable.
        """
        if asyncio.get_running_loop().time() - self._started > MIN_RESTART_INTERVAL:
            await self.close()
            self.start()

    async def _run(self) -> None:
        """Receive the stream until closed. Checks the current task, because a gRPC call that is cancelled while it
        fails reports only the failure."""
        while self._task is asyncio.current_task():
            try:
                await self._listen()
            except Compacted:
                self._forget()
            except (EtcdError, EtcdUnreachable, StoreUnavailable):
                pass
            await asyncio.sleep(RETRY_INTERVAL)

    async def _listen(self) -> None:
        start = self._end_revision
        if self._start_revision is None:
            looks = [read_revision(self._keys.head), read_revision(self._keys.fence)]
            answer = await self._members.call(TXN, pb.TxnRequest(success=looks))
            head, seal = (each.kvs for each in range_responses(answer.responses))
            start = answer.header.revision
            # Under a seal the keys may be half written, so the cache starts after them.
            self._start_revision = self._end_revision = (
                start if seal else max((each.mod_revision for each in head), default=0)
            )
            self._wake()  # waiters may need only the revisions stored already
        heard = stream_transactions(self._members, self._keys, start, patience=None)
        async with contextlib.aclosing(heard) as batches:
            async for batch in batches:
                self._take(batch)

    def _take(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._bytes += size_of(batch)
        self._end_revision = batch.revision
        while len(self._batches) > MAX_CACHED_TRANSACTIONS or self._bytes > MAX_CACHED_BYTES:
            oldest = self._batches.popleft()
            self._bytes -= size_of(oldest)
            self._start_revision = oldest.revision
        self._wake()

    def _wake(self) -> None:
        """Wake the waiters of `news`, because `_end_revision` has changed."""
        came, self._arrived = self._arrived, asyncio.Event()
        came.set()

    def _forget(self) -> None:
        self._batches.clear()
        self._bytes = self._end_revision = 0
        self._start_revision = None

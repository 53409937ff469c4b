"""Whole-store operations (`whole`) on a deployment's keys in etcd.

etcd assigns revisions itself, so a stored offset makes them newer than those of the copied store (`shifted`). Every
step is idempotent: if the desired seal is found, an earlier attempt succeeded and only its answer was lost.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence, Set
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from fairlead.store import etcd_pb2 as pb
from fairlead.store.bulk import PAGE_SIZE, StoreSnapshot, StoreState
from fairlead.store.etcd import VERSION, EtcdStore
from fairlead.store.etcd_calls import RANGE, TXN
from fairlead.store.etcd_requests import after_all, delete, is_value, nest, put, read, revision_is
from fairlead.store.interface import NO_REVISION, Conflict, Document
from fairlead.store.migration_fence import Fence, decode_fence, encode_fence

MAX_REQUEST_BYTES = 2**20
"""Maximum bytes in one request; etcd's default limit is 1.5 MiB."""
KEYS_PER_ENTRY = 5_000
"""Keys of deleted documents stored under one etcd key."""


class EtcdBulkStore(EtcdStore):
    """Whole store in etcd. Use `await EtcdWhole.open(location, access)`."""

    async def state(self) -> StoreState:
        return (await self._read_state())[0]

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[StoreSnapshot]:
        state, moment = await self._read_state()
        lists, _ = await self._read(self._keys.gone, after_all(self._keys.gone), None, moment=moment)
        gone = {key for each in lists for key in msgspec.json.decode(each.value, type=list[str])}
        first, end = self._keys.documents, after_all(self._keys.documents)
        there, _ = await self._read(first, end, None, keys_only=True, moment=moment)
        gone -= {self._keys.name(each.key) for each in there}
        pages = self._pages(moment, await self._read_offset())
        yield StoreSnapshot(revision=state.revision, documents=state.documents, deleted_keys=gone, pages=pages)

    async def set_fence(self, seal: Fence | None, before: Fence | None, head: int | None = None) -> None:
        more = [] if head is None else [revision_is(self._keys.head, head and head - await self._read_offset())]
        change = [put(self._keys.fence, encode_fence(seal))] if seal else [delete(self._keys.fence)]
        await self._change(change, before, seal, more)

    async def begin(self, seal: Fence, revision: int, gone: Set[str]) -> None:
        """Clear the store under the seal. The head stays unchanged, so watchers see nothing of the half-done copy."""
        now = (await self._ask(RANGE, pb.RangeRequest(key=self._keys.head))).header.revision
        away = (
            pb.Operation(delete=pb.DeleteRequest(key=each, range_end=after_all(each)))
            for each in (self._keys.documents, self._keys.gone)
        )
        offset = put(self._keys.offset, b"%d" % max(0, revision - now))
        await self._change([*away, offset], seal, seal)
        names = sorted(gone)
        for first in range(0, len(names), KEYS_PER_ENTRY):
            some = msgspec.json.encode(names[first : first + KEYS_PER_ENTRY])
            await self._change([put(self._keys.gone + f"{seal.id}-{first}".encode(), some)], seal, seal)

    async def put(self, seal: Fence, documents: Sequence[Document]) -> None:
        for some in _requests(documents):
            await self._change([put(self._keys.document(each.key), each.value) for each in some], seal, seal)

    async def finish(self, seal: Fence, revision: int) -> None:
        """Remove the seal and write the head. etcd's revision is beyond `revision` since `begin`."""
        await self._change([put(self._keys.head, VERSION), delete(self._keys.fence)], seal, None)

    async def _read_state(self) -> tuple[StoreState, int]:
        """Return the state and the etcd revision it was read at."""
        keys = self._keys
        count = pb.RangeRequest(key=keys.documents, range_end=after_all(keys.documents), count_only=True)
        looks = [pb.RangeRequest(key=keys.head, keys_only=True), pb.RangeRequest(key=keys.fence), count]
        answer = await self._ask(TXN, pb.TxnRequest(success=[pb.Operation(range=each) for each in looks]))
        head, seal, documents = (each.range for each in answer.responses)
        revision = head.kvs[0].mod_revision + await self._read_offset() if head.kvs else NO_REVISION
        found = decode_fence(seal.kvs[0].value) if seal.kvs else None
        return StoreState(revision=revision, documents=documents.count, fence=found), answer.header.revision

    async def _read_offset(self) -> int:
        await self.head()
        return self.revision_offset

    async def _pages(self, moment: int, offset: int) -> AsyncIterator[Sequence[Document]]:
        begin, end = self._keys.documents, after_all(self._keys.documents)
        while True:
            found, _ = await self._read(begin, end, PAGE_SIZE, moment=moment)
            if not found:
                return
            yield [
                Document(key=self._keys.name(each.key), revision=each.mod_revision + offset, value=each.value)
                for each in found
            ]
            begin = found[-1].key + b"\0"

    async def _change(
        self, operations: Iterable[Any], before: Fence | None, after: Fence | None, compare: Sequence[Any] = ()
    ) -> None:
        """Write if the seal is `before`. Raises Conflict."""
        seal = self._keys.fence
        there = is_value(seal, encode_fence(before)) if before else revision_is(seal, NO_REVISION)
        request = pb.TxnRequest(
            compare=[there, *compare],
            success=nest(list(operations)),
            failure=[read(seal)],
        )
        answer = await self._ask(TXN, request)
        if answer.succeeded:
            return
        found = answer.responses[0].range.kvs
        if before == after or [each.value for each in found] != ([encode_fence(after)] if after else []):
            raise Conflict("the store")

    async def _tidy(self) -> None:
        """Do nothing, so that two snapshots of an unused store are equal."""

    def _check_not_fenced(self, found: Sequence[Any]) -> None:
        """Do nothing: whole-store operations check the seal themselves."""


def _requests(documents: Sequence[Document]) -> Iterator[Sequence[Document]]:
    """Split documents into requests of at most `MAX_REQUEST_BYTES`, unless a single document is larger."""
    some: list[Document] = []
    size = 0
    for each in documents:
        size += len(each.key) + len(each.value)
        if some and size > MAX_REQUEST_BYTES:
            yield some
            some, size = [], len(each.key) + len(each.value)
        some.append(each)
    if some:
        yield some

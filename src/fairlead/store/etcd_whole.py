"""Whole-store operations (`whole`) on a deployment's keys in etcd.

etcd assigns revisions itself, so a stored offset makes them newer than those of the copied store (`shifted`). Every
step is idempotent: if the desired seal is found, an earlier attempt succeeded and only its answer was lost.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence, Set
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from fairlead.store import etcd_pb2 as pb
from fairlead.store.etcd import VERSION, EtcdStore
from fairlead.store.etcd_calls import RANGE, TXN
from fairlead.store.etcd_requests import after_all, delete, holds, is_value, nested, put, read
from fairlead.store.interface import ABSENT, Conflict, Document
from fairlead.store.migration_fence import Seal, decode_seal, encode_seal
from fairlead.store.whole import PAGE, Picture, State

BYTES = 2**20
"""Maximum bytes in one request; etcd's default limit is 1.5 MiB."""
GONE = 5_000
"""Keys of deleted documents stored under one etcd key."""


class EtcdWhole(EtcdStore):
    """Whole store in etcd. Use `await EtcdWhole.open(location, access)`."""

    async def state(self) -> State:
        return (await self._look_at_all())[0]

    @asynccontextmanager
    async def picture(self) -> AsyncIterator[Picture]:
        state, moment = await self._look_at_all()
        lists, _ = await self._read(self._keys.gone, after_all(self._keys.gone), None, moment=moment)
        gone = {key for each in lists for key in msgspec.json.decode(each.value, type=list[str])}
        first, end = self._keys.documents, after_all(self._keys.documents)
        there, _ = await self._read(first, end, None, keys_only=True, moment=moment)
        gone -= {self._keys.name(each.key) for each in there}
        pages = self._pages(moment, await self._more())
        yield Picture(revision=state.revision, documents=state.documents, gone=gone, pages=pages)

    async def seal(self, seal: Seal | None, before: Seal | None, head: int | None = None) -> None:
        more = [] if head is None else [holds(self._keys.head, head and head - await self._more())]
        change = [put(self._keys.seal, encode_seal(seal))] if seal else [delete(self._keys.seal)]
        await self._change(change, before, seal, more)

    async def begin(self, seal: Seal, revision: int, gone: Set[str]) -> None:
        """Clear the store under the seal. The head stays unchanged, so watchers see nothing of the half-done copy."""
        now = (await self._ask(RANGE, pb.RangeRequest(key=self._keys.head))).header.revision
        away = (
            pb.Operation(delete=pb.DeleteRequest(key=each, range_end=after_all(each)))
            for each in (self._keys.documents, self._keys.gone)
        )
        offset = put(self._keys.offset, b"%d" % max(0, revision - now))
        await self._change([*away, offset], seal, seal)
        names = sorted(gone)
        for first in range(0, len(names), GONE):
            some = msgspec.json.encode(names[first : first + GONE])
            await self._change([put(self._keys.gone + f"{seal.id}-{first}".encode(), some)], seal, seal)

    async def put(self, seal: Seal, documents: Sequence[Document]) -> None:
        for some in _requests(documents):
            await self._change([put(self._keys.document(each.key), each.value) for each in some], seal, seal)

    async def finish(self, seal: Seal, revision: int) -> None:
        """Remove the seal and write the head. etcd's revision is beyond `revision` since `begin`."""
        await self._change([put(self._keys.head, VERSION), delete(self._keys.seal)], seal, None)

    async def _look_at_all(self) -> tuple[State, int]:
        """Return the state and the etcd revision it was read at."""
        keys = self._keys
        count = pb.RangeRequest(key=keys.documents, range_end=after_all(keys.documents), count_only=True)
        looks = [pb.RangeRequest(key=keys.head, keys_only=True), pb.RangeRequest(key=keys.seal), count]
        answer = await self._ask(TXN, pb.TxnRequest(success=[pb.Operation(range=each) for each in looks]))
        head, seal, documents = (each.range for each in answer.responses)
        revision = head.kvs[0].mod_revision + await self._more() if head.kvs else ABSENT
        found = decode_seal(seal.kvs[0].value) if seal.kvs else None
        return State(revision=revision, documents=documents.count, seal=found), answer.header.revision

    async def _more(self) -> int:
        await self.head()
        return self.more

    async def _pages(self, moment: int, offset: int) -> AsyncIterator[Sequence[Document]]:
        begin, end = self._keys.documents, after_all(self._keys.documents)
        while True:
            found, _ = await self._read(begin, end, PAGE, moment=moment)
            if not found:
                return
            yield [
                Document(key=self._keys.name(each.key), revision=each.mod_revision + offset, value=each.value)
                for each in found
            ]
            begin = found[-1].key + b"\0"

    async def _change(
        self, operations: Iterable[Any], before: Seal | None, after: Seal | None, compare: Sequence[Any] = ()
    ) -> None:
        """Write if the seal is `before`. Raises Conflict."""
        seal = self._keys.seal
        there = is_value(seal, encode_seal(before)) if before else holds(seal, ABSENT)
        request = pb.TxnRequest(
            compare=[there, *compare],
            success=nested(list(operations)),
            failure=[read(seal)],
        )
        answer = await self._ask(TXN, request)
        if answer.succeeded:
            return
        found = answer.responses[0].range.kvs
        if before == after or [each.value for each in found] != ([encode_seal(after)] if after else []):
            raise Conflict("the store")

    async def _tidy(self) -> None:
        """Do nothing, so that two snapshots of an unused store are equal."""

    def _refuse_sealed(self, found: Sequence[Any]) -> None:
        """Do nothing: whole-store operations check the seal themselves."""


def _requests(documents: Sequence[Document]) -> Iterator[Sequence[Document]]:
    """Split documents into requests of at most `BYTES`, unless a single document is larger."""
    some: list[Document] = []
    size = 0
    for each in documents:
        size += len(each.key) + len(each.value)
        if some and size > BYTES:
            yield some
            some, size = [], len(each.key) + len(each.value)
        some.append(each)
    if some:
        yield some

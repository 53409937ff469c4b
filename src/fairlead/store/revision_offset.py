"""Store with revisions that are those of another store plus an offset.

etcd assigns its own revisions, which may be lower than those of a store that was copied into it. Without the offset a
port's `revision_number` would decrease, and a revision known to a client would be reused.

The offset changes if the store is replaced while a server runs. Revisions read before are invalid then, and the store
has to be read again.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from fairlead.store.interface import NO_REVISION, Batch, Compacted, Document, Store

UNUSED_REVISION = -1


class StoreWithOffset(Store, Protocol):
    @property
    def revision_offset(self) -> int:
        """Offset to the store's own revisions, as of the last request."""


class OffsetStore:
    def __init__(self, store: StoreWithOffset) -> None:
        self._store = store

    @property
    def _revision_offset(self) -> int:
        return self._store.revision_offset

    async def head(self) -> int:
        return self._from_stored(await self._store.head())

    async def get(self, key: str) -> Document | None:
        found = await self._store.get(key)
        return found and self._shift_document(found)

    async def range(self, prefix: str, *, after: str = "", limit: int | None = None) -> tuple[list[Document], int]:
        found, revision = await self._store.range(prefix, after=after, limit=limit)
        return list(map(self._shift_document, found)), self._from_stored(revision)

    async def transact(
        self, *, guards: Mapping[str, int], puts: Mapping[str, bytes], deletes: Iterable[str], head: int | None = None
    ) -> int:
        more = self._revision_offset
        revision = await self._store.transact(
            guards={key: self._to_stored(revision) for key, revision in guards.items()},
            puts=puts,
            deletes=deletes,
            head=None if head is None else self._to_stored(head),
        )
        return revision + more

    async def deleted(self) -> set[str]:
        return await self._store.deleted()

    async def changes(self, after: int) -> list[Batch]:
        return [self._shift_batch(each) for each in await self._store.changes(self._since(after))]

    async def watch(self, after: int) -> AsyncIterator[Batch]:
        async for each in self._store.watch(self._since(after)):
            yield self._shift_batch(each)

    async def renew(self) -> None:
        await self._store.renew()

    async def close(self) -> None:
        await self._store.close()

    def _to_stored(self, revision: int) -> int:
        """Map to the store's own revision. One from before the copy maps to a revision that matches no document."""
        if revision == NO_REVISION:
            return NO_REVISION
        return revision - self._revision_offset if revision > self._revision_offset else UNUSED_REVISION

    def _since(self, revision: int) -> int:
        """Map the start of a feed. Raises Compacted if it is before the copy."""
        if revision == NO_REVISION:
            return NO_REVISION
        if revision <= self._revision_offset:
            raise Compacted(f"the feed begins after the copy, which ended at revision {self._revision_offset}")
        return revision - self._revision_offset

    def _from_stored(self, revision: int) -> int:
        return revision + self._revision_offset if revision else NO_REVISION

    def _shift_batch(self, batch: Batch) -> Batch:
        return replace(batch, revision=batch.revision + self._revision_offset)

    def _shift_document(self, document: Document) -> Document:
        return replace(document, revision=document.revision + self._revision_offset)

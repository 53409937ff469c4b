"""A store whose revisions are those of another one and a number more.

Etcd gives its own revisions. What was copied into it comes from a store that may have been further: without this a
port's `revision_number` would go back, and a number that a client has seen would come again for something else.

The number is another one once the store was replaced while a server runs on it. What was read before is no revision of
it then, and has to be read again.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from fairlead.store.interface import ABSENT, Batch, Compacted, Document, Store

NOBODYS = -1


class Numbered(Store, Protocol):
    @property
    def more(self) -> int:
        """Than its own: as of what it was asked last."""


class Shifted:
    def __init__(self, store: Numbered) -> None:
        self._store = store

    @property
    def _more(self) -> int:
        return self._store.more

    async def head(self) -> int:
        return self._later(await self._store.head())

    async def get(self, key: str) -> Document | None:
        found = await self._store.get(key)
        return found and self._shown(found)

    async def range(self, prefix: str, *, after: str = "", limit: int | None = None) -> tuple[list[Document], int]:
        found, revision = await self._store.range(prefix, after=after, limit=limit)
        return list(map(self._shown, found)), self._later(revision)

    async def transact(
        self, *, guards: Mapping[str, int], puts: Mapping[str, bytes], deletes: Iterable[str], head: int | None = None
    ) -> int:
        more = self._more
        revision = await self._store.transact(
            guards={key: self._own(revision) for key, revision in guards.items()},
            puts=puts,
            deletes=deletes,
            head=None if head is None else self._own(head),
        )
        return revision + more

    async def deleted(self) -> set[str]:
        return await self._store.deleted()

    async def changes(self, after: int) -> list[Batch]:
        return [self._told(each) for each in await self._store.changes(self._since(after))]

    async def watch(self, after: int) -> AsyncIterator[Batch]:
        async for each in self._store.watch(self._since(after)):
            yield self._told(each)

    async def renew(self) -> None:
        await self._store.renew()

    async def close(self) -> None:
        await self._store.close()

    def _own(self, revision: int) -> int:
        """One from before the copy is nobody's here, and not `ABSENT` either."""
        if revision == ABSENT:
            return ABSENT
        return revision - self._more if revision > self._more else NOBODYS

    def _since(self, revision: int) -> int:
        """Raises Compacted."""
        if revision == ABSENT:
            return ABSENT
        if revision <= self._more:
            raise Compacted(f"the feed begins after the copy, which ended after revision {self._more}")
        return revision - self._more

    def _later(self, revision: int) -> int:
        return revision + self._more if revision else ABSENT

    def _told(self, batch: Batch) -> Batch:
        return replace(batch, revision=batch.revision + self._more)

    def _shown(self, document: Document) -> Document:
        return replace(document, revision=document.revision + self._more)

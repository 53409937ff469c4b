"""Whole-store operations, which servers do not use: snapshot, seal, fill. For copies, backups and restores.

Revisions only increase over a move: a client that has seen a document, or waits for a revision, never sees an older one
afterwards.
"""

from collections.abc import AsyncIterator, Sequence, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from fairlead.store.interface import Document, StoreError, StoreUnavailable
from fairlead.store.migration_fence import Fence

PAGE_SIZE = 500
"""Documents in one page."""


class BulkOperationRejected(StoreError):
    """The operation is not allowed; nothing was changed. The message names the remedy."""


class StoreMissing(StoreUnavailable):
    """The file does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    revision: int
    documents: int
    fence: Fence | None

    @property
    def is_empty(self) -> bool:
        return self.fence is None and not self.documents and not self.revision


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSnapshot:
    """All documents of a store at one moment, independent of later writes."""

    revision: int
    documents: int
    deleted_keys: Set[str]
    """Keys of deleted documents, as far back as the store's feed reaches."""
    pages: AsyncIterator[Sequence[Document]]
    """Documents, ordered by key."""


class BulkStore(Protocol):
    async def state(self) -> StoreState:
        """Return the store's state. Raises StoreUnavailable."""

    def snapshot(self) -> AbstractAsyncContextManager[StoreSnapshot]:
        """Open a snapshot. Raises StoreUnavailable, and Compacted if etcd compacts its revision during the read."""

    async def set_fence(self, seal: Fence | None, before: Fence | None, head: int | None = None) -> None:
        """Replace the seal `before` by `seal`; with `head`, only if the store is still at this revision.

        Raises Conflict and StoreUnavailable.
        """

    async def begin(self, seal: Fence, revision: int, gone: Set[str]) -> None:
        """Delete all contents under this seal. Later writes get revisions above `revision`, except that copied
        documents keep their own in a store that can set them. Raises Conflict and StoreUnavailable."""

    async def put(self, seal: Fence, documents: Sequence[Document]) -> None:
        """Write documents under this seal. Raises Conflict and StoreUnavailable."""

    async def finish(self, seal: Fence, revision: int) -> None:
        """Remove the seal: the store is complete, at this revision or later. Raises Conflict and StoreUnavailable."""

    async def close(self) -> None: ...

"""Interface of a store: get, range, transact and watch, as in etcd, and implementable with SQLite.

A document has one key and one revision: the number of the transaction that wrote it last. Revisions increase over all
keys and may have gaps. Every read and every transaction is linearizable.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

NO_REVISION = 0
"""Revision of a document that does not exist."""


class StoreError(Exception):
    """The store rejected or failed the operation. Nothing was written, except with OutcomeUnknown."""


class Conflict(StoreError):
    """Write conflict: a guard does not hold because another writer was first. Read and decide again."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} was changed by another writer")
        self.key = key


class RetriesExhausted(StoreError):
    """Every retry lost a write conflict; nothing was written."""


class StoreUnavailable(StoreError):
    """The store is unusable: disk full, foreign file, no quorum. The message names the reason."""


class OutcomeUnknown(StoreUnavailable):
    """The connection was lost during a transaction, and it is unknown whether it was committed.

    It cannot be committed later than this server's next change.
    """


class TooLarge(StoreError):
    """The transaction exceeds the store's limits. The message names the limit."""


class Compacted(StoreError):
    """The change feed does not reach back that far. Read the whole store again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    key: str
    revision: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Changes of one transaction: key -> value, None for a deleted document."""

    revision: int
    documents: Mapping[str, bytes | None]


class Store(Protocol):
    async def head(self) -> int:
        """Return the newest revision, at least as new as any transaction acknowledged before this call.

        Cheap, and never blocked by writers. Raises StoreUnavailable.
        """

    async def get(self, key: str) -> Document | None:
        """Return a document; None if it does not exist. Raises StoreUnavailable."""

    async def range(self, prefix: str, *, after: str = "", limit: int | None = None) -> tuple[list[Document], int]:
        """Return the documents with keys that start with `prefix`, ordered by key, and the store's revision.

        Only keys after `after`, and at most `limit` of them. Raises StoreUnavailable.
        """

    async def transact(
        self, *, guards: Mapping[str, int], puts: Mapping[str, bytes], deletes: Iterable[str], head: int | None = None
    ) -> int:
        """Write all changes if every guarded key has the revision in `guards`, and otherwise nothing.

        With `head`, the store itself must still be at that revision: no other transaction since. Returns the new
        revision, after the transaction is durable against a crash and power loss. Raises Conflict, TooLarge and
        StoreUnavailable; only its subclass OutcomeUnknown may have written.
        """

    async def deleted(self) -> set[str]:
        """Return the keys of deleted documents, as far back as the feed reaches. Raises StoreUnavailable."""

    async def changes(self, after: int) -> list[Batch]:
        """Return every transaction after this revision, in order. Raises Compacted and StoreUnavailable."""

    def watch(self, after: int) -> AsyncIterator[Batch]:
        """Yield every transaction after this revision, without end. Raises Compacted and StoreUnavailable."""

    async def renew(self) -> None:
        """Reload certificates and passwords from their files, if any. Concurrent requests are not lost.

        Raises StoreUnavailable, and then keeps the previous ones.
        """

    async def close(self) -> None: ...

"""What the rest asks of a store: get, range, transact, watch, as etcd has them and SQLite can do them.

One document under one key with one revision. A revision is the number of the transaction that wrote the document last;
numbers only grow, over all keys, and may leave gaps. Every read and every transaction is linearizable.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

ABSENT = 0
"""The revision of a document that does not exist."""


class StoreError(Exception):
    """The store could not do it; nothing was written, unless it is OutcomeUnknown."""


class Conflict(StoreError):
    """A guard does not hold: somebody else wrote first. Read again and decide again."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} was changed meanwhile")
        self.key = key


class Overtaken(StoreError):
    """Others wrote first, as often as it was tried: nothing was written."""


class StoreUnavailable(StoreError):
    """The disk is full, the file is not ours, the cluster has no quorum: the message says which."""


class OutcomeUnknown(StoreUnavailable):
    """The cluster went away in the middle of it: nobody can tell yet whether it was written. It will not be done later
    than the next change of this server."""


class TooLarge(StoreError):
    """More than the store takes at once. The message says how much that is."""


class Compacted(StoreError):
    """The feed no longer goes back that far: read everything again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    key: str
    revision: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one transaction changed; a deleted document has the value None."""

    revision: int
    documents: Mapping[str, bytes | None]


class Store(Protocol):
    async def head(self) -> int:
        """The revision of the newest transaction: what was answered before this was asked is not newer.

        It costs little, and waits for nobody who writes. Raises StoreUnavailable.
        """

    async def get(self, key: str) -> Document | None:
        """Raises StoreUnavailable."""

    async def range(self, prefix: str, *, after: str = "", limit: int | None = None) -> tuple[list[Document], int]:
        """The documents whose keys start with `prefix`, in the order of keys, and the revision of the store.

        Of those behind the key `after` the first `limit`. Raises StoreUnavailable.
        """

    async def transact(
        self, *, guards: Mapping[str, int], puts: Mapping[str, bytes], deletes: Iterable[str], head: int | None = None
    ) -> int:
        """Write all, if every guarded key still has the revision that `guards` says; otherwise nothing. With `head`,
        only if the store itself is still at that revision: nothing at all was written since.

        Answers the new revision.

        What it answers survives the loss of the process and of power. Raises Conflict, TooLarge and StoreUnavailable,
        of which OutcomeUnknown alone may have written.
        """

    async def deleted(self) -> set[str]:
        """The keys of documents that once were, as far back as the feed goes. Raises StoreUnavailable."""

    async def changes(self, after: int) -> list[Batch]:
        """Every transaction after this revision until now, in order. Raises Compacted and StoreUnavailable."""

    def watch(self, after: int) -> AsyncIterator[Batch]:
        """The same, for ever. Raises Compacted and StoreUnavailable."""

    async def renew(self) -> None:
        """Certificates and passwords are what their files have now, if any is needed. Nothing that is asked meanwhile
        is lost. Raises StoreUnavailable: what was read before goes on then."""

    async def close(self) -> None: ...

"""A store taken as a whole, to be copied, kept and filled: what servers may not do with it.

Revisions only grow over a move: whoever has seen a document, or waits for a revision, sees no older one afterwards.
"""

from collections.abc import AsyncIterator, Sequence, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from fairlead.store.interface import Document, StoreError, StoreUnavailable
from fairlead.store.seal import Seal

PAGE = 500
"""Documents at once."""


class Refused(StoreError):
    """Nothing was changed. The message says what would be right."""


class Absent(StoreUnavailable):
    """There is no such file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    revision: int
    documents: int
    seal: Seal | None

    @property
    def is_empty(self) -> bool:
        return self.seal is None and not self.documents and not self.revision


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All of a store as of one moment, whatever is written meanwhile."""

    revision: int
    documents: int
    gone: Set[str]
    """What was deleted, as far back as the store knows."""
    pages: AsyncIterator[Sequence[Document]]
    """In the order of keys."""


class Whole(Protocol):
    async def state(self) -> State:
        """Raises StoreUnavailable."""

    def picture(self) -> AbstractAsyncContextManager[Picture]:
        """Raises StoreUnavailable, and Compacted when etcd has forgotten the moment meanwhile."""

    async def seal(self, seal: Seal | None, before: Seal | None, head: int | None = None) -> None:
        """This seal in the place of that one; with `head`, only if the store is still at this revision. Raises Conflict
        and StoreUnavailable."""

    async def begin(self, seal: Seal, revision: int, gone: Set[str]) -> None:
        """Under this seal: away with all that is there. Whatever is written from now on is newer than `revision`, but
        for documents that bring a revision and a store that can keep it. Raises Conflict, StoreUnavailable."""

    async def put(self, seal: Seal, documents: Sequence[Document]) -> None:
        """Under this seal. Raises Conflict, StoreUnavailable."""

    async def finish(self, seal: Seal, revision: int) -> None:
        """It is whole, at this revision or a newer one: the seal goes. Raises Conflict, StoreUnavailable."""

    async def close(self) -> None: ...

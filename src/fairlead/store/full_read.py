"""Full read of a store: the documents that differ from the model, and the owners they affect.

Pages are read one after the other, so changes written in between are applied on top from the feed. Only the complete
result is consistent (a router's port has its router), so nothing is derived from a part of it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

from fairlead.model.documents.owner import Owner, creation_order
from fairlead.model.registry.affected import find_affected_owners, may_have_rows
from fairlead.model.registry.changeset import Changes, apply_changes, load_documents
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Aggregate, Snapshot
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import Steps, sort_cooperatively
from fairlead.store.codec import owner_of_key
from fairlead.store.interface import Batch, Compacted, Document, Store, StoreUnavailable

CLAIM = "claim/"
PAGE_SIZE = 500
"""Documents in one page."""
MAX_ATTEMPTS = 5
"""Attempts, in case the store is compacted before the end of a read."""
STEP_DOCUMENTS = 20
"""Documents processed without yielding to the event loop."""
Stored: TypeAlias = dict[Owner, tuple[Aggregate, int] | None]
"""Owner -> its document and the revision that wrote it; None for a deleted one."""
Decode: TypeAlias = Callable[[str, bytes], Aggregate]
_T = TypeVar("_T")


async def read_changed(store: Store, known: Mapping[Owner, int], decode: Decode) -> tuple[Stored, int]:
    """Return the documents with other revisions than `known`, and the revision of the store.

    Raises StoreUnavailable, and the errors of `decode`.
    """
    for _ in range(MAX_ATTEMPTS):
        try:
            return await _read_once(store, known, decode)
        except Compacted:
            continue
    raise StoreUnavailable("the store compacts its history faster than Fairlead reads it")


async def _read_once(store: Store, known: Mapping[Owner, int], decode: Decode) -> tuple[Stored, int]:
    found: Stored = {}
    gone = set(known)
    documents, revision = await store.range("", limit=PAGE_SIZE)
    while documents:  # by page: all documents together would use as much memory as the model
        await run_in_steps(_compare(documents, known, decode, found, gone))
        documents, _ = await store.range("", after=documents[-1].key, limit=PAGE_SIZE)
    found |= dict.fromkeys(gone)
    for batch in await store.changes(revision):
        revision = batch.revision
        for owner, document in decode_batch(batch, decode):
            found[owner] = None if document is None else (document, revision)
    return found, revision


def _compare(
    documents: Iterable[Document], known: Mapping[Owner, int], decode: Decode, found: Stored, gone: set[Owner]
) -> Steps[None]:
    for document in documents:
        if not document.key.startswith(CLAIM):
            owner = owner_of_key(document.key)
            if owner is None or known.get(owner) != document.revision:
                aggregate = decode(document.key, document.value)
                found[owner_of(aggregate)] = aggregate, document.revision
            if owner is not None:
                gone.discard(owner)
        yield


def decode_batch(batch: Batch, decode: Decode) -> Iterator[tuple[Owner, Aggregate | None]]:
    """Yield the documents of one transaction; None for those that it deleted."""
    for key, value in batch.documents.items():
        if not key.startswith(CLAIM):
            if value is not None:
                document = decode(key, value)
                yield owner_of(document), document
            elif (owner := owner_of_key(key)) is not None:
                yield owner, None


def with_stored(snapshot: Snapshot, stored: Stored, revision: int) -> Steps[Snapshot]:
    """Return the snapshot with these documents, without the state derived from documents and facts."""
    for some in parts([owner for owner, found in stored.items() if found is None], STEP_DOCUMENTS):
        snapshot = apply_changes(snapshot, Changes(deletes=tuple(some)), revision)
        yield
    for each in parts([found for found in stored.values() if found is not None], STEP_DOCUMENTS):
        snapshot = load_documents(snapshot, each, revision)
        yield
    return load_documents(snapshot, (), revision)


def affected_owners(old: Snapshot, new: Snapshot, changed: Sequence[Owner]) -> Steps[Sequence[Owner]]:
    """Return the affected owners, as `affected` does, for many documents and in steps."""
    owners = set[Owner]()
    for some in parts(changed, STEP_DOCUMENTS):
        owners.update(find_affected_owners(old, new, some))
        yield
    there, gone = list[Owner](), list[Owner]()
    for owner in owners:
        (there if may_have_rows(new, owner) else gone).append(owner)
        yield
    first = yield from sort_cooperatively(there, creation_order)
    return [*first, *(yield from sort_cooperatively(gone, creation_order, reverse=True))]


def parts(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    return (items[first : first + size] for first in range(0, len(items), size))

"""All that is stored, read anew: how it differs from what a model knows, and which owners that concerns.

Pages are read one after the other, so what was written between two of them is put over them: only the whole is a model
of which anything may be derived. A router's port without its router is none.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

from fairlead.model.affected import affected, exists
from fairlead.model.kinds import owner_of
from fairlead.model.owner import Owner, creation_order
from fairlead.model.snapshot import Aggregate, Snapshot
from fairlead.model.steps import Steps, in_order
from fairlead.model.writing import Changes, apply_changes, load_documents
from fairlead.resting import in_steps
from fairlead.store.codec import owner_stored
from fairlead.store.interface import Batch, Compacted, Document, Store, StoreUnavailable

CLAIM = "claim/"
PAGE = 500
"""Documents that are read at once."""
READINGS = 5
"""Of a store that is compacted before the end is reached."""
TOGETHER = 20
"""Documents that are put, or asked what depends on them, without a rest."""
Stored: TypeAlias = dict[Owner, tuple[Aggregate, int] | None]
"""Document -> it and the revision that wrote it; None for one that is gone."""
Decode: TypeAlias = Callable[[str, bytes], Aggregate]
_T = TypeVar("_T")


async def read_stored(store: Store, known: Mapping[Owner, int], decode: Decode) -> tuple[Stored, int]:
    """The documents that are other than those of these generations, and as of which revision.

    Raises StoreUnavailable, and what `decode` raises.
    """
    for _ in range(READINGS):
        try:
            return await _read_once(store, known, decode)
        except Compacted:
            continue
    raise StoreUnavailable("it is compacted faster than it can be read")


async def _read_once(store: Store, known: Mapping[Owner, int], decode: Decode) -> tuple[Stored, int]:
    found: Stored = {}
    gone = set(known)
    documents, revision = await store.range("", limit=PAGE)
    while documents:  # page by page: all of them at once would take as much memory as the model
        await in_steps(_compare(documents, known, decode, found, gone))
        documents, _ = await store.range("", after=documents[-1].key, limit=PAGE)
    found |= dict.fromkeys(gone)
    for batch in await store.changes(revision):
        revision = batch.revision
        for owner, document in written(batch, decode):
            found[owner] = None if document is None else (document, revision)
    return found, revision


def _compare(
    documents: Iterable[Document], known: Mapping[Owner, int], decode: Decode, found: Stored, gone: set[Owner]
) -> Steps[None]:
    for document in documents:
        if not document.key.startswith(CLAIM):
            owner = owner_stored(document.key)
            if owner is None or known.get(owner) != document.revision:
                aggregate = decode(document.key, document.value)
                found[owner_of(aggregate)] = aggregate, document.revision
            if owner is not None:
                gone.discard(owner)
        yield


def written(batch: Batch, decode: Decode) -> Iterator[tuple[Owner, Aggregate | None]]:
    """The documents of one transaction; None for those that it deleted."""
    for key, value in batch.documents.items():
        if not key.startswith(CLAIM):
            if value is not None:
                document = decode(key, value)
                yield owner_of(document), document
            elif (owner := owner_stored(key)) is not None:
                yield owner, None


def with_stored(snapshot: Snapshot, stored: Stored, revision: int) -> Steps[Snapshot]:
    """The snapshot with these documents. What follows from them and facts together is not derived yet."""
    for some in parts([owner for owner, found in stored.items() if found is None], TOGETHER):
        snapshot = apply_changes(snapshot, Changes(deletes=tuple(some)), revision)
        yield
    for each in parts([found for found in stored.values() if found is not None], TOGETHER):
        snapshot = load_documents(snapshot, each, revision)
        yield
    return load_documents(snapshot, (), revision)


def concerned(old: Snapshot, new: Snapshot, changed: Sequence[Owner]) -> Steps[Sequence[Owner]]:
    """As `affected`, of many documents."""
    owners = set[Owner]()
    for some in parts(changed, TOGETHER):
        owners.update(affected(old, new, some))
        yield
    there, gone = list[Owner](), list[Owner]()
    for owner in owners:
        (there if exists(new, owner) else gone).append(owner)
        yield
    first = yield from in_order(there, creation_order)
    return [*first, *(yield from in_order(gone, creation_order, reverse=True))]


def parts(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    return (items[first : first + size] for first in range(0, len(items), size))

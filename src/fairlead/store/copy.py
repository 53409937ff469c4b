"""Copying a store into another one: seal both, fill the target, compare, then open the target.

During a copy the servers of the source can read but not write, and no server can use the target. At the end the source
is sealed with the location of the target. An interrupted copy always leaves the source usable.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TypeAlias

from fairlead.store.bulk import BulkOperationRejected, BulkStore, StoreSnapshot
from fairlead.store.bulk import StoreState as Found
from fairlead.store.interface import Conflict, Document, StoreError
from fairlead.store.migration_fence import Fence, FenceState

MAX_LISTED_DIFFERENCES = 10
"""Maximum differences that are listed."""
ReportProgress: TypeAlias = Callable[[str, int, int], None]
"""Progress callback: phase ("copied" or "compared"), documents done, documents in total."""
OpenSnapshot: TypeAlias = Callable[[], AbstractAsyncContextManager[StoreSnapshot]]
"""Opens another snapshot of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyJob:
    source: str
    target: str
    since: str
    id: str
    replaces: bool
    """Whether the present contents of the target are discarded."""

    def fence(self, state: FenceState) -> Fence:
        other = self.source if state is FenceState.FILLING else self.target
        return Fence(state=state, other=other, since=self.since, id=self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentDifference:
    key: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyComparison:
    documents: int
    octets: int
    differing: int
    first: Sequence[DocumentDifference]


class CopyDiffers(StoreError):
    """The target differs from the source after the copy, and stays sealed."""

    def __init__(self, compared: CopyComparison) -> None:
        super().__init__(f"{compared.differing} documents of the copy differ from the source")
        self.compared = compared


EMPTY_STORE = Found(revision=0, documents=0, fence=None)


async def check_copy(source: BulkStore, target: BulkStore | None, move: CopyJob) -> tuple[Found, Found]:
    """Return the state of both ends if the copy is allowed. `target` None is a file that does not exist yet.

    Raises Refused and StoreUnavailable.
    """
    if move.source == move.target:
        raise BulkOperationRejected(f"{move.source}: source and target are the same store")
    found = await source.state()
    seal = found.fence
    if seal and seal.state is FenceState.FILLING:
        raise BulkOperationRejected(f"{move.source}: {seal.words}")
    if seal and seal.other != move.target:
        raise BulkOperationRejected(f"{move.source}: {seal.words}")
    if not found.documents and not found.revision:
        raise BulkOperationRejected(f"{move.source} is empty; check the URL of the source")
    there = await target.state() if target else EMPTY_STORE
    if seal and seal.state is FenceState.MOVED and not _is_begun(there, move):
        raise BulkOperationRejected(
            f"{move.source}: {seal.words}. The documents there are newer; to return to this store, copy from there"
        )
    check_target(there, move)
    return found, there


def _is_begun(there: Found, move: CopyJob) -> bool:
    """Whether the target was partly filled by an earlier, interrupted copy of the same move."""
    return there.fence is not None and there.fence.state is FenceState.FILLING and there.fence.other == move.source


class CopyEffect(StrEnum):
    """Effect of a move on its target."""

    FILL = "fill"
    RESUME = "resume"
    """Start again: an earlier copy was interrupted."""
    REPLACE = "replace"
    REFUSE = "refuse"


def copy_effect(there: Found, move: CopyJob) -> CopyEffect:
    if there.is_empty:
        return CopyEffect.FILL
    if _is_begun(there, move):
        return CopyEffect.RESUME
    return CopyEffect.REPLACE if move.replaces else CopyEffect.REFUSE


def describe_contents(there: Found) -> str:
    """Describe the contents of a target that is not empty."""
    return there.fence.words if there.fence else f"{there.documents} documents, revision {there.revision}"


class StoreNotEmpty(BulkOperationRejected):
    """The target has documents, and the move is not allowed to replace them."""

    def __init__(self, there: Found, move: CopyJob) -> None:
        self.reason = f"{move.target} is not empty: {describe_contents(there)}"
        super().__init__(f"{self.reason}. To overwrite it, stop its servers and use --replace")


def check_target(there: Found, move: CopyJob) -> None:
    """Raise NotEmpty if the move is not allowed to write to this target."""
    if copy_effect(there, move) is CopyEffect.REFUSE:
        raise StoreNotEmpty(there, move)


async def copy(source: BulkStore, target: BulkStore, move: CopyJob, tell: ReportProgress) -> CopyComparison:
    """Copy a store and compare the result. Raises Refused, Differs and StoreUnavailable."""
    found, there = await check_copy(source, target, move)
    filling = move.fence(FenceState.FILLING)
    await _fence_target(target, filling, there)
    held = await _fence_source(source, found.fence, move, partial(target.set_fence, there.fence, filling))
    try:
        revision = max((await source.state()).revision, there.revision)
        compared = await fill(target, filling, source.snapshot, revision, tell)
        moved = move.fence(FenceState.MOVED)
        await source.set_fence(moved, held)
        held = moved
        await target.finish(filling, revision)
    except BaseException:
        if held.state is FenceState.COPYING:
            with contextlib.suppress(StoreError):
                await source.set_fence(None, held)
        raise
    return compared


async def restore(
    target: BulkStore, pictures: OpenSnapshot, move: CopyJob, more: int, tell: ReportProgress
) -> CopyComparison:
    """Fill a store from a backup.

    The store's revision becomes `more` higher than the backup's, because the lost store may have had newer revisions
    than its backup. Raises Refused, Differs and StoreUnavailable.
    """
    there = await target.state()
    check_target(there, move)
    filling = move.fence(FenceState.FILLING)
    await _fence_target(target, filling, there)
    async with pictures() as picture:
        revision = max(picture.revision, there.revision) + more
    compared = await fill(target, filling, pictures, revision, tell)
    await target.finish(filling, revision)
    return compared


async def fill(
    target: BulkStore, seal: Fence, pictures: OpenSnapshot, revision: int, tell: ReportProgress
) -> CopyComparison:
    """Copy all documents under the seal and compare the result. Raises Differs and StoreUnavailable."""
    async with pictures() as picture:
        await target.begin(seal, revision, picture.deleted_keys)
        done = 0
        tell("copied", done, picture.documents)
        async for page in picture.pages:
            await target.put(seal, page)
            done += len(page)
            tell("copied", done, picture.documents)
    compared = await compare(pictures, target.snapshot, tell)
    if compared.differing:
        raise CopyDiffers(compared)
    return compared


async def compare(one: OpenSnapshot, other: OpenSnapshot, tell: ReportProgress) -> CopyComparison:
    """Compare each document byte for byte, and the keys of deleted documents. Raises StoreUnavailable."""
    first: list[DocumentDifference] = []
    documents = octets = differing = 0
    async with one() as mine, other() as theirs:
        differences = [
            DocumentDifference(key=key, what="recorded as deleted in one of the stores")
            for key in mine.deleted_keys ^ theirs.deleted_keys
        ]
        async for left, right in _pairs(mine.pages, theirs.pages):
            documents += left is not None
            octets += len(left.value) if left else 0
            if what := _difference(left, right):
                differences.append(DocumentDifference(key=(left or right or _NONE).key, what=what))
            differing += len(differences)
            first += differences[: MAX_LISTED_DIFFERENCES - len(first)]
            differences.clear()
            if documents % 500 == 0:
                tell("compared", documents, mine.documents)
        differing += len(differences)
        first += differences[: MAX_LISTED_DIFFERENCES - len(first)]
        tell("compared", documents, mine.documents)
    return CopyComparison(documents=documents, octets=octets, differing=differing, first=first)


_NONE = Document(key="", revision=0, value=b"")


def _difference(left: Document | None, right: Document | None) -> str:
    if left is None:
        return "missing in the first store"
    if right is None:
        return "missing in the second store"
    if left.value != right.value:
        return "different content"
    return "older revision in the second store" if right.revision < left.revision else ""


async def _pairs(
    left: AsyncIterator[Sequence[Document]], right: AsyncIterator[Sequence[Document]]
) -> AsyncIterator[tuple[Document | None, Document | None]]:
    """Merge two ordered sequences by key; None for a document that is missing on one side."""
    mine, theirs = _each(left), _each(right)
    one, other = await anext(mine, None), await anext(theirs, None)
    while one or other:
        if one and other and one.key == other.key:
            yield one, other
            one, other = await anext(mine, None), await anext(theirs, None)
        elif one and (not other or one.key.encode() < other.key.encode()):
            yield one, None
            one = await anext(mine, None)
        else:
            yield None, other
            other = await anext(theirs, None)


async def _each(pages: AsyncIterator[Sequence[Document]]) -> AsyncIterator[Document]:
    async for page in pages:
        for each in page:
            yield each


async def _fence_target(target: BulkStore, seal: Fence, there: Found) -> None:
    """Seal the target. Raises Refused if another process writes to it."""
    try:
        await target.set_fence(seal, there.fence, there.revision)
    except Conflict:
        raise BulkOperationRejected(
            f"{seal.other}: another program is writing to the target store; stop its servers"
        ) from None


async def _fence_source(
    source: BulkStore, before: Fence | None, move: CopyJob, undo: Callable[[], Awaitable[None]]
) -> Fence:
    """Seal the source against writes. Raises Refused, after `undo` has restored the target's seal."""
    if before and before.state is FenceState.MOVED:
        return before
    seal = move.fence(FenceState.COPYING)
    try:
        await source.set_fence(seal, before)
    except BaseException as error:
        await undo()
        if isinstance(error, Conflict):
            raise BulkOperationRejected(
                f"{move.source}: another copy is in progress, or {move.target} is the same store"
            ) from None
        raise
    return seal

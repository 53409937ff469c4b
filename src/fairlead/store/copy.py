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

from fairlead.store.interface import Conflict, Document, StoreError
from fairlead.store.migration_fence import Seal, State
from fairlead.store.whole import Picture, Refused, Whole
from fairlead.store.whole import State as Found

SHOWN = 10
"""Maximum differences that are listed."""
Tell: TypeAlias = Callable[[str, int, int], None]
"""Progress callback: phase ("copied" or "compared"), documents done, documents in total."""
Pictures: TypeAlias = Callable[[], AbstractAsyncContextManager[Picture]]
"""Opens another snapshot of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    source: str
    target: str
    since: str
    id: str
    replaces: bool
    """Whether the present contents of the target are discarded."""

    def seal(self, state: State) -> Seal:
        other = self.source if state is State.FILLING else self.target
        return Seal(state=state, other=other, since=self.since, id=self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    key: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    documents: int
    octets: int
    differing: int
    first: Sequence[Difference]


class Differs(StoreError):
    """The target differs from the source after the copy, and stays sealed."""

    def __init__(self, compared: Compared) -> None:
        super().__init__(f"{compared.differing} documents differ from what was read")
        self.compared = compared


NOTHING = Found(revision=0, documents=0, seal=None)


async def check_copy(source: Whole, target: Whole | None, move: Move) -> tuple[Found, Found]:
    """Return the state of both ends if the copy is allowed. `target` None is a file that does not exist yet.

    Raises Refused and StoreUnavailable.
    """
    if move.source == move.target:
        raise Refused(f"{move.source} is one store, and not two")
    found = await source.state()
    seal = found.seal
    if seal and seal.state is State.FILLING:
        raise Refused(f"{move.source}: {seal.words}")
    if seal and seal.other != move.target:
        raise Refused(f"{move.source}: {seal.words}")
    if not found.documents and not found.revision:
        raise Refused(f"{move.source} is empty: is it the right one?")
    there = await target.state() if target else NOTHING
    if seal and seal.state is State.MOVED and not _is_begun(there, move):
        raise Refused(f"{move.source}: {seal.words}. What is there is newer; to go back copy it from there")
    check_target(there, move)
    return found, there


def _is_begun(there: Found, move: Move) -> bool:
    """Whether the target was partly filled by an earlier, interrupted copy of the same move."""
    return there.seal is not None and there.seal.state is State.FILLING and there.seal.other == move.source


class Effect(StrEnum):
    """Effect of a move on its target."""

    FILL = "fill"
    RESUME = "resume"
    """Start again: an earlier copy was interrupted."""
    REPLACE = "replace"
    REFUSE = "refuse"


def effect(there: Found, move: Move) -> Effect:
    if there.is_empty:
        return Effect.FILL
    if _is_begun(there, move):
        return Effect.RESUME
    return Effect.REPLACE if move.replaces else Effect.REFUSE


def contents(there: Found) -> str:
    """Describe the contents of a target that is not empty."""
    return there.seal.words if there.seal else f"it has {there.documents} documents, revision {there.revision}"


class NotEmpty(Refused):
    """The target has documents, and the move is not allowed to replace them."""

    def __init__(self, there: Found, move: Move) -> None:
        self.reason = f"{move.target} is not empty: {contents(there)}"
        super().__init__(f"{self.reason}. --replace throws away what it has; stop its servers first")


def check_target(there: Found, move: Move) -> None:
    """Raise NotEmpty if the move is not allowed to write to this target."""
    if effect(there, move) is Effect.REFUSE:
        raise NotEmpty(there, move)


async def copy(source: Whole, target: Whole, move: Move, tell: Tell) -> Compared:
    """Copy a store and compare the result. Raises Refused, Differs and StoreUnavailable."""
    found, there = await check_copy(source, target, move)
    filling = move.seal(State.FILLING)
    await _take(target, filling, there)
    held = await _hold(source, found.seal, move, partial(target.seal, there.seal, filling))
    try:
        revision = max((await source.state()).revision, there.revision)
        compared = await fill(target, filling, source.picture, revision, tell)
        moved = move.seal(State.MOVED)
        await source.seal(moved, held)
        held = moved
        await target.finish(filling, revision)
    except BaseException:
        if held.state is State.COPYING:
            with contextlib.suppress(StoreError):
                await source.seal(None, held)
        raise
    return compared


async def restore(target: Whole, pictures: Pictures, move: Move, more: int, tell: Tell) -> Compared:
    """Fill a store from a backup.

    The store's revision becomes `more` higher than the backup's, because the lost store may have had newer revisions
    than its backup. Raises Refused, Differs and StoreUnavailable.
    """
    there = await target.state()
    check_target(there, move)
    filling = move.seal(State.FILLING)
    await _take(target, filling, there)
    async with pictures() as picture:
        revision = max(picture.revision, there.revision) + more
    compared = await fill(target, filling, pictures, revision, tell)
    await target.finish(filling, revision)
    return compared


async def fill(target: Whole, seal: Seal, pictures: Pictures, revision: int, tell: Tell) -> Compared:
    """Copy all documents under the seal and compare the result. Raises Differs and StoreUnavailable."""
    async with pictures() as picture:
        await target.begin(seal, revision, picture.gone)
        done = 0
        tell("copied", done, picture.documents)
        async for page in picture.pages:
            await target.put(seal, page)
            done += len(page)
            tell("copied", done, picture.documents)
    compared = await compare(pictures, target.picture, tell)
    if compared.differing:
        raise Differs(compared)
    return compared


async def compare(one: Pictures, other: Pictures, tell: Tell) -> Compared:
    """Compare each document byte for byte, and the keys of deleted documents. Raises StoreUnavailable."""
    first: list[Difference] = []
    documents = octets = differing = 0
    async with one() as mine, other() as theirs:
        differences = [
            Difference(key=key, what="remembered as deleted by one of them") for key in mine.gone ^ theirs.gone
        ]
        async for left, right in _pairs(mine.pages, theirs.pages):
            documents += left is not None
            octets += len(left.value) if left else 0
            if what := _difference(left, right):
                differences.append(Difference(key=(left or right or _NONE).key, what=what))
            differing += len(differences)
            first += differences[: SHOWN - len(first)]
            differences.clear()
            if documents % 500 == 0:
                tell("compared", documents, mine.documents)
        differing += len(differences)
        first += differences[: SHOWN - len(first)]
        tell("compared", documents, mine.documents)
    return Compared(documents=documents, octets=octets, differing=differing, first=first)


_NONE = Document(key="", revision=0, value=b"")


def _difference(left: Document | None, right: Document | None) -> str:
    if left is None:
        return "only in the second"
    if right is None:
        return "only in the first"
    if left.value != right.value:
        return "another text"
    return "an older revision in the second" if right.revision < left.revision else ""


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


async def _take(target: Whole, seal: Seal, there: Found) -> None:
    """Seal the target. Raises Refused if another process writes to it."""
    try:
        await target.seal(seal, there.seal, there.revision)
    except Conflict:
        raise Refused(f"{seal.other}: somebody writes to the other store meanwhile; stop its servers") from None


async def _hold(source: Whole, before: Seal | None, move: Move, undo: Callable[[], Awaitable[None]]) -> Seal:
    """Seal the source against writes. Raises Refused, after `undo` has restored the target's seal."""
    if before and before.state is State.MOVED:
        return before
    seal = move.seal(State.COPYING)
    try:
        await source.seal(seal, before)
    except BaseException as error:
        await undo()
        if isinstance(error, Conflict):
            raise Refused(f"{move.source}: somebody else copies it, or {move.target} is the same store") from None
        raise
    return seal

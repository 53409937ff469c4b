"""Revisions of a store copied from one with higher revisions: they only grow, and each is unique."""

from pathlib import Path

import pytest

from fairlead.store.interface import NO_REVISION, Compacted, Conflict
from fairlead.store.revision_offset import OffsetStore
from fairlead.store.sqlite import SqliteStore


class Copied(SqliteStore):
    revision_offset = 1000


async def test_revision_from_before_the_copy_is_rejected(tmp_path: Path):
    own = await Copied.open(tmp_path / "s.db")
    store = OffsetStore(own)
    assert await store.range("") == ([], NO_REVISION)
    first = await store.transact(guards={"a": NO_REVISION}, puts={"a": b"1"}, deletes=[])
    assert first == await store.head() == 1001
    for before in (1, 999, 1000):
        for guards, head in (({"a": before}, None), ({"b": before}, None), ({}, before)):
            with pytest.raises(Conflict):
                await store.transact(guards=guards, puts={"b": b"1"}, deletes=[], head=head)
        with pytest.raises(Compacted):
            await store.changes(before)
    assert [each.revision for each in await store.changes(NO_REVISION)] == [first]
    assert await store.transact(guards={"a": first}, puts={"a": b"2"}, deletes=[], head=first) == first + 1
    await store.close()


async def test_replaced_store_continues_with_higher_revisions(tmp_path: Path):
    own = await Copied.open(tmp_path / "s.db")
    store = OffsetStore(own)
    first = await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
    own.revision_offset = 5000
    with pytest.raises(Compacted):
        await store.changes(first)
    documents, revision = await store.range("")
    assert [each.revision for each in documents] == [revision] == [5001]
    await store.close()

"""Revisions of a store copied from one with higher revisions: they only grow, and each is unique."""

from pathlib import Path

import pytest

from fairlead.store.interface import ABSENT, Compacted, Conflict
from fairlead.store.shifted import Shifted
from fairlead.store.sqlite import SqliteStore


class Copied(SqliteStore):
    more = 1000


async def test_a_revision_from_before_the_copy_is_nobodys(tmp_path: Path):
    own = await Copied.open(tmp_path / "s.db")
    store = Shifted(own)
    assert await store.range("") == ([], ABSENT)
    first = await store.transact(guards={"a": ABSENT}, puts={"a": b"1"}, deletes=[])
    assert first == await store.head() == 1001
    for before in (1, 999, 1000):
        for guards, head in (({"a": before}, None), ({"b": before}, None), ({}, before)):
            with pytest.raises(Conflict):
                await store.transact(guards=guards, puts={"b": b"1"}, deletes=[], head=head)
        with pytest.raises(Compacted):
            await store.changes(before)
    assert [each.revision for each in await store.changes(ABSENT)] == [first]
    assert await store.transact(guards={"a": first}, puts={"a": b"2"}, deletes=[], head=first) == first + 1
    await store.close()


async def test_a_store_that_was_replaced_has_another_number(tmp_path: Path):
    own = await Copied.open(tmp_path / "s.db")
    store = Shifted(own)
    first = await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
    own.more = 5000
    with pytest.raises(Compacted):
        await store.changes(first)
    documents, revision = await store.range("")
    assert [each.revision for each in documents] == [revision] == [5001]
    await store.close()

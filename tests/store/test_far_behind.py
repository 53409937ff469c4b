"""Servers too far behind a store re-read all of it, whatever changes they missed."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from fairlead.model.documents.owner import Owner
from fairlead.model.documents.unmanaged import is_unmanaged
from fairlead.model.snapshot import Aggregate, Snapshot
from fairlead.store.codec import encode
from fairlead.store.model import Model, Published
from fairlead.store.sqlite import SqliteStore
from harness.case import Case
from harness.cases import STORIES

NOT_COMPARED = {"part_histories", "macs", "subnet_network"}
"""Fields that are not compared: skipped versions are unknown, and documents of a case may share a MAC or subnet id."""


def is_stored(story: Case) -> bool:
    """Return whether every document is stored, that is, none is of an unmanaged network."""
    return not any(is_unmanaged(each) for state in story.states for each in state.documents.values())


async def move(store: SqliteStore, old: Mapping[Owner, Aggregate], new: Mapping[Owner, Aggregate]) -> None:
    """Write one transaction, and then so many that the feed no longer contains it."""
    puts = {str(owner): encode(each) for owner, each in new.items() if old.get(owner) != each}
    await store.transact(guards={}, puts=puts, deletes=[str(owner) for owner in old if owner not in new])
    for number in range(3):
        await store.transact(guards={}, puts={"claim/other": b"%d" % number}, deletes=[])


def known(snapshot: Snapshot) -> dict[str, object]:
    return {each.name: getattr(snapshot, each.name) for each in fields(snapshot) if each.name not in NOT_COMPARED}


@pytest.mark.parametrize("story", [each for each in STORIES if is_stored(each)], ids=lambda story: story.path.stem)
async def test_follower_far_behind_finds_every_missed_change(
    story: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A re-read finds every missed change: the store moves from state to state, to empty, and to the last state."""
    monkeypatch.setattr("fairlead.store.sqlite.MAX_FEED_TRANSACTIONS", 1)
    monkeypatch.setattr("fairlead.store.full_read.PAGE_SIZE", 7)

    store = await SqliteStore.open(tmp_path / "s.db")
    model = await Model.load(store, lambda *_: None)
    told, shown = list[Owner](), list[Published]()
    model.subscribe(told.extend)
    model.watch(shown.append)
    states = [state.documents for state in story.states]
    for old, new in zip(({}, *states, {}), (*states, {}, states[-1]), strict=True):
        told.clear()
        shown.clear()
        before = model.snapshot.generations
        await move(store, old, new)
        await model.catch_up()
        again = await Model.load(store, lambda *_: None)
        after = model.snapshot.generations
        assert known(model.snapshot) == known(again.snapshot)
        changed = {owner for owner in {*before, *after} if before.get(owner) != after.get(owner)}
        assert {owner for each in shown for owner in each.documents} == changed
        assert len(told) == len(set(told))
    await store.close()

"""The loop, where a story cannot reach it: news in the middle of an apply, the brake, what a standby does."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.compilers.ovn import compile_owner
from fairlead.dataplane.rows import Diff
from fairlead.drivers.fake import FakeDriver
from fairlead.model.owner import Kind, Owner
from fairlead.model.snapshot import Changes, Snapshot, apply_changes
from fairlead.reconciler.loop import MassDelete, Reconciler
from harness.story import read_story

STATE = read_story(Path(__file__).parent.parent / "cases" / "balance.txt").states[0]
NET = Owner(Kind.NETWORK, "net1")


class MeddledDriver(FakeDriver):
    """Somebody removes the row in the moment in which it is written, and the driver says so."""

    def __init__(self) -> None:
        super().__init__()
        self.reconciler: Reconciler | None = None

    async def apply(self, owner: Owner, diff: Diff) -> None:
        await super().apply(owner, diff)
        if self.reconciler is not None and owner == NET:
            reconciler, self.reconciler = self.reconciler, None
            del self.rows[owner]
            reconciler.distrust(owner)


def make(driver: FakeDriver, snapshot: Snapshot) -> Reconciler:
    return Reconciler(driver=driver, compile_owner=compile_owner, snapshot=lambda: snapshot, clock=lambda: 0.0)


def test_a_change_by_others_in_the_middle_of_an_apply_is_repaired():
    async def run() -> None:
        driver = MeddledDriver()
        reconciler = make(driver, STATE.snapshot())
        driver.reconciler = reconciler
        reconciler.mark([NET])
        while await reconciler.step():
            pass
        assert len(driver.rows[NET]) == 1

    asyncio.run(run())


def test_a_resync_that_would_delete_much_is_held_back():
    async def run() -> None:
        many = apply_changes(
            Snapshot(),
            Changes(puts=tuple(_renamed(STATE.documents[NET], f"net{number}") for number in range(30))),
            1,
        )
        driver = FakeDriver()
        reconciler = make(driver, many)
        reconciler.mark(many.owners())
        while await reconciler.step():
            pass
        emptied = make(driver, Snapshot())
        with pytest.raises(MassDelete, match="30 of 30"):
            await emptied.resync()
        assert not await emptied.step()
        assert await emptied.resync(force=True) == 30

    asyncio.run(run())


def _renamed(document, identity):
    return replace(document, id=identity)

"""What a node keeps of a dataplane: nothing is written before what the node observes by itself is known."""

import asyncio
from pathlib import Path

from fairlead.compilers.ovn import OVN
from fairlead.dataplane.ovn_tables import references
from fairlead.drivers.fake import FakeBulkDriver
from fairlead.model.owner import Owner
from fairlead.node.keeping import Keeping
from fairlead.node.reporting import Reports
from harness.given import Given
from harness.story import read_story
from harness.waiting import eventually

STATE = read_story(Path(__file__).parent.parent / "cases" / "balance.txt").states[0]


class Driver(FakeBulkDriver):
    async def open(self) -> None: ...

    async def close(self) -> None: ...


class Told(Reports):
    """Waits until the last owner has been applied."""

    def __init__(self, missing: set[Owner]) -> None:
        super().__init__(lambda: None, lambda: (), 0)  # type: ignore[arg-type, return-value]
        self.missing, self.done = missing, asyncio.Event()

    def failed(self, dataplane: str, owner: Owner, error: str | None) -> None:
        self.missing.discard(owner)
        if not self.missing:
            self.done.set()


async def test_nothing_is_written_before_all_is_observed(tmp_path: Path) -> None:
    await _observe(tmp_path)


async def _observe(folder: Path) -> None:
    driver, observed, waiting = Driver(references), asyncio.Event(), asyncio.Event()
    told = Told({owner for owner in STATE.documents if owner.kind in OVN.kinds})

    async def observe() -> None:
        waiting.set()
        await observed.wait()

    keeping = Keeping(OVN, Given("h1", folder / "slice", STATE.snapshot()), told, driver)
    running = asyncio.ensure_future(keeping.run(observed=observe))
    try:
        await eventually(waiting.is_set)
        assert (keeping.found.is_set(), driver.listings, driver.rows) == (True, 1, {})
        observed.set()
        await eventually(told.done.is_set)
        assert driver.rows
    finally:
        running.cancel()
        await asyncio.wait([running])

"""Reconciler of a node: it writes nothing before the facts that the node itself observes are known."""

import asyncio
from pathlib import Path

from fairlead.compilers.ovn import OVN
from fairlead.dataplane.ovn_tables import references
from fairlead.drivers.fake import FakeBulkDriver, Fault
from fairlead.model.documents.owner import Owner
from fairlead.node.node_reconciler import NodeReconciler
from fairlead.node.reports import Reports
from harness.case import read_case
from harness.fixed_slice import FixedSlice
from harness.waiting import eventually

STATE = read_case(Path(__file__).parent.parent / "cases" / "balance.txt").states[0]


class Driver(FakeBulkDriver):
    async def open(self) -> None: ...

    async def close(self) -> None: ...


class FailureRecorder(Reports):
    """Sets an event when the last missing owner has been applied."""

    def __init__(self, missing: set[Owner]) -> None:
        super().__init__(lambda: None, lambda: (), 0)  # type: ignore[arg-type, return-value]
        self.missing, self.done = missing, asyncio.Event()

    def set_apply_error(self, dataplane: str, owner: Owner, error: str | None) -> None:
        self.missing.discard(owner)
        if not self.missing:
            self.done.set()


async def test_nothing_is_written_before_all_facts_are_observed(tmp_path: Path) -> None:
    await _observe(tmp_path)


async def _observe(folder: Path) -> None:
    driver, observed, waiting = Driver(references), asyncio.Event(), asyncio.Event()
    told = FailureRecorder({owner for owner in STATE.documents if owner.kind in OVN.kinds})

    async def observe() -> None:
        waiting.set()
        await observed.wait()

    keeping = NodeReconciler(OVN, FixedSlice("h1", folder / "slice", STATE.snapshot()), told, driver)
    running = asyncio.ensure_future(keeping.run(observed=observe))
    try:
        await eventually(waiting.is_set)
        assert (keeping.rows_known.is_set(), driver.listings, driver.rows) == (True, 1, {})
        tried = asyncio.ensure_future(keeping.wait_attempted())
        await asyncio.sleep(0)
        assert not tried.done()
        observed.set()
        await tried
        assert told.done.is_set(), "each owner was applied, or has failed"
        assert driver.rows
        await keeping.resync()
        await keeping.wait_attempted()
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_first_reconcile_ends_although_some_owners_always_fail(tmp_path: Path) -> None:
    driver = Driver(references, lambda: Fault.REJECTED)
    told = FailureRecorder({owner for owner in STATE.documents if owner.kind in OVN.kinds})
    keeping = NodeReconciler(OVN, FixedSlice("h1", tmp_path / "slice", STATE.snapshot()), told, driver)
    running = asyncio.ensure_future(keeping.run())
    try:
        await keeping.wait_attempted()
        assert told.done.is_set()
        assert not driver.rows
    finally:
        running.cancel()
        await asyncio.wait([running])

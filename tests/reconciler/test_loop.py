"""The reconciler loop beyond cases: updates during an apply, the mass-deletion guard, and standby servers."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.compilers.ovn import OVN, compile_owner
from fairlead.dataplane.interface import in_one_step
from fairlead.dataplane.ovn_tables import references
from fairlead.dataplane.rows import Diff, Rows
from fairlead.drivers.fake import FakeDriver, Fault
from fairlead.drivers.interface import Requeue
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes, apply_changes, owners_with_rows
from fairlead.model.snapshot import Snapshot
from fairlead.reconciler.loop import CAUSE, STALL_TIMEOUT, Reconciler
from fairlead.reconciler.queue import MIN_BATCH_OWNERS
from fairlead.reconciler.resync import MassDelete
from fairlead.runtime.steps import Steps
from harness.case import read_case
from harness.waiting import run_ready_tasks

STATE = read_case(Path(__file__).parent.parent / "cases" / "balance.txt").states[0]
NET = Owner(Kind.NETWORK, "net1")


class InterferingDriver(FakeDriver):
    """Driver in which another client removes the row during its write, and which reports that."""

    def __init__(self) -> None:
        super().__init__(references)
        self.reconciler: Reconciler | None = None

    async def apply(self, owner: Owner, diff: Diff) -> None:
        await super().apply(owner, diff)
        if self.reconciler is not None and owner == NET:
            reconciler, self.reconciler = self.reconciler, None
            del self.rows[owner]
            reconciler.read_again(owner)


def make(driver: FakeDriver, snapshot: Snapshot) -> Reconciler:
    return Reconciler(dataplane=OVN, driver=driver, snapshot=lambda: snapshot, clock=lambda: 0.0)


async def test_drift_during_an_apply_is_repaired():
    driver = InterferingDriver()
    reconciler = make(driver, STATE.snapshot())
    driver.reconciler = reconciler
    reconciler.mark([NET])
    while await reconciler.step():
        pass
    assert len(driver.rows[NET]) == 1


async def test_change_during_compilation_causes_a_recompilation():
    """A change during compilation is not lost: the owner is compiled again from the newer model."""

    async def run() -> None:
        driver, models = FakeDriver(references), [STATE.snapshot()]
        served, asked = asyncio.Event(), list[Snapshot]()

        def compile_in_steps(view: Snapshot, owner: Owner) -> Steps[Rows]:
            asked.append(view)
            while not served.is_set():
                yield
            return OVN.compile(view, owner)

        def serve() -> None:
            models[0] = replace(models[0], revision=models[0].revision + 1)
            reconciler.mark([NET])
            served.set()

        dataplane = replace(OVN, compile_in_steps=compile_in_steps)
        reconciler = Reconciler(dataplane=dataplane, driver=driver, snapshot=lambda: models[0], clock=lambda: 0.0)
        reconciler.mark([NET])
        asyncio.get_running_loop().call_soon(serve)
        while await reconciler.step():
            pass
        assert driver.rows[NET] == OVN.compile(models[0], NET)
        assert (len(asked), asked[-1]) == (2, models[0])

    await run()


async def test_mass_deletion_by_a_resync_is_held_back():
    many = apply_changes(
        Snapshot(),
        Changes(puts=tuple(_renamed(STATE.documents[NET], f"net{number}") for number in range(30))),
        1,
    )
    driver = FakeDriver(references)
    reconciler = make(driver, many)
    reconciler.mark(owners_with_rows(many))
    while await reconciler.step():
        pass
    emptied = make(driver, Snapshot())
    with pytest.raises(MassDelete, match="30 of 30"):
        await emptied.resync()
    assert not await emptied.step()
    assert await emptied.resync(force=True) == 30


async def test_requested_owner_does_not_wait_for_the_resync_backlog():
    nets = [_renamed(STATE.documents[NET], f"net{number}") for number in range(100)]
    driver = FakeDriver(references)
    reconciler = make(driver, apply_changes(Snapshot(), Changes(puts=(*nets, _renamed(nets[0], "asked"))), 1))
    asked = Owner(Kind.NETWORK, "asked")
    reconciler.mark([asked])
    await reconciler.step()
    assert (await reconciler.resync(), [*driver.rows]) == (100, [asked])
    del driver.rows[asked]
    reconciler.read_again(asked)
    for _ in range(2 * (MIN_BATCH_OWNERS + 1)):  # bound on owners left over from the resync
        await reconciler.step()
    assert asked in driver.rows


def _renamed(document, identity):
    return replace(document, id=identity)


async def test_mass_deletion_guard_blocks_deletions_only():
    """The mass-deletion guard blocks deletions only: after a restart, correct rows are recognised and missing ones
    created."""

    nets = [_renamed(STATE.documents[NET], f"net{number}") for number in range(30)]
    driver = FakeDriver(references)
    before = make(driver, apply_changes(Snapshot(), Changes(puts=tuple(nets)), 1))
    await before.resync()
    while await before.step():
        pass
    few = [*nets[:5], _renamed(nets[0], "new")]
    after = make(driver, apply_changes(Snapshot(), Changes(puts=tuple(few)), 2))
    with pytest.raises(MassDelete):
        await after.resync()
    assert after.applied(Owner(Kind.NETWORK, "net1")).generation == 2
    while await after.step():
        pass
    assert after.applied(Owner(Kind.NETWORK, "new")).generation == 2
    assert len(driver.rows) == 31


async def test_compile_error_in_one_owner_is_retried_and_stops_no_other():
    async def run() -> None:
        snapshot, driver, now = STATE.snapshot(), FakeDriver(references), 0.0
        broken = True

        def compile_some(of: Snapshot, owner: Owner):
            if broken and owner.kind is Kind.LOAD_BALANCER:
                raise ZeroDivisionError("a mistake")
            return compile_owner(of, owner)

        reconciler = Reconciler(
            dataplane=replace(OVN, compile_in_steps=in_one_step(compile_some)),
            driver=driver,
            snapshot=lambda: snapshot,
            clock=lambda: now,
        )
        await reconciler.resync()
        web = Owner(Kind.LOAD_BALANCER, "web")
        assert reconciler.applied(web).error == "a mistake"
        while await reconciler.step():
            pass
        assert web not in driver.rows
        assert len(driver.rows) == 2
        broken, now = False, 10.0
        while await reconciler.step():
            pass
        assert web in driver.rows
        assert reconciler.applied(web).error is None

    await run()


class PostponingDriver(FakeDriver):
    """Driver that postpones every change of a load balancer (raises Later)."""

    wait = 3.0

    async def apply(self, owner: Owner, diff: Diff) -> None:
        if owner.kind is Kind.LOAD_BALANCER and self.wait:
            raise Requeue(self.wait)
        await super().apply(owner, diff)


async def test_requeued_owner_is_no_failure_and_is_retried_when_due_or_changed():
    snapshot, driver, now = STATE.snapshot(), PostponingDriver(references), 0.0
    reconciler = Reconciler(dataplane=OVN, driver=driver, snapshot=lambda: snapshot, clock=lambda: now)
    web = Owner(Kind.LOAD_BALANCER, "web")

    async def work() -> None:
        while await reconciler.step():
            pass

    await reconciler.resync()
    await work()
    assert (web in driver.rows, len(driver.rows)) == (False, 2)
    assert (reconciler.applied(web).error, reconciler.next_due()) == (None, 3.0)
    driver.wait = 1.0
    reconciler.mark([web])
    await work()
    assert reconciler.next_due() == 1.0
    driver.wait, now = 0.0, 0.9
    await work()
    assert web not in driver.rows
    now = 1.0
    await work()
    assert (web in driver.rows, len(reconciler)) == (True, 0)


class DeferringDriver(FakeDriver):
    """Driver that applies postponed rows by itself, unless they are withdrawn before."""

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        self.kept: dict[Owner, Diff] = {}

    async def apply(self, owner: Owner, diff: Diff) -> None:
        self.kept.pop(owner, None)
        if owner.kind is Kind.LOAD_BALANCER and diff:
            self.kept[owner] = diff
            raise Requeue(3.0)
        await super().apply(owner, diff)


async def test_requeued_owner_is_released_after_its_deletion():
    snapshot, driver, web = STATE.snapshot(), DeferringDriver(references), Owner(Kind.LOAD_BALANCER, "web")
    reconciler = Reconciler(dataplane=OVN, driver=driver, snapshot=lambda: snapshot, clock=lambda: 0.0)
    await reconciler.resync()
    while await reconciler.step():
        pass
    assert set(driver.kept) == {web}
    snapshot = Snapshot()
    reconciler.mark([web])
    while await reconciler.step():
        pass
    assert (driver.kept, len(reconciler)) == ({}, 0)


async def test_empty_model_deletes_nothing_without_force():
    """An empty model deletes no rows without confirmation, because the path of the store may be mistyped."""

    driver = FakeDriver(references)
    before = make(driver, STATE.snapshot())
    await before.resync()
    while await before.step():
        pass
    held = len(driver.rows)
    empty = make(driver, Snapshot())
    with pytest.raises(MassDelete):
        await empty.resync()
    while await empty.step():
        pass
    assert len(driver.rows) == held > 0


class TickingClock:
    """Clock that advances by three milliseconds at each read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.003
        return self.now


async def test_change_is_applied_during_a_long_resync():
    nets = [_renamed(STATE.documents[NET], f"net{number:02}") for number in range(60)]
    model = [apply_changes(Snapshot(), Changes(puts=tuple(nets)), 1)]
    driver = FakeDriver(references)
    reconciler = Reconciler(dataplane=OVN, driver=driver, snapshot=lambda: model[0], clock=TickingClock())
    await reconciler.resync()
    while await reconciler.step():
        pass
    gone, lost = Owner(Kind.NETWORK, "net58"), Owner(Kind.NETWORK, "net59")
    del driver.rows[lost]
    looking = asyncio.create_task(reconciler.resync())
    await asyncio.sleep(0)
    new = _renamed(nets[0], "new")
    model[0] = apply_changes(model[0], Changes(puts=(new,), deletes=(gone,)), 2)
    reconciler.mark([gone, Owner(Kind.NETWORK, "new")])
    while await reconciler.step():
        pass
    assert not looking.done()
    assert gone not in driver.rows
    assert Owner(Kind.NETWORK, "new") in driver.rows
    assert await looking == 1  # the lost row; rows changed during the resync do not count
    assert reconciler.statistics.resync_changes == 1
    while await reconciler.step():
        pass
    assert lost in driver.rows
    assert await reconciler.plan() == {}


async def test_apply_log_names_the_requests(caplog: pytest.LogCaptureFixture):
    async def run() -> None:
        reconciler = make(FakeDriver(references), STATE.snapshot())
        for request in ("req-1", "req-2"):
            CAUSE.set(request)
            reconciler.mark([NET])
        CAUSE.set("")
        await reconciler.step()
        reconciler.read_again(NET)
        await reconciler.step()

    with caplog.at_level(logging.INFO, "fairlead.reconciler.loop"):
        await run()
    (record,) = caplog.records
    assert record.getMessage() == "applied network/net1 generation 1: +1 ~0 -0 in 0.0 ms for req-1, req-2"
    assert record.fields == {
        "owner": "network/net1",
        "generation": 1,
        "created": 1,
        "updated": 0,
        "deleted": 0,
        "milliseconds": 0.0,
        "requests": ["req-1", "req-2"],
    }


async def test_pending_time_of_a_failing_owner_is_reported():
    faults, now = [Fault.REJECTED], [0.0]
    driver = FakeDriver(references, lambda: faults[0])
    reconciler = Reconciler(dataplane=OVN, driver=driver, snapshot=STATE.snapshot, clock=lambda: now[0])
    reconciler.mark([NET])
    for now[0] in (0.0, 10.0, 20.0):
        await reconciler.step()
    assert reconciler.unsettled() == 20.0
    faults[0] = Fault.NONE
    now[0] = 30.0
    await reconciler.step()
    assert reconciler.unsettled() == 0.0


async def test_mass_deletion_guard_allows_deletions_recorded_in_the_store():
    """Rows of objects that the store deleted before a crash are removed; rows of unknown objects stay."""

    async def run() -> None:
        nets = [_renamed(STATE.documents[NET], f"net{number}") for number in range(30)]
        before = make(driver := FakeDriver(references), apply_changes(Snapshot(), Changes(puts=tuple(nets)), 1))
        await before.resync()
        while await before.step():
            pass
        model, known = apply_changes(Snapshot(), Changes(), 2), {Owner(Kind.NETWORK, f"net{n}") for n in range(12)}

        async def deleted() -> frozenset[Owner]:
            return frozenset(known)

        after = Reconciler(dataplane=OVN, driver=driver, snapshot=lambda: model, clock=lambda: 0.0, deleted=deleted)
        with pytest.raises(MassDelete, match="18 of 30"):
            await after.resync()
        while await after.step():
            pass
        assert len(driver.rows) == 18
        known |= set(driver.rows)
        assert await after.resync() == 18
        while await after.step():
            pass
        assert driver.rows == {}

    await run()


async def test_waiter_is_notified_when_its_owner_is_applied_or_fails():
    driver = FakeDriver(references)
    reconciler = make(driver, STATE.snapshot())
    reconciler.mark([NET])
    waiting = [asyncio.create_task(reconciler.wait_for_outcome(NET, 1)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    await reconciler.step()
    await asyncio.gather(*waiting)
    await reconciler.wait_for_outcome(NET, reconciler.applied(NET).generation)
    driver._fault = lambda: Fault.REJECTED
    reconciler.read_again(NET)
    driver.rows.clear()
    later = asyncio.create_task(reconciler.wait_for_outcome(NET, 10**6))
    await asyncio.sleep(0)
    await reconciler.step()
    await later
    assert reconciler.applied(NET).error == "refused"


async def test_cancelled_waiter_leaves_no_state():
    """Cancelled waits leave nothing behind, also for a deleted owner, which has no further outcome."""
    reconciler = make(FakeDriver(references), STATE.snapshot())
    for number in range(100):
        waiting = [
            asyncio.create_task(reconciler.wait_for_outcome(Owner(Kind.NETWORK, f"gone{number}"), 1)) for _ in range(2)
        ]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
    assert {} == reconciler._outcomes._waiters


async def test_unapplied_owner_without_progress_is_stalled():
    now = 0.0
    snapshot = STATE.snapshot()
    reconciler = Reconciler(dataplane=OVN, driver=FakeDriver(references), snapshot=lambda: snapshot, clock=lambda: now)
    assert reconciler.applied(NET).stalled, "nobody works on it"
    reconciler.mark([NET])
    assert not reconciler.applied(NET).stalled
    now = 2 * STALL_TIMEOUT
    assert reconciler.applied(NET).stalled
    await reconciler.step()
    assert not reconciler.applied(NET).stalled
    other = Owner(Kind.NETWORK, "net2")
    reconciler.mark([other])
    now += STALL_TIMEOUT / 2
    assert not reconciler.applied(other).stalled


async def test_events_between_resyncs_are_not_stored():
    """Events between two resyncs are not stored: an hour of creations and deletions would take a hundred megabytes."""

    many = apply_changes(
        Snapshot(),
        Changes(puts=tuple(_renamed(STATE.documents[NET], f"net{number}") for number in range(30))),
        1,
    )
    reconciler = make(FakeDriver(references), many)
    await reconciler.resync()
    reconciler.mark(owners_with_rows(many))
    while await reconciler.step():
        pass
    assert reconciler._memory.changed_since_read == set()


@pytest.mark.virtual_clock
async def test_marked_owner_wakes_the_idle_reconciler_without_a_timer():
    """A marked owner wakes the idle reconciler immediately, without a timer."""
    driver = FakeDriver(references)
    reconciler = make(driver, STATE.snapshot())
    running = asyncio.create_task(reconciler.run())
    await run_ready_tasks()
    assert driver.applies == 0
    reconciler.mark([NET])
    await run_ready_tasks()
    assert driver.applies == 1
    assert asyncio.get_running_loop().time() == 0.0
    running.cancel()

"""Failover: a standby takes over from a leader that does not write, and never from one that does."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from fairlead.compilers.ovn import OVN, compile_owner
from fairlead.dataplane.ovn_tables import references
from fairlead.dataplane.rows import Diff
from fairlead.drivers.fake import FakeDriver
from fairlead.drivers.interface import DriverError, Standby
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import owners_with_rows
from fairlead.reconciler.contention import FREE_REPAIRS
from fairlead.reconciler.failover import MAX_TIMEOUT, MIN_TIMEOUT, RESET_AFTER_SECONDS, Failover, FailoverTimeout
from fairlead.reconciler.loop import Reconciler
from harness.case import read_case

STATE = read_case(Path(__file__).parent.parent / "cases" / "balance.txt").states[0]
NET = Owner(Kind.NETWORK, "net1")


def test_failover_timeout_doubles_and_resets_after_a_quiet_period():
    patience, seen = FailoverTimeout(), []
    for _ in range(40):
        seen.append(patience.seconds(0.0))
        patience.record_takeover(0.0)
    assert seen[0] == MIN_TIMEOUT
    assert seen[-1] == MAX_TIMEOUT
    assert all(after == min(2 * before, MAX_TIMEOUT) for before, after in pairwise(seen))
    assert patience.seconds(RESET_AFTER_SECONDS - 1) == MAX_TIMEOUT
    assert patience.seconds(RESET_AFTER_SECONDS + 1) == MIN_TIMEOUT


class SecondDriver(FakeDriver):
    """Driver whose lock another server holds until it is stolen."""

    def __init__(self) -> None:
        super().__init__(references)
        self.has_lock = False
        self.failing = False
        self.on_ping = lambda: None

    async def apply(self, owner: Owner, diff: Diff) -> None:
        if not self.has_lock:
            raise Standby
        if self.failing:
            raise DriverError("the database does not take it")
        await super().apply(owner, diff)

    async def ping(self) -> None:
        self.on_ping()

    async def take_lock(self) -> None:
        self.has_lock = True


class Services:
    """A server with its own clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.driver = SecondDriver()
        self.reconciler = Reconciler(dataplane=OVN, driver=self.driver, snapshot=STATE.snapshot, clock=lambda: self.now)
        self.knows = True
        self.takeover = Failover(self.driver, self.reconciler, lambda: self.now, self.knows_all)

    async def knows_all(self) -> bool:
        return self.knows

    async def look(self, now: float) -> None:
        """Run the two tasks of a server at this time."""
        self.now = now
        self.reconciler.retry_now()
        while await self.reconciler.step():
            pass
        running = asyncio.create_task(self.takeover.run())
        for _ in range(5):
            await asyncio.sleep(0)
        running.cancel()


@pytest.fixture
def services() -> Services:
    return Services()


async def test_standby_takes_the_lock_after_the_failover_timeout(services: Services):
    services.reconciler.mark([NET])
    await services.look(0.0)
    await services.look(MIN_TIMEOUT - 0.1)
    assert not services.driver.has_lock
    await services.look(MIN_TIMEOUT + 0.1)
    assert services.driver.has_lock
    assert services.takeover.takeovers == 1
    await services.look(MIN_TIMEOUT + 0.2)
    assert NET in services.driver.rows
    assert services.reconciler.waiting_for_leader_seconds() is None


async def test_leader_that_writes_anything_keeps_the_lock(services: Services):
    services.reconciler.mark([NET])
    for second in range(60):
        await services.look(float(second))
        services.reconciler.note_drift(Owner(Kind.NETWORK, f"other{second}"))
    assert services.takeover.takeovers == 0


async def test_resumed_standby_processes_pending_updates_before_a_failover(services: Services):
    """A server that was frozen processes the updates in its socket before it judges the leader by its own clock."""

    services.reconciler.mark([NET])
    await services.look(0.0)
    services.driver.on_ping = lambda: services.reconciler.note_drift(NET)
    await services.look(1000.0)
    assert services.takeover.takeovers == 0


async def test_failed_write_does_not_justify_a_failover(services: Services):
    """A row that this server failed to write does not justify a takeover, because both would steal the lock in turn."""

    services.driver.has_lock = services.driver.failing = True
    services.reconciler.mark([NET])
    await services.look(0.0)
    services.driver.has_lock = False
    for second in range(1, 60):
        await services.look(float(second))
    assert services.takeover.takeovers == 0


async def test_contested_rows_do_not_justify_a_failover(services: Services):
    """Contested rows do not justify a takeover: the leader delays their repair and is not frozen."""

    services.driver.rows = {
        owner: dict(compile_owner(STATE.snapshot(), owner)) for owner in owners_with_rows(STATE.snapshot())
    }
    await services.reconciler.resync()
    right = dict(compile_owner(STATE.snapshot(), NET))
    for second in range(FREE_REPAIRS):  # drift, repaired by the other server
        services.driver.rows.pop(NET, None)
        services.reconciler.note_drift(NET)
        await services.look(second + 0.1)
        services.driver.rows[NET] = right
        services.reconciler.note_drift(NET)
        await services.look(second + 0.2)
    services.driver.rows.pop(NET)
    services.reconciler.note_drift(NET)
    services.now = 60.0
    assert services.reconciler.waiting_for_leader_seconds() is None
    assert services.reconciler.contended() == 1


async def test_server_without_current_state_never_takes_the_lock(services: Services):
    """A server without the store's or the probes' current state never takes the lock, because it would restore stale
    rows."""

    services.knows = False
    services.reconciler.mark([NET])
    for second in range(60):
        await services.look(float(second))
    assert (services.driver.has_lock, services.takeover.takeovers) == (False, 0)
    services.knows = True
    await services.look(60.0)
    assert (services.driver.has_lock, services.takeover.takeovers) == (True, 1)

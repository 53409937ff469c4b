"""Batches: one transaction of many owners, with the same guarantees as single applies."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fairlead.compilers.ovn import OVN
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn_tables import references
from fairlead.dataplane.rows import Diff, Rows
from fairlead.drivers.fake import FakeBulkDriver, FakeDriver
from fairlead.drivers.interface import DriverError, Unavailable
from fairlead.model.documents.abilities import Feature
from fairlead.model.documents.network import Network
from fairlead.model.documents.owner import Kind, Owner, creation_order
from fairlead.model.registry.changeset import Changes, apply_changes, owners_with_rows
from fairlead.model.snapshot import Snapshot
from fairlead.reconciler.loop import BATCH_SECONDS, MAX_BATCH_OWNERS, Reconciler
from fairlead.reconciler.queue import MIN_BACKOFF
from fairlead.reconciler.resync import MassDelete
from fairlead.runtime.steps import Steps

ASKED = Owner(Kind.NETWORK, "asked")
BAD = Owner(Kind.NETWORK, "net7")
MADE = datetime(2026, 1, 1, tzinfo=UTC)


class Driver(FakeBulkDriver):
    """Driver that records the owners of each transaction, and rejects some owners."""

    def __init__(self) -> None:
        super().__init__(references)
        self.transactions: list[list[Owner]] = []
        self.reads: list[list[Owner]] = []
        self.bad: set[Owner] = set()
        self.error: Exception = DriverError("no room")
        self.meanwhile: Callable[[], None] = lambda: None

    async def read(self, owner: Owner) -> Rows:
        self.reads.append([owner])
        return await super().read(owner)

    async def read_some(self, owners: list[Owner]) -> Mapping[Owner, Rows]:  # type: ignore[override]
        self.reads.append([*owners])
        return await super().read_some(owners)

    async def apply(self, owner: Owner, diff: Diff) -> None:
        await self.apply_all({owner: diff})

    async def apply_all(self, diffs: Mapping[Owner, Diff]) -> None:
        self.transactions.append([*diffs])
        self.meanwhile()
        if self.bad & diffs.keys():
            raise self.error
        await super().apply_all(diffs)


class World:
    def __init__(self, networks: int, driver: FakeDriver | None = None) -> None:
        self.now = 0.0
        self.driver = Driver()
        puts = tuple(
            Network(id=f"net{number}", name="", project_id="p", created_at=MADE, mtu=1500) for number in range(networks)
        )
        self.snapshot = apply_changes(Snapshot(), Changes(puts=puts), 1)
        self.start(driver)

    def start(self, driver: FakeDriver | None = None) -> None:
        self.reconciler = Reconciler(
            dataplane=OVN, driver=driver or self.driver, snapshot=lambda: self.snapshot, clock=lambda: self.now
        )

    @property
    def owners(self) -> list[Owner]:
        return owners_with_rows(self.snapshot)

    async def rest(self) -> None:
        while await self.reconciler.step():
            pass

    async def fill(self) -> None:
        self.reconciler.mark(self.owners)
        await self.rest()


@pytest.mark.thorough
@pytest.mark.max_steps(10_000_000)  # the strict fake scans all rows for each owner of a transaction
async def test_many_owners_are_read_and_applied_in_batches() -> None:
    world = World(MAX_BATCH_OWNERS + 30)
    await world.fill()
    assert [len(each) for each in world.driver.transactions] == [MAX_BATCH_OWNERS, 30]
    assert [len(each) for each in world.driver.reads] == [MAX_BATCH_OWNERS, 30]
    assert set(world.driver.rows) == set(world.owners)
    assert {world.reconciler.applied(each).generation for each in world.owners} == {1}
    assert (world.reconciler.statistics.applied, len(world.reconciler)) == (MAX_BATCH_OWNERS + 30, 0)


async def test_dataplane_without_batches_receives_single_owners() -> None:
    driver = FakeDriver(references)
    await World(30, driver).fill()
    assert driver.applies == len(driver.rows) == 30


async def test_rejected_owner_is_retried_alone_and_stops_no_other() -> None:
    world = World(30)
    world.driver.bad = {BAD}
    await world.fill()
    assert [len(each) for each in world.driver.transactions] == [30, *[1] * 30]
    assert set(world.driver.rows) == {*world.owners} - {BAD}
    assert world.reconciler.applied(BAD).error == "no room"
    assert world.reconciler.next_due() == MIN_BACKOFF
    world.now, world.driver.transactions = MIN_BACKOFF, []
    await world.rest()
    assert (world.driver.transactions, world.reconciler.next_due()) == ([[BAD]], 3 * MIN_BACKOFF)
    world.reconciler.mark(world.owners)
    await world.rest()
    assert world.driver.transactions == [[BAD], [BAD]], "the others are as they should be"
    world.driver.bad = set()
    world.reconciler.mark(world.owners)
    await world.rest()
    assert set(world.driver.rows) == set(world.owners)
    assert (world.reconciler.applied(BAD).error, world.reconciler.next_due()) == (None, None)
    world.driver.rows, world.driver.transactions = {}, []
    await world.reconciler.resync()
    await world.rest()
    assert max(map(len, world.driver.transactions)) > 9, "all are together again"


async def test_internal_error_in_one_owner_stops_no_other() -> None:
    world = World(30)
    world.driver.bad, world.driver.error = {BAD}, ZeroDivisionError("a mistake")
    await world.fill()
    assert set(world.driver.rows) == {*world.owners} - {BAD}
    assert world.reconciler.applied(BAD).error == "a mistake"


async def test_unavailable_dataplane_causes_no_single_retries() -> None:
    world = World(30)
    world.driver.bad, world.driver.error = {BAD}, Unavailable("away")
    await world.fill()
    assert [len(each) for each in world.driver.transactions] == [30]
    assert {world.reconciler.applied(each).error for each in world.owners} == {"away"}
    world.driver.bad, world.now = set(), MIN_BACKOFF
    await world.rest()
    assert [len(each) for each in world.driver.transactions] == [30, 30]
    assert {world.reconciler.applied(each).error for each in world.owners} == {None}


async def test_owner_that_does_not_compile_stops_no_other() -> None:
    async def run() -> None:
        world = World(30)

        def compile_in_steps(view: Snapshot, owner: Owner) -> Steps[Rows]:
            if owner == BAD:
                raise Unsupported(Feature("this"), "p")
            yield
            return OVN.compile(view, owner)

        world.reconciler.dataplane = replace(OVN, compile_in_steps=compile_in_steps)
        await world.fill()
        assert [len(each) for each in world.driver.transactions] == [29]
        assert "this" in (world.reconciler.applied(BAD).error or "")

    await run()


async def test_owner_marked_during_a_batch_is_applied_again_from_the_new_model() -> None:
    world = World(30)
    renamed = replace(world.snapshot.networks["net3"], name="new")

    def change() -> None:
        world.driver.meanwhile = lambda: None
        world.snapshot = apply_changes(world.snapshot, Changes(puts=(renamed,)), 2)
        world.reconciler.mark([Owner(Kind.NETWORK, "net3")])

    world.driver.meanwhile = change
    await world.fill()
    assert [len(each) for each in world.driver.transactions] == [30, 1]
    assert world.reconciler.applied(Owner(Kind.NETWORK, "net3")).generation == 2


async def test_owner_changed_during_compilation_uses_the_newer_model() -> None:
    """An owner that changes during a batch's compilation is compiled from the newer model, because no later pass visits
    it."""

    async def run() -> None:
        world = World(30)
        await world.fill()

        def put(*names: str) -> None:
            made = tuple(Network(id=name, name="new", project_id="p", created_at=MADE, mtu=1500) for name in names)
            world.snapshot = apply_changes(world.snapshot, Changes(puts=made), world.snapshot.revision + 1)
            world.reconciler.mark([Owner(Kind.NETWORK, name) for name in names])

        def compile_in_steps(view: Snapshot, owner: Owner) -> Steps[Rows]:
            yield
            if owner == Owner(Kind.NETWORK, "net0") and "asked" not in world.snapshot.networks:
                put("asked", "net1")
            return OVN.compile(view, owner)

        world.reconciler.dataplane = replace(OVN, compile_in_steps=compile_in_steps)
        put("net0", "net2")
        await world.rest()
        for name in ("asked", "net0", "net1", "net2"):
            owner = Owner(Kind.NETWORK, name)
            assert world.driver.rows.get(owner) == OVN.compile(world.snapshot, owner), name

    await run()


async def test_drift_during_a_batch_is_reread() -> None:
    world = World(30)

    def meddle() -> None:
        world.driver.meanwhile = lambda: None
        world.reconciler.read_again(BAD)

    world.driver.meanwhile = meddle
    await world.fill()
    assert world.driver.reads[-1] == [BAD]


async def test_single_change_waits_for_at_most_one_short_batch() -> None:
    async def run() -> None:
        world = World(100)
        world.snapshot = apply_changes(
            world.snapshot, Changes(puts=(Network(id="asked", name="", project_id="p", created_at=MADE, mtu=1500),)), 2
        )

        def compile_in_steps(view: Snapshot, owner: Owner) -> Steps[Rows]:
            world.now += BATCH_SECONDS / 9.9
            yield
            return OVN.compile(view, owner)

        world.reconciler.dataplane = replace(OVN, compile_in_steps=compile_in_steps)
        world.reconciler.mark([each for each in world.owners if each != ASKED])
        await world.reconciler.step()
        world.reconciler.mark([ASKED])
        await world.reconciler.step()
        await world.reconciler.step()
        assert [len(each) for each in world.driver.transactions] == [10, 1, 10]
        assert world.driver.transactions[1] == [ASKED]

    await run()


async def test_api_is_served_while_many_owners_are_compiled() -> None:
    """API requests are served during a batch: each compilation is quick, but all of them together take long."""

    async def run() -> None:
        world, served = World(100), asyncio.Event()
        asyncio.get_running_loop().call_soon(served.set)
        before: list[Owner] = []

        def compile_in_steps(view: Snapshot, owner: Owner) -> Steps[Rows]:
            if not served.is_set():
                before.append(owner)
            rows = OVN.compile(view, owner)
            for _ in range(50):  # about a millisecond
                OVN.compile(view, owner)
            yield
            return rows

        world.reconciler.dataplane = replace(OVN, compile_in_steps=compile_in_steps)
        await world.fill()
        assert 0 < len(before) < 50

    await run()


async def test_rows_compiled_by_a_resync_are_reused() -> None:
    world = World(100)
    assert await world.reconciler.resync() == 100
    await world.rest()
    assert world.reconciler.statistics.compiled == 100
    assert set(world.driver.rows) == set(world.owners)
    world.driver.rows = {}
    assert await world.reconciler.resync() == 100
    renamed = replace(world.snapshot.networks["net3"], name="new")
    world.snapshot = apply_changes(world.snapshot, Changes(puts=(renamed,)), 2)
    await world.rest()
    assert world.reconciler.statistics.compiled == 300, "by another model it is worth nothing"
    assert await world.reconciler.plan() == {}


async def test_restart_writes_nothing_and_the_mass_deletion_guard_holds() -> None:
    world = World(100)
    await world.fill()
    world.driver.transactions = []
    world.start()
    assert await world.reconciler.resync() == 0
    await world.rest()
    assert world.driver.transactions == []
    world.snapshot = Snapshot()
    world.start()
    with pytest.raises(MassDelete, match="100 of 100"):
        await world.reconciler.resync()
    await world.rest()
    assert world.driver.transactions == []
    await world.reconciler.resync(force=True)
    await world.rest()
    assert (world.driver.rows, [len(each) for each in world.driver.transactions]) == ({}, [100])


async def test_batch_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        world = World(30)
        world.reconciler.mark(sorted(world.owners, key=creation_order))
        await world.rest()

    with caplog.at_level(logging.INFO, "fairlead.reconciler.loop"):
        await run()
    (record,) = caplog.records
    assert record.getMessage() == "applied network/net0 and 29 more together: +30 ~0 -0 in 0.0 ms"
    assert record.fields == {  # type: ignore[attr-defined]
        "owners": 30,
        "created": 30,
        "updated": 0,
        "deleted": 0,
        "milliseconds": 0.0,
        "requests": [],
    }


async def test_resync_differences_are_applied_in_reference_order() -> None:
    """Differences found by a resync are applied in reference order; owners left over do not jump the queue."""

    world = World(110)
    assert await world.reconciler.resync() == 110
    await world.rest()
    applied = [each for some in world.driver.transactions for each in some]
    assert applied == list(world.owners)

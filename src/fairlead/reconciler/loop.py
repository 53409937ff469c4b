"""The reconciler of one dataplane: compile an owner whole, compare it with the rows last applied, apply the difference.

Create, update, delete, restart and repair use this one path. The rows last applied are taken as the actual state until
an apply fails or the driver reports drift; then the owner is read again. A resync re-reads the whole dataplane
(`looking`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace

from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.interface import Dataplane
from fairlead.dataplane.rows import NO_ROWS, Diff, Rows, diff
from fairlead.drivers.interface import BulkDriver, Driver, NotSynced, Standby
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.status import NEVER_APPLIED, AppliedState
from fairlead.model.snapshot import Snapshot
from fairlead.reconciler.apply_log import MAX_CAUSES
from fairlead.reconciler.outcomes import Outcomes
from fairlead.reconciler.owner_states import ApplyRecord, DesiredState, OwnerStates
from fairlead.reconciler.queue import MIN_BATCH_OWNERS, Queue
from fairlead.reconciler.resync import FullComparison, MassDelete, guard_mass_deletion
from fairlead.reconciler.tenants import Tenants
from fairlead.runtime.cooperative import Yielder, run_in_steps
from fairlead.runtime.steps import run_to_completion

LOG = logging.getLogger(__name__)
STALL_TIMEOUT = 1.0
"""Seconds without a success after which requests stop waiting for an owner: the dataplane or the leader is down."""
BATCH_SECONDS = 0.05
"""Seconds of compiling for one batch. A change that arrives during this time waits until it ends."""
MAX_BATCH_OWNERS = 1024
"""Maximum owners in one transaction."""
CAUSE: ContextVar[str] = ContextVar("CAUSE", default="")
"""Id of the request being served. Owners that it marks dirty keep the id until they are applied."""


async def _no_deleted_owners() -> frozenset[Owner]:
    return frozenset()


def _no_missing_facts(_: Owner) -> str:
    return ""


class Reconciler:
    """Reconcile loop of one dataplane.

    - `snapshot` returns the newest model; on a node, the newest slice of it.
    - `clock` returns monotonic seconds, used for back-off.
    - `deleted` returns the owners that the store records as deleted.
    - `unheard` returns why the facts that an owner's rows depend on are not known yet, or "". Until they are known, its
      rows stay unchanged.
    """

    def __init__(
        self,
        *,
        dataplane: Dataplane,
        driver: Driver,
        snapshot: Callable[[], Snapshot],
        clock: Callable[[], float],
        deleted: Callable[[], Awaitable[Container[Owner]]] = _no_deleted_owners,
        unheard: Callable[[Owner], str] = _no_missing_facts,
    ) -> None:
        self.dataplane = dataplane
        self._logger = LOG.getChild(dataplane.name)
        self._kinds = dataplane.kinds
        self._driver = driver
        self._bulk = driver if isinstance(driver, BulkDriver) else None
        self._snapshot = snapshot
        self._clock = clock
        self._deleted = deleted
        self._missing_facts = unheard
        self._queue = Queue(Tenants(snapshot).project_of) if dataplane.separates_projects else Queue()
        self._memory = OwnerStates()
        self._outcomes = Outcomes(self._memory, self._queue, snapshot, clock, self._logger)
        self._contention = self._outcomes.contention
        self._last_update = clock()
        self.statistics = self._outcomes.statistics
        self.waiting_for_leader = self._outcomes.waiting_for_leader
        """Set whenever an owner waits for the leader, another server."""
        self.resync_applied = asyncio.Event()
        """Set while every owner that the last resync marked has been tried. Queued owners have failed or are newer."""
        self._has_resynced = False
        """Whether the last resync has marked all owners that differ."""
        self._wake = asyncio.Event()
        self._busy = asyncio.Lock()
        self._resync_lock = asyncio.Lock()
        self._comparison = FullComparison(self._kinds, self._compile, clock, self._logger)

    def watch(self, watcher: Callable[[ApplyRecord], None]) -> None:
        """Register a callback that is called after each owner that was processed successfully."""
        self._outcomes.watchers.append(watcher)

    def subscribe(self, follower: Callable[[Owner], None]) -> None:
        """Register a callback. It is called with an owner (load balancer, network, ...) whenever the applied state of
        that owner changes."""
        self._outcomes.subscribers.append(follower)

    def mark(self, owners: Iterable[Owner]) -> None:
        """Mark owners dirty: their model, or something it depends on, has changed. Skips kinds without rows here."""
        cause, wanted = CAUSE.get(), [owner for owner in owners if owner.kind in self._kinds]
        self._queue.add(wanted, self._clock())
        for owner in wanted:
            if self._resync_lock.locked():
                self._memory.changed_since_read.add(owner)
            if cause:
                causes = self._memory.causes.setdefault(owner, [])
                causes[:] = [*causes[1 - MAX_CAUSES :], cause]
        self._wake.set()

    def read_again(self, owner: Owner) -> None:
        """Mark the owner's applied state stale, so that it is read again and repaired."""
        if owner.kind not in self._kinds:
            return
        self._memory.last_applied.pop(owner, None)
        self._memory.stale.add(owner)
        self.mark([owner])

    def note_drift(self, owner: Owner, what: str = "") -> None:
        """Handle drift of this owner: as `read_again`, but with a growing pause if the drift recurs.

        `what` describes the change for the log; "" on a standby, which only watches.
        """
        now = self._last_update = self._clock()
        self.statistics.meddled += bool(what)
        pause = self._contention.record_drift(owner, now)
        if not pause:
            self._outcomes.apply_log.log_drift(owner, what)
            self.read_again(owner)
            return
        self._memory.last_applied.pop(owner, None)
        self._memory.leader_due_since.pop(owner, None)
        self._memory.stale.add(owner)
        if self._resync_lock.locked():
            self._memory.changed_since_read.add(owner)
        if owner not in self._queue:
            self._report_contention(owner, what, pause)
        self._queue.postpone(owner, now, now + pause)
        self._wake.set()

    def _report_contention(self, owner: Owner, what: str, pause: float) -> None:
        """Log the contention once per delayed repair. The pauses grow, so the log lines become rare."""
        repairs = self._contention.repairs(owner)
        error = f"another program keeps changing its rows: repaired {repairs} times, next repair in {pause:.3g} s"
        self._outcomes.apply_log.log_contention(owner, what, error, {"repairs": repairs, "pause": pause})
        before = self._memory.applied.get(owner, NEVER_APPLIED)
        self._outcomes.record(owner, AppliedState(generation=before.generation, error=error))

    def waiting_for_leader_seconds(self) -> float | None:
        """Return the seconds that an owner has waited for a leader that wrote nothing; None if no owner waits."""
        since = min(self._memory.leader_due_since.values(), default=None)
        return None if since is None else self._clock() - max(since, self._last_update)

    def contended(self) -> int:
        """Return the number of owners with a delayed repair because another writer keeps reverting it."""
        return self._contention.contended(self._clock())

    def applied(self, owner: Owner) -> AppliedState:
        known = self._memory.applied.get(owner, NEVER_APPLIED)
        since = self._queue.since(owner)
        if since is None and known == NEVER_APPLIED:  # not processed since the start
            return replace(known, stalled=True)
        stalled = since is not None and self._clock() - max(since, self._outcomes.last_success) > STALL_TIMEOUT
        return replace(known, stalled=True) if stalled else known

    async def wait_for_outcome(self, owner: Owner, generation: int) -> None:
        """Wait until this generation of the owner has an outcome, or any attempt has ended."""
        await self._outcomes.wait_for_outcome(owner, generation)

    def outcome(self, owner: Owner, generation: int) -> AppliedState | None:
        """Return the outcome of this generation (`Outcomes.outcome`). An owner without rows here counts as applied."""
        if owner.kind not in self._kinds:
            return AppliedState(generation=generation)
        return self._outcomes.outcome(owner, generation)

    def next_due(self) -> float | None:
        """Return the due time of the first delayed owner."""
        return self._queue.next_due()

    def age(self) -> float:
        """Return the seconds that the oldest ready owner has waited."""
        oldest = self._queue.oldest()
        return 0.0 if oldest is None else self._clock() - oldest

    def unsettled(self) -> float:
        """Return the seconds that the oldest dirty owner has been dirty, including all retries."""
        since = self._queue.unsettled()
        return 0.0 if since is None else self._clock() - since

    def __len__(self) -> int:
        """Number of owners that are queued or delayed."""
        return len(self._queue)

    async def plan(self) -> Mapping[Owner, Diff]:
        """Return the changes that a resync would make, without writing. Raises DriverError."""
        async with self._busy:
            snapshot, actual = self._snapshot(), await self._driver.read_all()
        return {each.owner: each.change async for each in self._comparison.compare(snapshot, actual) if each.change}

    async def compare(self, owner: Owner) -> tuple[Rows, Rows]:
        """Return the desired and the actual rows of one owner. Raises DriverError and Unsupported."""
        return await self._compile(self._snapshot(), owner), await self._driver.read(owner)

    async def resync(self, *, force: bool = False) -> int:
        """Re-read the whole dataplane, mark every owner that differs, and return their number.

        Raises DriverError, and MassDelete unless `force`.
        """
        async with self._resync_lock:
            self.resync_applied.clear()
            self._has_resynced = False
            try:
                return await self._resync(force)
            finally:
                self._memory.changed_since_read.clear()
                self._wake.set()

    async def _resync(self, force: bool) -> int:
        """Compare model and dataplane as they were at one moment.

        Owners that were queued or marked since that moment are skipped: the loop processes them anyway, and reads them
        again because their last applied rows were dropped.
        """
        async with self._busy:  # not during an apply
            snapshot, actual = self._snapshot(), await self._driver.read_all()
            self._memory.last_applied.clear()
            self._memory.changed_since_read = self._queue.owners()
            self._memory.compiled, self._memory.compiled_by = {}, snapshot
        wrong, gone, marked, together = list[Owner](), list[Owner](), 0, MIN_BATCH_OWNERS + 1
        async for each in self._comparison.compare(snapshot, actual):
            if each.owner in self._memory.changed_since_read:
                continue
            if each.failure is not None:
                self._outcomes.record_failure(each.owner, each.failure)
                if not isinstance(each.failure, Unsupported):
                    self.mark([each.owner])
                continue
            self._memory.last_applied[each.owner] = each.actual
            if not each.change:
                self._outcomes.record(each.owner, _applied(snapshot, each.owner))
            elif each.desired:
                wrong.append(each.owner)
                self._memory.remember_compiled(snapshot, each.owner, each.desired)
                if len(wrong) - marked == 2 * together:  # queue the rest as a large batch
                    self.mark(wrong[marked : marked + together])
                    marked += together
            else:
                gone.append(each.owner)
        self.mark(wrong[marked:])
        if self.statistics.resyncs:  # the first resync is the start; its differences arose before
            self.statistics.resync_changes += len(wrong) + len(gone)
        self.statistics.resyncs += 1
        self._has_resynced = True
        try:
            self.mark(gone if force else await guard_mass_deletion(snapshot, gone, len(actual), self._deleted))
        except MassDelete as held:
            self.mark(held.recorded_deletions)
            raise
        return len(wrong) + len(gone)

    async def step(self) -> bool:
        """Process the next ready owner, or a batch if the driver takes batches. Returns False if none is ready."""
        async with self._busy:
            owner = self._queue.pop(self._clock())
            if owner is None:
                return False
            if self._bulk is None or owner in self._memory.applied_alone:
                await self._process(owner)
            else:
                await self._process_batch(owner, self._bulk)
        return True

    async def _process(self, owner: Owner) -> None:
        wanted = await self._compile_desired(self._snapshot(), owner)
        if wanted is not None:
            await self._reconcile(wanted)

    async def _process_batch(self, first: Owner, driver: BulkDriver) -> None:
        """Process owners of one queue line from one snapshot in one transaction."""
        some = await self._compile_batch(first)
        if len(some) == 1:
            await self._reconcile(some[0])
            return
        try:
            await self._reconcile_batch(some, driver)
        except Exception as error:  # noqa: BLE001 - a bug is logged where the failure is recorded
            self._outcomes.handle_batch_failure(some, error)

    async def _compile_batch(self, first: Owner) -> list[DesiredState]:
        """Compile as many owners as fit into `TOGETHER` seconds, yielding to the event loop after each."""
        some, snapshot, rests = list[DesiredState](), self._snapshot(), Yielder()
        until, owner = self._clock() + BATCH_SECONDS, first
        while True:
            wanted = await self._compile_desired(snapshot, owner)
            if wanted is not None:
                some.append(wanted)
            await rests.yield_if_due()
            if len(some) == MAX_BATCH_OWNERS or self._clock() >= until:
                return some
            if self._snapshot() is not snapshot:  # the next owner may have changed since this snapshot
                return some
            another = self._queue.pop_another(self._memory.applied_alone)
            if another is None:
                return some
            owner = another

    async def _compile_desired(self, snapshot: Snapshot, owner: Owner) -> DesiredState | None:
        """Compile an owner. Returns None, and records the failure, if that fails."""
        awaited_since, began = self._memory.leader_due_since.pop(owner, self._clock()), self._clock()
        self._memory.stale.discard(owner)
        try:
            desired = await self._compile(snapshot, owner)
        except Exception as error:  # noqa: BLE001 - a bug is logged where the failure is recorded
            self._outcomes.handle_failure(owner, error, awaited_since)
            return None
        return DesiredState(
            owner=owner,
            desired=desired,
            applied=_applied(snapshot, owner),
            compiling=self._clock() - began,
            awaited_since=awaited_since,
        )

    async def _reconcile(self, wanted: DesiredState) -> None:
        owner, began = wanted.owner, self._clock()
        try:
            believed = self._memory.last_applied.get(owner)
            if believed is None:
                believed = await self._driver.read(owner)
            change = diff(wanted.desired, believed)
            if change or owner in self._memory.postponed:
                await self._apply(owner, change, wanted.applied.generation)
            run_to_completion(self._outcomes.record_successes([(wanted, change)], self._clock() - began))
        except Exception as error:  # noqa: BLE001 - a bug is logged where the failure is recorded
            self._outcomes.handle_failure(owner, error, wanted.awaited_since)

    async def _reconcile_batch(self, some: Sequence[DesiredState], driver: BulkDriver) -> None:
        """Apply a batch in one transaction. Raises DriverError."""
        began, found = self._clock(), {each.owner: self._memory.last_applied.get(each.owner) for each in some}
        unknown = [owner for owner, rows in found.items() if rows is None]
        if unknown:
            found.update(await driver.read_some(unknown))
        changes, rests = list[tuple[DesiredState, Diff]](), Yielder()
        for each in some:
            changes.append((each, diff(each.desired, found[each.owner] or NO_ROWS)))
            await rests.yield_if_due()
        postponed = self._memory.postponed
        wanted = {each.owner: change for each, change in changes if change or each.owner in postponed}
        if wanted:
            await driver.apply_all(wanted)
            self.statistics.applied += len(wanted)
        await run_in_steps(self._outcomes.record_successes(changes, self._clock() - began))

    async def _apply(self, owner: Owner, change: Diff, generation: int) -> None:
        try:
            await self._driver.apply(owner, change)
        except Standby:
            self._contention.record_difference(owner, generation)
            raise
        self.statistics.applied += 1

    async def run(self) -> None:
        """Process owners until cancelled."""
        while True:
            self._wake.clear()
            while await self.step():  # noqa: ASYNC110 - yields to request handlers between two owners
                await asyncio.sleep(0)
            if self._has_resynced and not self._resync_lock.locked():
                self.resync_applied.set()
            due = self._queue.next_due()
            timeout = None if due is None else max(0.0, due - self._clock())
            try:
                async with asyncio.timeout(timeout):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def retry_now(self) -> None:
        """End every back-off because the dataplane has reconnected."""
        self._queue.retry_now(self._clock())
        self._wake.set()

    async def _compile(self, snapshot: Snapshot, owner: Owner) -> Rows:
        """Compile an owner, yielding to the event loop between the compiler's steps. Raises Unsupported and Unheard."""
        if why := self._missing_facts(owner):
            raise NotSynced(why)
        rows = self._memory.take_compiled(snapshot, owner)
        if rows is None:
            rows = await run_in_steps(self.dataplane.compile_in_steps(snapshot, owner))
            self.statistics.compiled += 1
        return rows


def _applied(snapshot: Snapshot, owner: Owner) -> AppliedState:
    """Applied state of an owner with the generation that this snapshot has for it."""
    return AppliedState(generation=snapshot.generations.get(owner, snapshot.revision))

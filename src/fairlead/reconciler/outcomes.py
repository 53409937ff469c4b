"""Outcomes of applied owners: records them, wakes the requests that wait for them, and schedules retries."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.rows import Diff
from fairlead.drivers.interface import DriverError, Requeue, Standby, Unavailable, Unreachable
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.status import NEVER_APPLIED, AppliedState
from fairlead.model.snapshot import Snapshot
from fairlead.reconciler.apply_log import AppliedOwner, ApplyLog
from fairlead.reconciler.contention import Contention
from fairlead.reconciler.owner_states import ApplyRecord, DesiredState, OwnerStates, Statistics
from fairlead.reconciler.queue import Queue
from fairlead.runtime.steps import Steps


class Outcomes:
    def __init__(
        self,
        memory: OwnerStates,
        queue: Queue,
        snapshot: Callable[[], Snapshot],
        clock: Callable[[], float],
        logger: logging.Logger,
    ) -> None:
        self.statistics = Statistics()
        self.contention = Contention()
        self.apply_log = ApplyLog(snapshot, logger)
        self.watchers: list[Callable[[ApplyRecord], None]] = []
        self.subscribers: list[Callable[[Owner], None]] = []
        self.last_success = clock()
        self.waiting_for_leader = asyncio.Event()
        self._memory, self._queue, self._snapshot, self._clock, self._logger = memory, queue, snapshot, clock, logger
        self._waiters: dict[Owner, set[asyncio.Future[None]]] = {}
        """Owner -> futures of the requests that wait for its next outcome."""

    async def wait_for_outcome(self, owner: Owner, generation: int) -> None:
        """Wait until this generation of the owner has an outcome, or any attempt has ended."""
        if self.outcome(owner, generation) is None:
            await self._wait_for_next_outcome(owner)

    async def _wait_for_next_outcome(self, owner: Owner) -> None:
        """Wait for the owner's next outcome. A cancelled wait removes its entry: a deleted owner has no next
        outcome."""
        news = asyncio.get_running_loop().create_future()
        waiting = self._waiters.setdefault(owner, set())
        waiting.add(news)
        try:
            await news
        finally:
            waiting.discard(news)
            if not waiting and self._waiters.get(owner) is waiting:
                del self._waiters[owner]

    def outcome(self, owner: Owner, generation: int) -> AppliedState | None:
        """Return the outcome of this generation: applied, or failed with the retry not due yet. None while an attempt
        is due.

        An error of an earlier generation is no outcome of this one. A deleted owner is applied when its rows are gone.
        """
        known = self._memory.applied.get(owner, NEVER_APPLIED)
        if known.generation >= generation:
            return AppliedState(generation=known.generation)
        if self._queue.since(owner) is None:
            return known if known.error is not None else AppliedState(generation=generation)
        return known if known.error is not None and self._queue.is_delayed(owner) else None

    def record(self, owner: Owner, applied: AppliedState) -> None:
        self._memory.applied[owner] = applied
        for waiting in self._waiters.pop(owner, ()):
            if not waiting.done():
                waiting.set_result(None)
        for follower in self.subscribers:
            follower(owner)

    def record_successes(self, some: Sequence[tuple[DesiredState, Diff]], applying: float) -> Steps[None]:
        """Record the applied rows and changes, one step per owner. `applying` is the seconds for all of them."""
        told = list[AppliedOwner]()
        for wanted, change in some:
            owner, generation = wanted.owner, wanted.applied.generation
            self.contention.record_settled(owner, generation, self._clock(), repaired=bool(change))
            self._record_success(wanted)
            work = ApplyRecord(owner=owner, compiling=wanted.compiling, applying=applying / len(some), change=change)
            causes = self._memory.causes.pop(owner, [])
            if change:
                told.append(AppliedOwner(work=work, generation=generation, causes=causes))
            for watcher in self.watchers:
                watcher(work)
            yield
        self.apply_log.log_applied(told)

    def _record_success(self, wanted: DesiredState) -> None:
        owner, desired = wanted.owner, wanted.desired
        if owner not in self._memory.stale:
            self._memory.last_applied[owner] = desired
        self._memory.postponed.discard(owner)
        self._memory.failed.discard(owner)
        self._memory.applied_alone.discard(owner)
        self.last_success = self._clock()
        self._queue.done(owner)
        self.record(owner, wanted.applied)
        if not desired and self._snapshot().find(owner) is None:
            self._memory.last_applied.pop(owner, None)
            self._memory.applied.pop(owner, None)

    def handle_failure(self, owner: Owner, error: Exception, awaited_since: float) -> None:
        match error:
            case Unsupported():
                self.statistics.refused += 1
                self._queue.done(owner)
                self.record_failure(owner, error)  # a retry would not help; a change of the model may
            case Requeue():
                self._memory.last_applied.pop(owner, None)
                self._memory.postponed.add(owner)
                self._queue.postpone(owner, now := self._clock(), now + error.seconds)  # not a failure
            case Standby():
                self._memory.last_applied.pop(owner, None)
                self._queue.failed(owner, self._clock())  # stays pending until the leader's write is seen
                if owner not in self._memory.failed:
                    self._memory.leader_due_since[owner] = awaited_since
                    self.waiting_for_leader.set()
            case _:
                self._schedule_retry(owner, error)

    def _schedule_retry(self, owner: Owner, error: Exception) -> None:
        if not isinstance(error, DriverError):
            self._logger.error("BUG: applying %s failed; retrying (please report)", owner, exc_info=error)
        self.statistics.failed += 1
        if not isinstance(error, Unavailable):
            self._memory.failed.add(owner)
            self._memory.applied_alone.add(owner)
        self._memory.last_applied.pop(owner, None)
        self.record_failure(owner, error)
        if isinstance(error, Unreachable):
            self._queue.delay_until_reconnect(owner, self._clock())
        else:
            self._queue.failed(owner, self._clock())

    def handle_batch_failure(self, some: Sequence[DesiredState], error: Exception) -> None:
        """Handle the failure of a batch: one bad owner must not block the others, so each is retried alone, next.

        If the dataplane was unavailable, each owner is retried with the usual back-off instead.
        """
        if isinstance(error, Unavailable):
            for each in some:
                self.handle_failure(each.owner, error, each.awaited_since)
            return
        mistake = None if isinstance(error, DriverError) else error
        self._logger.warning(
            "could not apply %d owners in one transaction: %s; retrying each alone", len(some), error, exc_info=mistake
        )
        for each in some:
            self._memory.last_applied.pop(each.owner, None)
        owners = [each.owner for each in some]
        self._memory.applied_alone.update(owners)
        self._queue.requeue_first(owners, self._clock())

    def record_failure(self, owner: Owner, error: Exception) -> None:
        before = self._memory.applied.get(owner, NEVER_APPLIED)
        self.record(owner, AppliedState(generation=before.generation, error=str(error)))
        self.apply_log.log_failed(owner, error, self._memory.causes.get(owner, []))

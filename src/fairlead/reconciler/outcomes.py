"""Outcomes of applied owners: records them, wakes the requests that wait for them, and schedules retries."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.rows import Diff
from fairlead.drivers.interface import DriverError, Later, Standby, Unavailable, Unreachable
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.status import NEVER_APPLIED, Applied
from fairlead.model.snapshot import Snapshot
from fairlead.reconciler.apply_log import Telling, Told
from fairlead.reconciler.contention import Contention
from fairlead.reconciler.owner_states import Memory, Statistics, Wanted, Work
from fairlead.reconciler.queue import Queue
from fairlead.runtime.steps import Steps


class Outcomes:
    def __init__(
        self,
        memory: Memory,
        queue: Queue,
        snapshot: Callable[[], Snapshot],
        clock: Callable[[], float],
        logger: logging.Logger,
    ) -> None:
        self.statistics = Statistics()
        self.contention = Contention()
        self.telling = Telling(snapshot, logger)
        self.watchers: list[Callable[[Work], None]] = []
        self.followers: list[Callable[[Owner], None]] = []
        self.last_success = clock()
        self.stood_by = asyncio.Event()
        self._memory, self._queue, self._snapshot, self._clock, self._logger = memory, queue, snapshot, clock, logger
        self._news: dict[Owner, set[asyncio.Future[None]]] = {}
        """Owner -> futures of the requests that wait for its next outcome."""

    async def news(self, owner: Owner, generation: int) -> None:
        """Wait until this generation of the owner has an outcome, or any attempt has ended."""
        if self.outcome(owner, generation) is None:
            await self._next_news(owner)

    async def _next_news(self, owner: Owner) -> None:
        """Wait for the owner's next outcome. A cancelled wait removes its entry: a deleted owner has no next
        outcome."""
        news = asyncio.get_running_loop().create_future()
        waiting = self._news.setdefault(owner, set())
        waiting.add(news)
        try:
            await news
        finally:
            waiting.discard(news)
            if not waiting and self._news.get(owner) is waiting:
                del self._news[owner]

    def outcome(self, owner: Owner, generation: int) -> Applied | None:
        """Return the outcome of this generation: applied, or failed with the retry not due yet. None while an attempt
        is due.

        An error of an earlier generation is no outcome of this one. A deleted owner is applied when its rows are gone.
        """
        known = self._memory.applied.get(owner, NEVER_APPLIED)
        if known.generation >= generation:
            return Applied(generation=known.generation)
        if self._queue.since(owner) is None:
            return known if known.error is not None else Applied(generation=generation)
        return known if known.error is not None and self._queue.is_delayed(owner) else None

    def know(self, owner: Owner, applied: Applied) -> None:
        self._memory.applied[owner] = applied
        for waiting in self._news.pop(owner, ()):
            if not waiting.done():
                waiting.set_result(None)
        for follower in self.followers:
            follower(owner)

    def succeeded(self, some: Sequence[tuple[Wanted, Diff]], applying: float) -> Steps[None]:
        """Record the applied rows and changes, one step per owner. `applying` is the seconds for all of them."""
        told = list[Told]()
        for wanted, change in some:
            owner, generation = wanted.owner, wanted.applied.generation
            self.contention.settle(owner, generation, self._clock(), repaired=bool(change))
            self._remember_success(wanted)
            work = Work(owner=owner, compiling=wanted.compiling, applying=applying / len(some), change=change)
            causes = self._memory.causes.pop(owner, [])
            if change:
                told.append(Told(work=work, generation=generation, causes=causes))
            for watcher in self.watchers:
                watcher(work)
            yield
        self.telling.applied(told)

    def _remember_success(self, wanted: Wanted) -> None:
        owner, desired = wanted.owner, wanted.desired
        if owner not in self._memory.doubted:
            self._memory.believed[owner] = desired
        self._memory.postponed.discard(owner)
        self._memory.failed.discard(owner)
        self._memory.apart.discard(owner)
        self.last_success = self._clock()
        self._queue.done(owner)
        self.know(owner, wanted.applied)
        if not desired and self._snapshot().find(owner) is None:
            self._memory.believed.pop(owner, None)
            self._memory.applied.pop(owner, None)

    def failed(self, owner: Owner, error: Exception, awaited_since: float) -> None:
        match error:
            case Unsupported():
                self.statistics.refused += 1
                self._queue.done(owner)
                self.remember_failure(owner, error)  # a retry would not help; a change of the model may
            case Later():
                self._memory.believed.pop(owner, None)
                self._memory.postponed.add(owner)
                self._queue.postpone(owner, now := self._clock(), now + error.seconds)  # not a failure
            case Standby():
                self._memory.believed.pop(owner, None)
                self._queue.failed(owner, self._clock())  # stays pending until the leader's write is seen
                if owner not in self._memory.failed:
                    self._memory.awaiting[owner] = awaited_since
                    self.stood_by.set()
            case _:
                self._try_again(owner, error)

    def _try_again(self, owner: Owner, error: Exception) -> None:
        if not isinstance(error, DriverError):
            self._logger.error("a mistake of Fairlead's own in %s; trying again", owner, exc_info=error)
        self.statistics.failed += 1
        if not isinstance(error, Unavailable):
            self._memory.failed.add(owner)
            self._memory.apart.add(owner)
        self._memory.believed.pop(owner, None)
        self.remember_failure(owner, error)
        if isinstance(error, Unreachable):
            self._queue.unreachable(owner, self._clock())
        else:
            self._queue.failed(owner, self._clock())

    def failed_together(self, some: Sequence[Wanted], error: Exception) -> None:
        """Handle the failure of a batch: one bad owner must not block the others, so each is retried alone, next.

        If the dataplane was unavailable, each owner is retried with the usual back-off instead.
        """
        if isinstance(error, Unavailable):
            for each in some:
                self.failed(each.owner, error, each.awaited_since)
            return
        mistake = None if isinstance(error, DriverError) else error
        self._logger.warning(
            "could not apply %d together: %s; each is tried by itself", len(some), error, exc_info=mistake
        )
        for each in some:
            self._memory.believed.pop(each.owner, None)
        owners = [each.owner for each in some]
        self._memory.apart.update(owners)
        self._queue.again(owners, self._clock())

    def remember_failure(self, owner: Owner, error: Exception) -> None:
        before = self._memory.applied.get(owner, NEVER_APPLIED)
        self.know(owner, Applied(generation=before.generation, error=str(error)))
        self.telling.failed(owner, error, self._memory.causes.get(owner, []))

"""The reconciler of one dataplane: compile an owner whole, compare it with what was last applied, apply the difference.

Create, update, delete, restart and repair are this one path. What was last applied is believed until an apply fails or
the dataplane says that somebody else changed it; then the owner is read again. A resync believes nothing (`looking`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import replace

from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.interface import Dataplane
from fairlead.dataplane.rows import Diff, Rows, diff
from fairlead.drivers.interface import (
    Driver,
    DriverError,
    Later,
    MissingReference,
    Standby,
    Unavailable,
    Unheard,
    Unreachable,
)
from fairlead.model.names import describe_owner
from fairlead.model.owner import Owner
from fairlead.model.snapshot import Snapshot
from fairlead.model.status import NEVER_APPLIED, Applied
from fairlead.reconciler.contention import Contention
from fairlead.reconciler.looking import Looking, MassDelete, brake
from fairlead.reconciler.memory import Memory, Statistics, Work
from fairlead.reconciler.queue import MANY, Queue
from fairlead.resting import in_steps

LOG = logging.getLogger(__name__)
STALLED = 1.0
"""Seconds without a success after which an owner is no longer waited for: nobody answers, or nobody writes."""
MOST_CAUSES = 8
"""Of one owner: a burst of changes is one apply, and its log line stays readable."""
CAUSE: ContextVar[str] = ContextVar("CAUSE", default="")
"""The id of the request that is being served: owners that it makes dirty remember it until they are applied."""


async def _nothing() -> frozenset[Owner]:
    return frozenset()


def _hears_all(_: Owner) -> str:
    return ""


class Reconciler:
    """`snapshot` gives the newest model, or on a node the newest slice of it; `clock` the seconds that back-off counts.

    `deleted` gives the owners that are known to have been deleted on purpose. `unheard` says why what an owner's rows
    depend on is not known yet, or "": until then they stay as they are.
    """

    def __init__(
        self,
        *,
        dataplane: Dataplane,
        driver: Driver,
        snapshot: Callable[[], Snapshot],
        clock: Callable[[], float],
        deleted: Callable[[], Awaitable[Container[Owner]]] = _nothing,
        unheard: Callable[[Owner], str] = _hears_all,
    ) -> None:
        self.statistics = Statistics()
        self.dataplane = dataplane
        self._logger = LOG.getChild(dataplane.name)
        self._kinds = dataplane.kinds
        self._driver = driver
        self._snapshot = snapshot
        self._clock = clock
        self._queue = Queue()
        self._contention = Contention()
        self._deleted = deleted
        self._unheard = unheard
        self._memory = Memory()
        self._watchers: list[Callable[[Work], None]] = []
        self._followers: list[Callable[[Owner], None]] = []
        self._succeeded = clock()
        self._heard = clock()
        self.stood_by = asyncio.Event()
        """Set whenever something waits for another server."""
        self._news: dict[Owner, asyncio.Event] = {}
        self._wake = asyncio.Event()
        self._busy = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._look = Looking(self._kinds, self._compile, clock, self._logger)

    def watch(self, watcher: Callable[[Work], None]) -> None:
        """Call this after each owner that was worked on with success."""
        self._watchers.append(watcher)

    def follow(self, follower: Callable[[Owner], None]) -> None:
        """Call this whenever another thing is known of what of an owner has been applied."""
        self._followers.append(follower)

    def mark(self, owners: Iterable[Owner]) -> None:
        """These owners are dirty: their model, or what it depends on, has changed. Those that never have rows here are
        left out."""
        cause, wanted = CAUSE.get(), [owner for owner in owners if owner.kind in self._kinds]
        self._queue.add(wanted, self._clock())
        for owner in wanted:
            if self._looking.locked():
                self._memory.touched.add(owner)
            if cause:
                causes = self._memory.causes.setdefault(owner, [])
                causes[:] = [*causes[1 - MOST_CAUSES :], cause]
        self._wake.set()

    def read_again(self, owner: Owner) -> None:
        """Read this owner again, and put right what is wrong."""
        if owner.kind not in self._kinds:
            return
        self._memory.believed.pop(owner, None)
        self._memory.doubted.add(owner)
        self.mark([owner])

    def note_foreign_change(self, owner: Owner, what: str = "") -> None:
        """Somebody else changed rows of this owner: as `read_again`, but not again and again without a pause.

        `what` says it in words; "" is for one who only looks on while another server writes.
        """
        now = self._heard = self._clock()
        self.statistics.meddled += bool(what)
        pause = self._contention.notice(owner, now)
        if not pause:
            self._logger.log(
                logging.WARNING if what else logging.DEBUG,
                "somebody else changed rows of %s: %s",
                describe_owner(self._snapshot(), owner),
                what,
            )
            self.read_again(owner)
            return
        self._memory.believed.pop(owner, None)
        self._memory.awaiting.pop(owner, None)
        self._memory.doubted.add(owner)
        if self._looking.locked():
            self._memory.touched.add(owner)
        if owner not in self._queue:
            self._complain_of_dispute(owner, what, pause)
        self._queue.postpone(owner, now, now + pause)
        self._wake.set()

    def _complain_of_dispute(self, owner: Owner, what: str, pause: float) -> None:
        """Once for each repair that waits: the pauses grow, so the lines become few."""
        repairs = self._contention.repairs(owner)
        error = f"somebody else keeps changing its rows: put right {repairs} times, next in {pause:.3g} s"
        self._logger.log(
            logging.WARNING if what else logging.DEBUG,
            *("%s: %s: %s", self._called(owner), error, what),
            extra={"fields": {"owner": str(owner), "repairs": repairs, "pause": pause, "change": what}},
        )
        before = self._memory.applied.get(owner, NEVER_APPLIED)
        self._know(owner, Applied(generation=before.generation, error=error))

    def awaited(self) -> float | None:
        """Seconds for which something has waited for another server, and that server has done nothing at all; None
        when nothing waits for one."""
        since = min(self._memory.awaiting.values(), default=None)
        return None if since is None else self._clock() - max(since, self._heard)

    def contended(self) -> int:
        """How many owners wait for repairs because somebody else undoes each."""
        return self._contention.contended(self._clock())

    def applied(self, owner: Owner) -> Applied:
        known = self._memory.applied.get(owner, NEVER_APPLIED)
        since = self._queue.since(owner)
        if since is None and known == NEVER_APPLIED:  # since the start nobody has looked at it
            return replace(known, stalled=True)
        stalled = since is not None and self._clock() - max(since, self._succeeded) > STALLED
        return replace(known, stalled=True) if stalled else known

    async def news(self, owner: Owner, generation: int) -> None:
        """Returns when this generation of the owner has been applied, or when anything has become of an attempt."""
        known = self._memory.applied.get(owner, NEVER_APPLIED)
        if known.generation < generation and known.error is None:
            await self._news.setdefault(owner, asyncio.Event()).wait()

    def _know(self, owner: Owner, applied: Applied) -> None:
        self._memory.applied[owner] = applied
        if heard := self._news.pop(owner, None):
            heard.set()
        for follower in self._followers:
            follower(owner)

    def next_due(self) -> float | None:
        """When the first owner that waits for a retry is due."""
        return self._queue.next_due()

    def age(self) -> float:
        """Seconds for which the owner that is ready longest has waited."""
        oldest = self._queue.oldest()
        return 0.0 if oldest is None else self._clock() - oldest

    def unsettled(self) -> float:
        """Seconds since which the owner that waits longest is dirty, those included that are tried again and again."""
        since = self._queue.unsettled()
        return 0.0 if since is None else self._clock() - since

    def __len__(self) -> int:
        """How many owners wait, for their turn or for a retry."""
        return len(self._queue)

    async def plan(self) -> Mapping[Owner, Diff]:
        """What a resync would change; nothing is written. Raises DriverError."""
        async with self._busy:
            snapshot, actual = self._snapshot(), await self._driver.read_all()
        return {each.owner: each.change async for each in self._look.compare(snapshot, actual) if each.change}

    async def compare(self, owner: Owner) -> tuple[Rows, Rows]:
        """What one owner should have, and what the dataplane has. Raises DriverError and Unsupported."""
        return await self._compile(self._snapshot(), owner), await self._driver.read(owner)

    async def resync(self, *, force: bool = False) -> int:
        """Believe nothing: read all, and mark every owner that is not as it should be. Answers how many.

        Raises DriverError, and MassDelete unless `force`.
        """
        async with self._looking:
            try:
                return await self._resync(force)
            finally:
                self._memory.touched.clear()

    async def _resync(self, force: bool) -> int:
        """Model and dataplane are compared as they were at one moment. Owners with news since then are left out: they
        are looked at anyway, and read again, because from that moment on nothing is believed.
        """
        async with self._busy:  # not in the middle of an apply
            snapshot, actual = self._snapshot(), await self._driver.read_all()
            self._memory.believed.clear()
            self._memory.touched = self._queue.owners()
        wrong, gone, together = list[Owner](), list[Owner](), MANY + 1  # nobody who asks meanwhile waits for them
        async for each in self._look.compare(snapshot, actual):
            if each.owner in self._memory.touched:
                continue
            if each.failure is not None:
                self._remember_failure(each.owner, each.failure)
                if not isinstance(each.failure, Unsupported):
                    self.mark([each.owner])
                continue
            self._memory.believed[each.owner] = each.actual
            if not each.change:
                self._know(each.owner, _applied(snapshot, each.owner))
            elif each.desired:
                wrong.append(each.owner)
                if len(wrong) % together == 0:
                    self.mark(wrong[-together:])
            else:
                gone.append(each.owner)
        self.mark(wrong[len(wrong) // together * together :])
        if self.statistics.resyncs:  # the first one is the start: what it finds is what happened before
            self.statistics.resync_changes += len(wrong) + len(gone)
        self.statistics.resyncs += 1
        try:
            self.mark(gone if force else await brake(snapshot, gone, len(actual), self._deleted))
        except MassDelete as held:
            self.mark(held.meant)
            raise
        return len(wrong) + len(gone)

    async def step(self) -> bool:
        """Work on the next owner that is ready; False when none is."""
        async with self._busy:
            owner = self._queue.pop(self._clock())
            if owner is not None:
                await self._work_on(owner)
        return owner is not None

    async def _work_on(self, owner: Owner) -> None:
        awaited_since = self._memory.awaiting.pop(owner, self._clock())
        try:
            await self._reconcile(owner)
        except Unsupported as refusal:
            self.statistics.refused += 1
            self._queue.done(owner)
            self._remember_failure(owner, refusal)  # trying again would not help; a change of the model may
        except Later as later:
            self._memory.believed.pop(owner, None)
            self._memory.postponed.add(owner)
            self._queue.postpone(owner, now := self._clock(), now + later.seconds)  # no failure
        except Standby:
            self._memory.believed.pop(owner, None)
            self._queue.failed(owner, self._clock())  # no failure of the owner's: it stays pending until it is seen
            if owner not in self._memory.failed:
                self._memory.awaiting[owner] = awaited_since
                self.stood_by.set()
        except Exception as error:
            if not isinstance(error, DriverError):
                self._logger.exception("a mistake of Fairlead's own in %s; trying again", owner)
            self.statistics.failed += 1
            if not isinstance(error, Unavailable):
                self._memory.failed.add(owner)
            self._memory.believed.pop(owner, None)
            self._remember_failure(owner, error)
            if isinstance(error, Unreachable):
                self._queue.unreachable(owner, self._clock())
            else:
                self._queue.failed(owner, self._clock())
        else:
            self._memory.failed.discard(owner)
            self._queue.done(owner)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            self._wake.clear()
            while await self.step():  # noqa: ASYNC110 - the sleep lets the doors answer between two owners
                await asyncio.sleep(0)
            due = self._queue.next_due()
            timeout = None if due is None else max(0.0, due - self._clock())
            try:
                async with asyncio.timeout(timeout):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def retry_now(self) -> None:
        """The dataplane is back: end every back-off."""
        self._queue.retry_now(self._clock())
        self._wake.set()

    async def _reconcile(self, owner: Owner) -> None:
        began = self._clock()
        self._memory.doubted.discard(owner)
        snapshot = self._snapshot()
        desired = await self._compile(snapshot, owner)
        compiled = self._clock()
        believed = self._memory.believed.get(owner)
        if believed is None:
            believed = await self._driver.read(owner)
        change = diff(desired, believed)
        applied = _applied(snapshot, owner)
        if change or owner in self._memory.postponed:
            await self._apply(owner, change, applied.generation)
            self._memory.postponed.discard(owner)
        self._contention.settle(owner, applied.generation, self._clock(), repaired=bool(change))
        self._remember_success(owner, desired, applied)
        work = Work(owner=owner, compiling=compiled - began, applying=self._clock() - compiled, change=change)
        self._tell(work, applied.generation)

    async def _apply(self, owner: Owner, change: Diff, generation: int) -> None:
        try:
            await self._driver.apply(owner, change)
        except Standby:
            self._contention.differs(owner, generation)
            raise
        self.statistics.applied += 1

    def _tell(self, work: Work, generation: int) -> None:
        causes, change = self._memory.causes.pop(work.owner, []), work.change
        if change:
            took = round((work.compiling + work.applying) * 1000, 1)
            news = {
                "owner": str(work.owner),
                "generation": generation,
                "created": len(change.creates),
                "updated": len(change.updates),
                "deleted": len(change.deletes),
                "milliseconds": took,
                "requests": causes,
            }
            words = f"applied {self._called(work.owner)} generation {generation}: {change.counts} in {took} ms"
            self._logger.info("%s", f"{words} for {', '.join(causes)}" if causes else words, extra={"fields": news})
        for watcher in self._watchers:
            watcher(work)

    def _called(self, owner: Owner) -> str:
        return describe_owner(self._snapshot(), owner)

    async def _compile(self, snapshot: Snapshot, owner: Owner) -> Rows:
        """Others are served between two steps of an owner that takes long. Raises Unsupported and Unheard."""
        if why := self._unheard(owner):
            raise Unheard(why)
        rows = await in_steps(self.dataplane.compile_in_steps(snapshot, owner))
        self.statistics.compiled += 1
        return rows

    def _remember_success(self, owner: Owner, desired: Rows, applied: Applied) -> None:
        if owner not in self._memory.doubted:
            self._memory.believed[owner] = desired
        self._succeeded = self._clock()
        self._know(owner, applied)
        if not desired and self._snapshot().find(owner) is None:
            self._memory.believed.pop(owner, None)
            self._memory.applied.pop(owner, None)

    def _remember_failure(self, owner: Owner, error: Exception) -> None:
        before = self._memory.applied.get(owner, NEVER_APPLIED)
        self._know(owner, Applied(generation=before.generation, error=str(error)))
        level = logging.DEBUG if isinstance(error, Unavailable | MissingReference) else logging.WARNING
        causes = self._memory.causes.get(owner, [])
        self._logger.log(
            level,
            *(
                "could not apply %s%s: %s",
                describe_owner(self._snapshot(), owner),
                f" for {', '.join(causes)}" if causes else "",
                error,
            ),
            extra={"fields": {"owner": str(owner), "requests": causes, "error": str(error)}},
        )


def _applied(snapshot: Snapshot, owner: Owner) -> Applied:
    """In the dataplane as this snapshot has it."""
    return Applied(generation=snapshot.generations.get(owner, snapshot.revision))

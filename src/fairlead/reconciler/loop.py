"""The reconciler: compile an owner whole, compare it with what was last applied, apply the difference.

Create, update, delete, restart and repair are this one path. What was last applied is believed until an apply fails or
the dataplane says that somebody else changed it; then the owner is read again. A resync believes nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from fairlead.compilers.providers import Compile
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.rows import NO_ROWS, Diff, Rows, diff
from fairlead.drivers.interface import Driver, DriverError, MissingReference, Standby, Unavailable
from fairlead.model.owner import Owner, creation_order
from fairlead.model.snapshot import Snapshot
from fairlead.model.status import NEVER_APPLIED, Applied
from fairlead.reconciler.queue import Queue

LOG = logging.getLogger(__name__)
BRAKE_OWNERS = 20
BRAKE_SHARE = 0.3


class MassDelete(Exception):
    """A resync would delete more than 30 % of more than 20 owners, or any because nothing was ever stored (is it the
    right store?): somebody has to say that this is meant.

    Everything else that the resync found has been set right all the same.
    """


@dataclass(slots=True, kw_only=True)
class Statistics:
    applied: int = 0
    compiled: int = 0
    failed: int = 0
    refused: int = 0
    resyncs: int = 0
    resync_changes: int = 0
    """Owners that a resync found different. It must stay 0 in production: it is the alarm for a missed dependency."""


@dataclass(slots=True, kw_only=True)
class _Memory:
    believed: dict[Owner, Rows] = field(default_factory=dict)
    doubted: set[Owner] = field(default_factory=set)
    """Owners that somebody else changed while they were worked on: what was written then is not believed."""
    applied: dict[Owner, Applied] = field(default_factory=dict)


class Reconciler:
    """`snapshot` gives the newest model; `clock` the seconds that back-off counts."""

    def __init__(
        self, *, driver: Driver, compile_owner: Compile, snapshot: Callable[[], Snapshot], clock: Callable[[], float]
    ) -> None:
        self.statistics = Statistics()
        self._driver = driver
        self._compile = compile_owner
        self._snapshot = snapshot
        self._clock = clock
        self._queue = Queue()
        self._memory = _Memory()
        self._wake = asyncio.Event()
        self._busy = asyncio.Lock()

    def mark(self, owners: Iterable[Owner]) -> None:
        """These owners are dirty: their model, or what it depends on, has changed."""
        for owner in owners:
            self._queue.add(owner, self._clock())
        self._wake.set()

    def distrust(self, owner: Owner) -> None:
        """Somebody else changed rows of this owner: read it again, and put right what is wrong."""
        self._memory.believed.pop(owner, None)
        self._memory.doubted.add(owner)
        self.mark([owner])

    def applied(self, owner: Owner) -> Applied:
        return self._memory.applied.get(owner, NEVER_APPLIED)

    def next_due(self) -> float | None:
        """When the first owner that waits for a retry is due."""
        return self._queue.next_due()

    def age(self) -> float:
        """Seconds for which the owner that is ready longest has waited."""
        oldest = self._queue.oldest()
        return 0.0 if oldest is None else self._clock() - oldest

    def __len__(self) -> int:
        """How many owners wait, for their turn or for a retry."""
        return len(self._queue)

    async def plan(self) -> Mapping[Owner, Diff]:
        """What a resync would change; nothing is written. Raises DriverError."""
        compared, _ = self._compare(await self._driver.read_all())
        return {owner: change for owner, change, _ in compared if change}

    async def compare(self, owner: Owner) -> tuple[Rows, Rows]:
        """What one owner should have, and what the dataplane has. Raises DriverError and Unsupported."""
        return self._compile(self._snapshot(), owner), await self._driver.read(owner)

    async def resync(self, *, force: bool = False) -> int:
        """Believe nothing: read all, and mark every owner that is not as it should be. Answers how many.

        Raises DriverError, and MassDelete unless `force`.
        """
        async with self._busy:
            return await self._resync(force)

    async def _resync(self, force: bool) -> int:
        actual = await self._driver.read_all()
        compared, failures = self._compare(actual)
        wrong = [owner for owner, change, _ in compared if change]
        gone = {owner for owner, change, desired in compared if change and not desired}
        many = len(actual) > BRAKE_OWNERS and len(gone) > BRAKE_SHARE * len(actual)
        held = not force and bool(gone) and (many or self._snapshot().revision == 0)
        self._memory.believed = dict(actual)
        self._settle(owner for owner, change, _ in compared if not change)
        for owner, failure in failures.items():
            self._remember_failure(owner, failure)
        self.mark(owner for owner, failure in failures.items() if not isinstance(failure, Unsupported))
        if self.statistics.resyncs:  # the first one is the start: what it finds is what happened before
            self.statistics.resync_changes += sum(owner not in self._queue for owner in wrong)
        self.statistics.resyncs += 1
        self.mark(owner for owner in wrong if not held or owner not in gone)
        if held:
            raise MassDelete(f"a resync would delete the rows of {len(gone)} of {len(actual)} owners")
        return len(wrong)

    async def step(self) -> bool:
        """Work on the next owner that is ready; False when none is."""
        owner = self._queue.pop(self._clock())
        if owner is None:
            return False
        try:
            async with self._busy:
                await self._reconcile(owner)
        except Unsupported as refusal:
            self.statistics.refused += 1
            self._remember_failure(owner, refusal)  # trying again would not help; a change of the model may
        except Standby:
            self._memory.believed.pop(owner, None)
            self._queue.failed(owner, self._clock())  # no failure of the owner's: it stays pending until it is seen
        except Exception as error:
            if not isinstance(error, DriverError):
                LOG.exception("a mistake of Fairlead's own in %s; trying again", owner)
            self.statistics.failed += 1
            self._memory.believed.pop(owner, None)
            self._remember_failure(owner, error)
            self._queue.failed(owner, self._clock())
        else:
            self._queue.succeeded(owner)
        return True

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
        started = self._clock()
        self._memory.doubted.discard(owner)
        snapshot = self._snapshot()
        desired = self._compile(snapshot, owner)
        self.statistics.compiled += 1
        believed = self._memory.believed.get(owner)
        if believed is None:
            believed = await self._driver.read(owner)
        change = diff(desired, believed)
        if change:
            await self._driver.apply(owner, change)
            self.statistics.applied += 1
            LOG.info("applied %s %s in %.1f ms", owner, change.counts, (self._clock() - started) * 1000)
        self._remember_success(owner, desired, snapshot.generations.get(owner, snapshot.revision))

    def _compare(
        self, actual: Mapping[Owner, Rows]
    ) -> tuple[list[tuple[Owner, Diff, Rows]], Mapping[Owner, Exception]]:
        """Each owner of the model or of the dataplane: what would change, and what it should have.

        And those that cannot be compiled, with the reason: they are left as they are.
        """
        snapshot = self._snapshot()
        owners = snapshot.owners()
        known = set(owners)
        orphans = sorted((owner for owner in actual if owner not in known), key=creation_order, reverse=True)
        compared: list[tuple[Owner, Diff, Rows]] = []
        failures: dict[Owner, Exception] = {}
        for owner in [*owners, *orphans]:
            try:
                desired = self._compile(snapshot, owner)
            except Exception as failure:
                if not isinstance(failure, Unsupported):
                    LOG.exception("a mistake of Fairlead's own in %s", owner)
                failures[owner] = failure
                continue
            self.statistics.compiled += 1
            compared.append((owner, diff(desired, actual.get(owner, NO_ROWS)), desired))
        return compared, failures

    def _settle(self, owners: Iterable[Owner]) -> None:
        """Owners found as they should be are applied at their newest generation."""
        snapshot = self._snapshot()
        for owner in owners:
            self._memory.applied[owner] = Applied(generation=snapshot.generations.get(owner, snapshot.revision))

    def _remember_success(self, owner: Owner, desired: Rows, generation: int) -> None:
        if owner not in self._memory.doubted:
            self._memory.believed[owner] = desired
        self._memory.applied[owner] = Applied(generation=generation)
        if not desired and self._snapshot().find(owner) is None:
            self._memory.believed.pop(owner, None)
            self._memory.applied.pop(owner, None)

    def _remember_failure(self, owner: Owner, error: Exception) -> None:
        before = self.applied(owner)
        self._memory.applied[owner] = Applied(generation=before.generation, error=str(error))
        level = logging.DEBUG if isinstance(error, Unavailable | MissingReference) else logging.WARNING
        LOG.log(level, "could not apply %s: %s", owner, error)

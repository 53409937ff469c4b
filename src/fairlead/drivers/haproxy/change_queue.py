"""Serialises the changes of one network; networks do not block each other.

A caller waits up to `AT_ONCE` seconds for its change. A change that takes longer continues as a task, the caller gets
Later, and its owner is requeued when the task ends. So a proxy that starts slowly, or not at all, delays no other.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from fairlead.dataplane.rows import Rows
from fairlead.drivers.interface import Requeue
from fairlead.model.documents.owner import Owner

CALLER_TIMEOUT = 0.25
"""Seconds that a caller waits for its change. Most processes start within this time."""
START_TIMEOUT = 2.0
"""Seconds that a starting agent waits for all proxies together."""
REQUEUE_INTERVAL = 60.0
"""Seconds until an owner that got Later is requeued even if no task reported its end."""
RequeueOwners: TypeAlias = Callable[[Collection[Owner]], None]
"""Called with the owners to requeue."""


@dataclass(slots=True)
class ChangeQueue:
    """Queue of one network: at most one change runs, and the owners of rejected callers are remembered."""

    task: "asyncio.Task[None] | None" = None
    running_change: tuple[Owner, Rows] | None = None
    """Owner and rows of the change that continues as a task; None if no change took longer than `AT_ONCE`."""
    waiting_owners: set[Owner] = field(default_factory=set)
    """Owners that got Later while the task ran. They are requeued when it ends."""
    failed: dict[Owner, tuple[Rows, BaseException]] = field(default_factory=dict)
    """Maps owners to the rows and the error of a change that failed in the background. The next call with equal rows
    raises it."""

    async def run(
        self, owner: Owner, rows: Rows, work: Callable[[], Coroutine[None, None, None]], tell: RequeueOwners
    ) -> None:
        """Run `work`, which applies `rows`, all rows of the owner in this network. Raises Later and every error of
        `work`."""
        refused = self.failed.pop(owner, None)
        if refused is not None and refused[0] == rows:
            raise refused[1]
        if self.task is None:
            self.task = task = asyncio.ensure_future(work())
            task.add_done_callback(partial(self._end, tell))
            done, _ = await asyncio.wait([task], timeout=CALLER_TIMEOUT)
            if done:
                task.result()
                return
            self.running_change = owner, rows
        self.waiting_owners.add(owner)
        raise Requeue(REQUEUE_INTERVAL)

    def _end(self, tell: RequeueOwners, task: "asyncio.Task[None]") -> None:
        late, asking = self.running_change, self.waiting_owners
        self.task, self.running_change, self.waiting_owners = None, None, set()
        error = None if task.cancelled() else task.exception()
        if late is not None and error is not None and not isinstance(error, Requeue):
            owner, rows = late
            self.failed[owner] = rows, error
        if asking:
            tell(sorted(asking, key=str))

    def forget(self, owner: Owner) -> None:
        """Drop the stored error of an owner that no longer has rows in this network."""
        self.failed.pop(owner, None)

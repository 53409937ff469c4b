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
from fairlead.drivers.interface import Later
from fairlead.model.documents.owner import Owner

AT_ONCE = 0.25
"""Seconds that a caller waits for its change. Most processes start within this time."""
AT_START = 2.0
"""Seconds that a starting agent waits for all proxies together."""
LONGEST = 60.0
"""Seconds until an owner that got Later is requeued even if no task reported its end."""
Tell: TypeAlias = Callable[[Collection[Owner]], None]
"""Called with the owners to requeue."""


@dataclass(slots=True)
class Turn:
    """Queue of one network: at most one change runs, and the owners of rejected callers are remembered."""

    task: "asyncio.Task[None] | None" = None
    late: tuple[Owner, Rows] | None = None
    """Owner and rows of the change that continues as a task; None if no change took longer than `AT_ONCE`."""
    asking: set[Owner] = field(default_factory=set)
    """Owners that got Later while the task ran. They are requeued when it ends."""
    refused: dict[Owner, tuple[Rows, BaseException]] = field(default_factory=dict)
    """Maps owners to the rows and the error of a change that failed in the background. The next call with equal rows
    raises it."""

    async def take(self, owner: Owner, rows: Rows, work: Callable[[], Coroutine[None, None, None]], tell: Tell) -> None:
        """Run `work`, which applies `rows`, all rows of the owner in this network. Raises Later and every error of
        `work`."""
        refused = self.refused.pop(owner, None)
        if refused is not None and refused[0] == rows:
            raise refused[1]
        if self.task is None:
            self.task = task = asyncio.ensure_future(work())
            task.add_done_callback(partial(self._end, tell))
            done, _ = await asyncio.wait([task], timeout=AT_ONCE)
            if done:
                task.result()
                return
            self.late = owner, rows
        self.asking.add(owner)
        raise Later(LONGEST)

    def _end(self, tell: Tell, task: "asyncio.Task[None]") -> None:
        late, asking = self.late, self.asking
        self.task, self.late, self.asking = None, None, set()
        error = None if task.cancelled() else task.exception()
        if late is not None and error is not None and not isinstance(error, Later):
            owner, rows = late
            self.refused[owner] = rows, error
        if asking:
            tell(sorted(asking, key=str))

    def forget(self, owner: Owner) -> None:
        """Drop the stored error of an owner that no longer has rows in this network."""
        self.refused.pop(owner, None)

"""One network's changes are done one after the other, and beside those of other networks.

Whoever asks waits a moment. What takes longer goes on by itself, and they come again when it has ended: a proxy that
does not start, or takes its time, keeps nobody waiting who has another one.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from fairlead.dataplane.rows import Rows
from fairlead.drivers.interface import Later
from fairlead.model.owner import Owner

AT_ONCE = 0.25
"""Seconds for which somebody is kept waiting: most processes have started by then."""
AT_START = 2.0
"""Seconds for which an agent that begins waits for all proxies together."""
LONGEST = 60.0
"""Seconds until somebody comes again who was told of nothing."""
Tell: TypeAlias = Callable[[Collection[Owner]], None]
"""Of those for whom the time has come."""


@dataclass(slots=True)
class Turn:
    """Of one network."""

    task: "asyncio.Task[None] | None" = None
    late: tuple[Owner, Rows] | None = None
    """Whose change goes on by itself."""
    asking: set[Owner] = field(default_factory=set)
    """Who has asked meanwhile."""
    refused: dict[Owner, tuple[Rows, BaseException]] = field(default_factory=dict)
    """What has become of a change that went on by itself and failed."""

    async def take(self, owner: Owner, rows: Rows, work: Callable[[], Coroutine[None, None, None]], tell: Tell) -> None:
        """`rows` are all that the owner is to have. Raises Later, and whatever the work raises."""
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
        """It wants nothing here any more."""
        self.refused.pop(owner, None)

"""Which owner is next. Pure: the time is an argument.

* Coalescing: an owner waits once, however often it is named; a burst of changes to it is one apply.
* Fairness: first come, first served by owner; an owner named again while it waits keeps its place, and one that is
  named again while it is worked on goes to the end.
* Back-off: an owner that failed waits, twice as long each time, and keeps nobody else waiting. While the dataplane
  cannot be reached all of them wait for its return.
"""

import heapq
from collections import OrderedDict

from fairlead.model.owner import Owner

FIRST_BACKOFF = 0.05
LONGEST_BACKOFF = 5.0
DOUBLINGS = 16
"""More than the longest back-off needs; without an end the number grows until it is none."""
UNREACHABLE_PAUSE = 60.0
"""Seconds. Its return is told (`retry_now`); until then ten thousand owners must not be tried over and over."""


class Queue:
    """All times are seconds of one clock that only moves forward."""

    def __init__(self) -> None:
        self._ready: OrderedDict[Owner, float] = OrderedDict()
        self._delayed: dict[Owner, float] = {}
        self._due: list[tuple[float, str, Owner]] = []
        self._failures: dict[Owner, int] = {}
        self._since: dict[Owner, float] = {}

    def __len__(self) -> int:
        return len(self._ready) + len(self._delayed)

    def __contains__(self, owner: Owner) -> bool:
        return owner in self._ready or owner in self._delayed

    def owners(self) -> set[Owner]:
        """All that wait, for their turn or for a retry."""
        return {*self._ready, *self._delayed}

    def add(self, owner: Owner, now: float) -> None:
        """The owner is dirty. News ends a back-off: what changed may be what was wrong."""
        self._delayed.pop(owner, None)
        self._ready.setdefault(owner, now)
        self._since.setdefault(owner, now)

    def failed(self, owner: Owner, now: float) -> None:
        """Try again later; an owner that was named again meanwhile is ready at once."""
        failures = self._failures.get(owner, 0)
        self._failures[owner] = failures + 1
        if owner not in self._ready:
            self._delay(owner, now + min(FIRST_BACKOFF * 2 ** min(failures, DOUBLINGS), LONGEST_BACKOFF))

    def postpone(self, owner: Owner, now: float, due: float) -> None:
        """The owner is dirty, and nothing is lost if it waits; one that was named for another reason does not."""
        if owner not in self._ready and self._delayed.get(owner, due) >= due:
            self._delay(owner, due)
        self._since.setdefault(owner, now)

    def unreachable(self, owner: Owner, now: float) -> None:
        """Nobody could be asked: no failure of the owner's."""
        if owner not in self._ready:
            self._delay(owner, now + UNREACHABLE_PAUSE)

    def _delay(self, owner: Owner, due: float) -> None:
        self._delayed[owner] = due
        heapq.heappush(self._due, (due, str(owner), owner))

    def done(self, owner: Owner) -> None:
        """Nothing is left to try for it; if it was named again meanwhile, its wait begins now."""
        self._failures.pop(owner, None)
        self._since.pop(owner, None)
        if owner in self._ready:
            self._since[owner] = self._ready[owner]

    def retry_now(self, now: float) -> None:
        """End every back-off: what all were waiting for has come back."""
        for owner in list(self._delayed):
            self.add(owner, now)

    def pop(self, now: float) -> Owner | None:
        """The next owner to work on, None when none is ready."""
        while self._due and self._due[0][0] <= now:
            due, _, owner = heapq.heappop(self._due)
            if self._delayed.get(owner) == due:
                del self._delayed[owner]
                self._ready.setdefault(owner, due)
        return self._ready.popitem(last=False)[0] if self._ready else None

    def next_due(self) -> float | None:
        """When the first of those that wait for a retry is due."""
        while self._due and self._delayed.get(self._due[0][2]) != self._due[0][0]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def since(self, owner: Owner) -> float | None:
        """Since when this owner is dirty, through all that was tried for it."""
        return self._since.get(owner)

    def unsettled(self) -> float | None:
        """Since when the longest waiting owner is dirty, through all that was tried for it."""
        return min(self._since.values(), default=None)

    def oldest(self) -> float | None:
        """Since when the longest waiting owner is ready."""
        return next(iter(self._ready.values()), None)

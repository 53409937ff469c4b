"""Which owner is next. Pure: the time is an argument.

* Coalescing: an owner waits once, however often it is named; a burst of changes to it is one apply.
* Fairness: where tenants are told apart they take turns, one owner each, so a tenant with a thousand dirty owners
  delays another one's by one owner. Within a tenant it is first come, first served; an owner named again while it
  waits keeps its place, and one that is named again while it is worked on goes to the end. Owners that are named
  together with many others (a router joins a network with ten thousand load balancers) have a line of their own, and
  the two lines take turns: one tenant's change does not wait for all that another one's has brought about.
* Back-off: an owner that failed waits, twice as long each time, and keeps nobody else waiting. While the dataplane
  cannot be reached all of them wait for its return.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterator, Sequence

from fairlead.model.owner import Owner

MANY = 20
"""Owners that are named together: more than the making of a load balancer, a network or a port concerns."""
FIRST_BACKOFF = 0.05
LONGEST_BACKOFF = 5.0
DOUBLINGS = 16
"""More than the longest back-off needs; without an end the number grows until it is none."""
UNREACHABLE_PAUSE = 60.0
"""Seconds. Its return is told (`retry_now`); until then ten thousand owners must not be tried over and over."""


class Line:
    """Owners that wait, each with the time since when; tenants take turns."""

    def __init__(self) -> None:
        self._turns: OrderedDict[str, OrderedDict[Owner, float]] = OrderedDict()
        """Tenant -> its owners; the tenant whose turn it is comes first."""
        self._tenants: dict[Owner, str] = {}

    def __len__(self) -> int:
        return len(self._tenants)

    def __contains__(self, owner: Owner) -> bool:
        return owner in self._tenants

    def __iter__(self) -> Iterator[Owner]:
        return iter(self._tenants)

    def since(self, owner: Owner) -> float:
        return self._turns[self._tenants[owner]][owner]

    def add(self, owner: Owner, tenant: str, since: float) -> None:
        self._tenants[owner] = tenant
        self._turns.setdefault(tenant, OrderedDict())[owner] = since

    def put_first(self, owner: Owner, tenant: str, since: float) -> None:
        self.add(owner, tenant, since)
        self._turns[tenant].move_to_end(owner, last=False)
        self._turns.move_to_end(tenant, last=False)

    def peek(self) -> Owner | None:
        """The next one; None if nobody waits."""
        return next((next(iter(owners)) for owners in self._turns.values()), None)

    def pop(self) -> Owner | None:
        """Removes the next one; None if nobody waits."""
        for tenant, owners in self._turns.items():
            owner, _ = owners.popitem(last=False)
            del self._tenants[owner]
            self._turns.move_to_end(tenant)
            if not owners:
                del self._turns[tenant]
            return owner
        return None

    def oldest(self) -> float | None:
        """Since when the longest waiting owner waits."""
        return min((next(iter(owners.values())) for owners in self._turns.values()), default=None)


class Queue:
    """All times are seconds of one clock that only moves forward."""

    def __init__(self, tenant_of: Callable[[Owner], str] = lambda _: "") -> None:
        """`tenant_of` returns the project that takes a turn for this owner."""
        self._tenant_of = tenant_of
        self._few, self._many = Line(), Line()
        self._lines = (self._few, self._many)
        """Whose turn it is comes first."""
        self._line = self._few
        """Whose turn it was."""
        self._delayed: dict[Owner, float] = {}
        self._due: list[tuple[float, str, Owner]] = []
        self._failures: dict[Owner, int] = {}
        self._since: dict[Owner, float] = {}

    def __len__(self) -> int:
        return len(self._few) + len(self._many) + len(self._delayed)

    def __contains__(self, owner: Owner) -> bool:
        return self._is_ready(owner) or owner in self._delayed

    def owners(self) -> set[Owner]:
        """All that wait, for their turn or for a retry."""
        return {*self._few, *self._many, *self._delayed}

    def add(self, owners: Collection[Owner], now: float) -> None:
        """These are dirty. News ends a back-off: what changed may be what was wrong."""
        line = self._many if len(owners) > MANY else self._few
        for owner in owners:
            self._delayed.pop(owner, None)
            if not self._is_ready(owner):
                line.add(owner, self._tenant_of(owner), now)
            self._since.setdefault(owner, now)

    def failed(self, owner: Owner, now: float) -> None:
        """Try again later; an owner that was named again meanwhile is ready at once."""
        failures = self._failures.get(owner, 0)
        self._failures[owner] = failures + 1
        if not self._is_ready(owner):
            self._delay(owner, now + min(FIRST_BACKOFF * 2 ** min(failures, DOUBLINGS), LONGEST_BACKOFF))

    def postpone(self, owner: Owner, now: float, due: float) -> None:
        """The owner is dirty, and nothing is lost if it waits; one that was named for another reason does not."""
        if not self._is_ready(owner) and self._delayed.get(owner, due) >= due:
            self._delay(owner, due)
        self._since.setdefault(owner, now)

    def unreachable(self, owner: Owner, now: float) -> None:
        """Nobody could be asked: no failure of the owner's."""
        if not self._is_ready(owner):
            self._delay(owner, now + UNREACHABLE_PAUSE)

    def is_delayed(self, owner: Owner) -> bool:
        """Whether it waits for a retry. One that is named again is ready instead."""
        return owner in self._delayed

    def _is_ready(self, owner: Owner) -> bool:
        return owner in self._few or owner in self._many

    def _delay(self, owner: Owner, due: float) -> None:
        self._delayed[owner] = due
        heapq.heappush(self._due, (due, str(owner), owner))

    def done(self, owner: Owner) -> None:
        """Nothing is left to try for it; if it was named again meanwhile, its wait begins now."""
        self._failures.pop(owner, None)
        self._since.pop(owner, None)
        for line in self._lines:
            if owner in line:
                self._since[owner] = line.since(owner)

    def retry_now(self, now: float) -> None:
        """End every back-off: what all were waiting for has come back."""
        self.add(list(self._delayed), now)

    def pop(self, now: float) -> Owner | None:
        """The next owner to work on, None when none is ready."""
        while self._due and self._due[0][0] <= now:
            due, _, owner = heapq.heappop(self._due)
            if self._delayed.get(owner) == due:
                del self._delayed[owner]
                self._few.add(owner, self._tenant_of(owner), due)
        first, second = self._lines
        self._line = first if len(first) else second
        if len(first):
            self._lines = second, first
        return self._line.pop()

    def pop_another(self, apart: Container[Owner]) -> Owner | None:
        """The next one of the same line, to be worked on together; None when none is left there, or it is one of those
        that are to be worked on by themselves."""
        following = self._line.peek()
        return None if following is None or following in apart else self._line.pop()

    def again(self, owners: Sequence[Owner], now: float) -> None:
        """These come next in the line of many: what was done for them together came to nothing."""
        for owner in reversed(owners):
            if not self._is_ready(owner):
                self._many.put_first(owner, self._tenant_of(owner), self._since.get(owner, now))

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
        return min((since for line in self._lines if (since := line.oldest()) is not None), default=None)

"""Queue of dirty owners. Pure: the time is an argument.

* Coalescing: an owner is queued once, however often it is marked, so a burst of changes is one apply.
* Fairness: where owners have tenants, the tenants take turns with one owner each, so a tenant with a thousand dirty
  owners delays another tenant by one owner. Within a tenant the order is first in, first out: an owner marked again
  while it is queued keeps its position; one marked again while it is being processed goes to the end. Owners marked in
  a large batch (a router joins a network with ten thousand load balancers) have a line of their own. The two lines take
  turns, so one tenant's change does not wait for a batch that another tenant caused.
* Back-off: after each failure an owner waits twice as long, without delaying others. While the dataplane is
  unreachable, all owners wait for its reconnect.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterator, Sequence

from fairlead.model.documents.owner import Owner

MIN_BATCH_OWNERS = 20
"""Owners in one call of `add` above which they count as a batch: more than one new load balancer, network or port."""
MIN_BACKOFF = 0.05
MAX_BACKOFF = 5.0
MAX_DOUBLINGS = 16
"""More than `MAX_BACKOFF` needs; the bound keeps the power of two from overflowing."""
UNREACHABLE_PAUSE = 60.0
"""Seconds. A reconnect calls `retry_now`; until then ten thousand owners must not be retried over and over."""


class FairQueue:
    """FIFO of owners with the time since when each waits; tenants take turns."""

    def __init__(self) -> None:
        self._turns: OrderedDict[str, OrderedDict[Owner, float]] = OrderedDict()
        """Tenant -> its owners; the next tenant comes first."""
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
        """Return the next owner; None if the line is empty."""
        return next((next(iter(owners)) for owners in self._turns.values()), None)

    def pop(self) -> Owner | None:
        """Remove and return the next owner; None if the line is empty."""
        for tenant, owners in self._turns.items():
            owner, _ = owners.popitem(last=False)
            del self._tenants[owner]
            self._turns.move_to_end(tenant)
            if not owners:
                del self._turns[tenant]
            return owner
        return None

    def oldest(self) -> float | None:
        """Return the time since which the oldest owner waits."""
        return min((next(iter(owners.values())) for owners in self._turns.values()), default=None)


class Queue:
    """Ready and delayed owners. All times are seconds of one monotonic clock."""

    def __init__(self, tenant_of: Callable[[Owner], str] = lambda _: "") -> None:
        """`tenant_of` returns the project that the owner is queued under."""
        self._tenant_of = tenant_of
        self._few, self._many = FairQueue(), FairQueue()
        self._lines = (self._few, self._many)
        """Both lines, in the order of their turns."""
        self._line = self._few
        """Line of the last `pop`."""
        self._delayed: dict[Owner, float] = {}
        self._due: list[tuple[float, str, Owner]] = []
        self._failures: dict[Owner, int] = {}
        self._since: dict[Owner, float] = {}

    def __len__(self) -> int:
        return len(self._few) + len(self._many) + len(self._delayed)

    def __contains__(self, owner: Owner) -> bool:
        return self._is_ready(owner) or owner in self._delayed

    def owners(self) -> set[Owner]:
        """Return all owners, ready or delayed."""
        return {*self._few, *self._many, *self._delayed}

    def add(self, owners: Collection[Owner], now: float) -> None:
        """Mark owners dirty. This ends their back-off, because the change may remove the cause of the failure."""
        line = self._many if len(owners) > MIN_BATCH_OWNERS else self._few
        for owner in owners:
            self._delayed.pop(owner, None)
            if not self._is_ready(owner):
                line.add(owner, self._tenant_of(owner), now)
            self._since.setdefault(owner, now)

    def failed(self, owner: Owner, now: float) -> None:
        """Schedule a retry with back-off. An owner that was marked again since is ready immediately."""
        failures = self._failures.get(owner, 0)
        self._failures[owner] = failures + 1
        if not self._is_ready(owner):
            self._delay(owner, now + min(MIN_BACKOFF * 2 ** min(failures, MAX_DOUBLINGS), MAX_BACKOFF))

    def postpone(self, owner: Owner, now: float, due: float) -> None:
        """Delay a dirty owner until `due`, unless it is ready or due earlier for another reason."""
        if not self._is_ready(owner) and self._delayed.get(owner, due) >= due:
            self._delay(owner, due)
        self._since.setdefault(owner, now)

    def delay_until_reconnect(self, owner: Owner, now: float) -> None:
        """Delay an owner because the dataplane is unreachable, which is not counted as a failure of the owner."""
        if not self._is_ready(owner):
            self._delay(owner, now + UNREACHABLE_PAUSE)

    def is_delayed(self, owner: Owner) -> bool:
        """Whether the owner waits for a retry. Marking it again makes it ready instead."""
        return owner in self._delayed

    def _is_ready(self, owner: Owner) -> bool:
        return owner in self._few or owner in self._many

    def _delay(self, owner: Owner, due: float) -> None:
        self._delayed[owner] = due
        heapq.heappush(self._due, (due, str(owner), owner))

    def done(self, owner: Owner) -> None:
        """Forget the failures of an owner. If it was marked again since, its waiting time starts now."""
        self._failures.pop(owner, None)
        self._since.pop(owner, None)
        for line in self._lines:
            if owner in line:
                self._since[owner] = line.since(owner)

    def retry_now(self, now: float) -> None:
        """End every back-off because the dataplane is reachable again."""
        self.add(list(self._delayed), now)

    def pop(self, now: float) -> Owner | None:
        """Return the next ready owner; None when none is ready."""
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
        """Return the next owner of the line of the last `pop`, for the same batch.

        None when the line is empty or its next owner is in `apart`, the owners that must be applied alone.
        """
        following = self._line.peek()
        return None if following is None or following in apart else self._line.pop()

    def requeue_first(self, owners: Sequence[Owner], now: float) -> None:
        """Put owners at the front of the line for batches, because their joint apply failed."""
        for owner in reversed(owners):
            if not self._is_ready(owner):
                self._many.put_first(owner, self._tenant_of(owner), self._since.get(owner, now))

    def next_due(self) -> float | None:
        """Return the due time of the first delayed owner."""
        while self._due and self._delayed.get(self._due[0][2]) != self._due[0][0]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def since(self, owner: Owner) -> float | None:
        """Return the time since which this owner has been dirty, including all its attempts."""
        return self._since.get(owner)

    def unsettled(self) -> float | None:
        """Return the time since which the oldest dirty owner has been dirty, including all its attempts."""
        return min(self._since.values(), default=None)

    def oldest(self) -> float | None:
        """Return the time since which the oldest ready owner has been ready."""
        return min((since for line in self._lines if (since := line.oldest()) is not None), default=None)

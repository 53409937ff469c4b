"""Members that have recovered, from the node's slice. For the drain timeout, their substitutes keep the flows that
began during the failure.

The host that routes a returned member forwards packets of unknown flows to the former substitute. The state is in
memory only, so a restarted agent has none.
"""

import asyncio
import time
from collections.abc import Callable, Iterable

from immutables import Map

from fairlead.model.documents.health import HealthKey
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.facts import RECOVERED_MEMBERS, with_facts
from fairlead.model.snapshot import Snapshot
from fairlead.node.slice_view import SliceView

EXPIRY_CHECK_INTERVAL = 5.0
"""Seconds between two searches for expired entries."""


class ReturnedMembers:
    def __init__(self, given: SliceView, clock: Callable[[], float] = time.monotonic) -> None:
        self._slice = given
        self._clock = clock
        self._down: Map[str, frozenset[HealthKey]] = given.snapshot.down
        self._expiries: dict[str, dict[HealthKey, float]] = {}
        """Load balancer -> returned members -> time of expiry."""
        self._on_expiry: Callable[[Iterable[Owner]], None] = lambda _: None
        self.returned: Map[str, frozenset[HealthKey]] = Map()
        """Value of the fact `RECOVERED_MEMBERS`, for compilers."""
        self._view_source = self._cached_view = given.snapshot
        given.subscribe(self._mark)

    def with_returned(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the fact; the same object while nothing has changed."""
        if snapshot is not self._view_source or self.returned is not self._cached_view.returned:
            self._view_source, self._cached_view = snapshot, with_facts(snapshot, RECOVERED_MEMBERS, self.returned)
        return self._cached_view

    def subscribe(self, call: Callable[[Iterable[Owner]], None]) -> None:
        """Register a callback for owners with rows that may change after an entry expired."""
        self._on_expiry = call

    async def run(self) -> None:
        """Remove expired entries until cancelled."""
        while True:
            await asyncio.sleep(EXPIRY_CHECK_INTERVAL)
            self.expire()

    def expire(self) -> None:
        """Remove expired entries."""
        now, before = self._clock(), self.returned
        late = [each for each, its in self._expiries.items() if min(its.values()) <= now]
        for balancer_id in late:
            left = {key: until for key, until in self._expiries[balancer_id].items() if until > now}
            self._set_returned(balancer_id, left)
        if late:
            old = with_facts(self._slice.snapshot, RECOVERED_MEMBERS, before)
            self._on_expiry(RECOVERED_MEMBERS.affected_owners(old, old, self.returned))

    def _mark(self, owners: Iterable[Owner]) -> None:
        snapshot, until = self._slice.snapshot, self._clock() + self._slice.snapshot.parting_seconds
        for owner in owners:
            if owner.kind is Kind.LOAD_BALANCER:
                self._compare(snapshot, owner.id, until)
        self._down = snapshot.down

    def _compare(self, snapshot: Snapshot, balancer_id: str, until: float) -> None:
        was, down = (known.get(balancer_id, frozenset()) for known in (self._down, snapshot.down))
        its = self._expiries.get(balancer_id, {})
        if was == down and not its:
            return
        is_there = balancer_id in snapshot.load_balancers
        back = {key: time for key, time in its.items() if key not in down} | dict.fromkeys(was - down, until)
        self._set_returned(balancer_id, back if is_there else {})

    def _set_returned(self, balancer_id: str, back: dict[HealthKey, float]) -> None:
        if back:
            self._expiries[balancer_id] = back
            self.returned = self.returned.set(balancer_id, frozenset(back))
        elif self._expiries.pop(balancer_id, None):
            self.returned = self.returned.delete(balancer_id)

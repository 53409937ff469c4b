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
from fairlead.model.registry.facts import RETURNED, with_facts
from fairlead.model.snapshot import Snapshot
from fairlead.node.slice_view import Given

LOOK = 5.0
"""Seconds between two searches for expired entries."""


class Returns:
    def __init__(self, given: Given, clock: Callable[[], float] = time.monotonic) -> None:
        self._given = given
        self._clock = clock
        self._down: Map[str, frozenset[HealthKey]] = given.snapshot.down
        self._until: dict[str, dict[HealthKey, float]] = {}
        """Load balancer -> returned members -> time of expiry."""
        self._call: Callable[[Iterable[Owner]], None] = lambda _: None
        self.known: Map[str, frozenset[HealthKey]] = Map()
        """Value of the fact `RETURNED`, for compilers."""
        self._bare = self._view = given.snapshot
        given.subscribe(self._mark)

    def seen_in(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the fact; the same object while nothing has changed."""
        if snapshot is not self._bare or self.known is not self._view.returned:
            self._bare, self._view = snapshot, with_facts(snapshot, RETURNED, self.known)
        return self._view

    def follow(self, call: Callable[[Iterable[Owner]], None]) -> None:
        """Register a callback for owners with rows that may change after an entry expired."""
        self._call = call

    async def run(self) -> None:
        """Remove expired entries until cancelled."""
        while True:
            await asyncio.sleep(LOOK)
            self.forget()

    def forget(self) -> None:
        """Remove expired entries."""
        now, before = self._clock(), self.known
        late = [each for each, its in self._until.items() if min(its.values()) <= now]
        for balancer_id in late:
            left = {key: until for key, until in self._until[balancer_id].items() if until > now}
            self._keep(balancer_id, left)
        if late:
            old = with_facts(self._given.snapshot, RETURNED, before)
            self._call(RETURNED.concerns(old, old, self.known))

    def _mark(self, owners: Iterable[Owner]) -> None:
        snapshot, until = self._given.snapshot, self._clock() + self._given.snapshot.parting_seconds
        for owner in owners:
            if owner.kind is Kind.LOAD_BALANCER:
                self._compare(snapshot, owner.id, until)
        self._down = snapshot.down

    def _compare(self, snapshot: Snapshot, balancer_id: str, until: float) -> None:
        was, down = (known.get(balancer_id, frozenset()) for known in (self._down, snapshot.down))
        its = self._until.get(balancer_id, {})
        if was == down and not its:
            return
        is_there = balancer_id in snapshot.load_balancers
        back = {key: time for key, time in its.items() if key not in down} | dict.fromkeys(was - down, until)
        self._keep(balancer_id, back if is_there else {})

    def _keep(self, balancer_id: str, back: dict[HealthKey, float]) -> None:
        if back:
            self._until[balancer_id] = back
            self.known = self.known.set(balancer_id, frozenset(back))
        elif self._until.pop(balancer_id, None):
            self.known = self.known.delete(balancer_id)

"""Flushes UDP and SCTP conntrack entries of members that are down, disabled or removed, on a plain host.

It flushes members that this host routes (`model/queries/conntrack_flush.py`). The driver deletes the entries, and
returns the members that its rows still select: these are flushed in a later round. One listing of conntrack serves all
load balancers; listings are at least `PAUSE` seconds apart.
"""

import asyncio
import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from logging import getLogger
from typing import Protocol, TypeAlias

from fairlead.drivers.interface import DriverError
from fairlead.model.documents.agent_counters import FLUSHED_MEMBERS, Counts
from fairlead.model.documents.loadbalancer import Member, find_member, find_pool
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.conntrack_flush import (
    EndedFlows,
    LostConnections,
    TrackedConnection,
    find_ended_flows,
    find_lost_connections,
    list_connections_to_flush,
    list_flows_to_flush,
)
from fairlead.model.queries.placement import find_routing_host
from fairlead.model.snapshot import Snapshot
from fairlead.node.log_once import LogOnce
from fairlead.node.slice_view import SliceView

LOG = getLogger(__name__)
LISTING_INTERVAL = 1.0
"""Seconds between two listings of conntrack."""
MAX_FLUSHES_PER_LISTING = 4096
"""Maximum flow ends for one listing; the rest waits for the next one."""
MAX_ROUNDS = 60
"""Maximum rounds for a removed member, because another load balancer may select it at the same address indefinitely."""
MAX_REMOVED_MEMBERS = 4096
"""Maximum removed members of one load balancer that wait to be flushed."""
MAX_COMPARED_PER_STEP = 100
"""Load balancers that are compared before the event loop runs other tasks."""


class ConntrackDriver(Protocol):
    async def flush_connections(self, cuts: Collection[TrackedConnection]) -> tuple[int, frozenset[TrackedConnection]]:
        """Delete entries; return their number, and the ends that rows still select. Raises DriverError."""


@dataclass(slots=True, eq=False)
class _RemovedFlows:
    """Flows of a removed member."""

    flows: EndedFlows
    tries: int = 0


_Item: TypeAlias = tuple[Owner, LostConnections] | _RemovedFlows


class HostConntrackFlusher:
    def __init__(self, given: SliceView, driver: ConntrackDriver) -> None:
        self._slice = given
        self._driver = driver
        self._last_snapshot = Snapshot()
        """The slice at the last notification."""
        self._marked: dict[Owner, Snapshot] = {}
        """Load balancers that have changed, each with the slice before the change."""
        self._to_flush: dict[tuple[Owner, LostConnections], None] = {}
        """Members that are down or disabled in the slice, and have not been flushed yet."""
        self._removed: dict[Owner, list[_RemovedFlows]] = {}
        """Removed members to flush, oldest first. Each load balancer has its own limit."""
        self._completed: dict[Owner, frozenset[LostConnections]] = {}
        self._wakeup = asyncio.Event()
        self._failure_log = LogOnce("flushing connections")
        self._flushed = 0

    def counts(self) -> Counts:
        """Return the number of flushed connections."""
        return {FLUSHED_MEMBERS: self._flushed}

    async def run(self) -> None:
        """Flush until cancelled."""
        self._last_snapshot = self._slice.snapshot
        self._slice.subscribe(self.mark)
        await self._slice.ready.wait()
        self.mark(Owner(Kind.LOAD_BALANCER, each) for each in self._slice.snapshot.load_balancers)
        while True:
            if not (self._marked or self._to_flush or self._removed):
                await self._wakeup.wait()
            self._wakeup.clear()
            await self._compare_marked()
            if self._to_flush or self._removed:
                await self._flush()
                await asyncio.sleep(LISTING_INTERVAL)

    def mark(self, owners: Iterable[Owner]) -> None:
        """Mark load balancers as changed. A member that has recovered is flushed again when it fails again."""
        before, self._last_snapshot = self._last_snapshot, self._slice.snapshot
        for owner in owners:
            if owner.kind is Kind.LOAD_BALANCER:
                self._marked.setdefault(owner, before)
                if owner in self._completed:
                    self._completed[owner] &= find_lost_connections(self._slice.snapshot, owner.id)
        self._wakeup.set()

    async def _compare_marked(self) -> None:
        """Compare all load balancers that have changed."""
        while self._marked:
            for owner in list(self._marked)[:MAX_COMPARED_PER_STEP]:
                self._compare(owner, self._marked.pop(owner))
            await asyncio.sleep(0)

    def _compare(self, owner: Owner, before: Snapshot) -> None:
        now = self._slice.snapshot
        if _is_announced(before, owner):
            gone = [
                _RemovedFlows(each)
                for each in find_ended_flows(before, now, owner.id)
                if self._is_routed_here(before, each.member)
            ]
            waiting = [*self._removed.pop(owner, ()), *gone]
            if len(waiting) > MAX_REMOVED_MEMBERS:
                LOG.warning(
                    "load balancer %s: only the newest %d removed members are flushed", owner.id, MAX_REMOVED_MEMBERS
                )
            if waiting:
                self._removed[owner] = waiting[-MAX_REMOVED_MEMBERS:]
        lost = find_lost_connections(now, owner.id) if _is_announced(now, owner) else frozenset[LostConnections]()
        done = self._completed.pop(owner, frozenset()) & lost
        if done:
            self._completed[owner] = done
        self._to_flush.update(dict.fromkeys((owner, each) for each in lost - done if each.is_datagram))

    def _is_routed_here(self, snapshot: Snapshot, member: Member) -> bool:
        found = find_routing_host(snapshot, member.address)
        return found is not None and found[0].name == self._slice.name

    async def _flush(self) -> None:
        cuts = dict[TrackedConnection, list[_Item]]()
        tried = list[_Item]()
        items: list[_Item] = [*self._to_flush, *itertools.chain.from_iterable(self._removed.values())]
        for item in items:
            if len(cuts) >= MAX_FLUSHES_PER_LISTING:
                break
            tried.append(item)
            for cut in self._connections_of(item):
                cuts.setdefault(cut, []).append(item)
            if len(tried) % MAX_COMPARED_PER_STEP == 0:
                await asyncio.sleep(0)
        try:
            number, leading = (
                await self._driver.flush_connections(cuts.keys()) if cuts else (0, frozenset[TrackedConnection]())
            )
        except DriverError as error:
            self._failure_log.report(error, LISTING_INTERVAL)
            return
        self._failure_log.report_recovery()
        self._flushed += number
        if number:
            LOG.info("flushed %d connections of members that are down, disabled or removed", number)
        self._finish(tried, {id(item) for cut in leading for item in cuts[cut]})

    def _connections_of(self, item: _Item) -> Iterator[TrackedConnection]:
        if isinstance(item, _RemovedFlows):
            yield from list_flows_to_flush(item.flows)
            return
        (owner, lost), snapshot = item, self._slice.snapshot
        balancer = snapshot.load_balancers.get(owner.id)
        pool = find_pool(balancer, lost.pool_id) if balancer is not None else None
        identity = lost.member if isinstance(lost.member, str) else lost.member[0]
        member = find_member(pool, identity) if pool is not None else None
        if member is not None and self._is_routed_here(snapshot, member):
            yield from list_connections_to_flush(snapshot, owner.id, lost)

    def _finish(self, tried: Iterable[_Item], leading: Collection[int]) -> None:
        """Keep the items that rows still select; they follow those that have not been tried yet."""
        gone, now = set[int](), dict[Owner, frozenset[LostConnections]]()
        for item in tried:
            if isinstance(item, _RemovedFlows):
                item.tries += 1
                if id(item) not in leading or item.tries >= MAX_ROUNDS:
                    gone.add(id(item))
                continue
            del self._to_flush[item]
            owner, lost = item
            if owner not in now:
                now[owner] = find_lost_connections(self._slice.snapshot, owner.id)
            if lost in now[owner] and id(item) in leading:
                self._to_flush[item] = None
            elif lost in now[owner] and owner not in self._marked:  # otherwise it may have recovered meanwhile
                self._completed[owner] = self._completed.get(owner, frozenset()) | {lost}
        waiting = {owner: [each for each in its if id(each) not in gone] for owner, its in self._removed.items()}
        self._removed = {owner: its for owner, its in waiting.items() if its}


def _is_announced(snapshot: Snapshot, owner: Owner) -> bool:
    balancer = snapshot.load_balancers.get(owner.id)
    return balancer is not None and balancer.vip.network_id in snapshot.announced

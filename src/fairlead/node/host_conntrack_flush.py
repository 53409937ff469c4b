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
from fairlead.model.queries.conntrack_flush import Cut, Flows, Lost, cuts_left, cuts_of, left_of, lost_of
from fairlead.model.queries.placement import host_of
from fairlead.model.snapshot import Snapshot
from fairlead.node.log_once import Complaints
from fairlead.node.slice_view import Given

LOG = getLogger(__name__)
PAUSE = 1.0
"""Seconds between two listings of conntrack."""
MOST_CUTS = 4096
"""Maximum flow ends for one listing; the rest waits for the next one."""
MOST_TRIES = 60
"""Maximum rounds for a removed member, because another load balancer may select it at the same address indefinitely."""
MOST_LEFT = 4096
"""Maximum removed members of one load balancer that wait to be flushed."""
MOST_AT_ONCE = 100
"""Load balancers that are compared before the event loop runs other tasks."""


class Flushing(Protocol):
    async def flush(self, cuts: Collection[Cut]) -> tuple[int, frozenset[Cut]]:
        """Delete entries; return their number, and the ends that rows still select. Raises DriverError."""


@dataclass(slots=True, eq=False)
class _Left:
    """Flows of a removed member."""

    flows: Flows
    tries: int = 0


_Item: TypeAlias = tuple[Owner, Lost] | _Left


class HostCutting:
    def __init__(self, given: Given, driver: Flushing) -> None:
        self._given = given
        self._driver = driver
        self._seen = Snapshot()
        """The slice at the last notification."""
        self._marked: dict[Owner, Snapshot] = {}
        """Load balancers that have changed, each with the slice before the change."""
        self._wanted: dict[tuple[Owner, Lost], None] = {}
        """Members that are down or disabled in the slice, and have not been flushed yet."""
        self._left: dict[Owner, list[_Left]] = {}
        """Removed members to flush, oldest first. Each load balancer has its own limit."""
        self._done: dict[Owner, frozenset[Lost]] = {}
        self._news = asyncio.Event()
        self._complaints = Complaints("flushing connections")
        self._flushed = 0

    def counts(self) -> Counts:
        """Return the number of flushed connections."""
        return {FLUSHED_MEMBERS: self._flushed}

    async def run(self) -> None:
        """Flush until cancelled."""
        self._seen = self._given.snapshot
        self._given.subscribe(self.mark)
        await self._given.ready.wait()
        self.mark(Owner(Kind.LOAD_BALANCER, each) for each in self._given.snapshot.load_balancers)
        while True:
            if not (self._marked or self._wanted or self._left):
                await self._news.wait()
            self._news.clear()
            await self._look()
            if self._wanted or self._left:
                await self._flush()
                await asyncio.sleep(PAUSE)

    def mark(self, owners: Iterable[Owner]) -> None:
        """Mark load balancers as changed. A member that has recovered is flushed again when it fails again."""
        before, self._seen = self._seen, self._given.snapshot
        for owner in owners:
            if owner.kind is Kind.LOAD_BALANCER:
                self._marked.setdefault(owner, before)
                if owner in self._done:
                    self._done[owner] &= lost_of(self._given.snapshot, owner.id)
        self._news.set()

    async def _look(self) -> None:
        """Compare all load balancers that have changed."""
        while self._marked:
            for owner in list(self._marked)[:MOST_AT_ONCE]:
                self._look_at(owner, self._marked.pop(owner))
            await asyncio.sleep(0)

    def _look_at(self, owner: Owner, before: Snapshot) -> None:
        now = self._given.snapshot
        if _is_announced(before, owner):
            gone = [_Left(each) for each in left_of(before, now, owner.id) if self._is_here(before, each.member)]
            waiting = [*self._left.pop(owner, ()), *gone]
            if len(waiting) > MOST_LEFT:
                LOG.warning("load balancer %s: only the newest %d removed members are flushed", owner.id, MOST_LEFT)
            if waiting:
                self._left[owner] = waiting[-MOST_LEFT:]
        lost = lost_of(now, owner.id) if _is_announced(now, owner) else frozenset[Lost]()
        done = self._done.pop(owner, frozenset()) & lost
        if done:
            self._done[owner] = done
        self._wanted.update(dict.fromkeys((owner, each) for each in lost - done if each.datagrams))

    def _is_here(self, snapshot: Snapshot, member: Member) -> bool:
        found = host_of(snapshot, member.address)
        return found is not None and found[0].name == self._given.name

    async def _flush(self) -> None:
        cuts = dict[Cut, list[_Item]]()
        tried = list[_Item]()
        items: list[_Item] = [*self._wanted, *itertools.chain.from_iterable(self._left.values())]
        for item in items:
            if len(cuts) >= MOST_CUTS:
                break
            tried.append(item)
            for cut in self._cuts(item):
                cuts.setdefault(cut, []).append(item)
            if len(tried) % MOST_AT_ONCE == 0:
                await asyncio.sleep(0)
        try:
            number, leading = await self._driver.flush(cuts.keys()) if cuts else (0, frozenset[Cut]())
        except DriverError as error:
            self._complaints.say(error, PAUSE)
            return
        self._complaints.end()
        self._flushed += number
        if number:
            LOG.info("flushed %d connections of members that are down, disabled or removed", number)
        self._finish(tried, {id(item) for cut in leading for item in cuts[cut]})

    def _cuts(self, item: _Item) -> Iterator[Cut]:
        if isinstance(item, _Left):
            yield from cuts_left(item.flows)
            return
        (owner, lost), snapshot = item, self._given.snapshot
        balancer = snapshot.load_balancers.get(owner.id)
        pool = find_pool(balancer, lost.pool_id) if balancer is not None else None
        identity = lost.member if isinstance(lost.member, str) else lost.member[0]
        member = find_member(pool, identity) if pool is not None else None
        if member is not None and self._is_here(snapshot, member):
            yield from cuts_of(snapshot, owner.id, lost)

    def _finish(self, tried: Iterable[_Item], leading: Collection[int]) -> None:
        """Keep the items that rows still select; they follow those that have not been tried yet."""
        gone, now = set[int](), dict[Owner, frozenset[Lost]]()
        for item in tried:
            if isinstance(item, _Left):
                item.tries += 1
                if id(item) not in leading or item.tries >= MOST_TRIES:
                    gone.add(id(item))
                continue
            del self._wanted[item]
            owner, lost = item
            if owner not in now:
                now[owner] = lost_of(self._given.snapshot, owner.id)
            if lost in now[owner] and id(item) in leading:
                self._wanted[item] = None
            elif lost in now[owner] and owner not in self._marked:  # otherwise it may have recovered meanwhile
                self._done[owner] = self._done.get(owner, frozenset()) | {lost}
        waiting = {owner: [each for each in its if id(each) not in gone] for owner, its in self._left.items()}
        self._left = {owner: its for owner, its in waiting.items() if its}


def _is_announced(snapshot: Snapshot, owner: Owner) -> bool:
    balancer = snapshot.load_balancers.get(owner.id)
    return balancer is not None and balancer.vip.network_id in snapshot.announced

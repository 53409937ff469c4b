"""Flushes connections from the tracker of this node's switch, as far as clients are on this node: those of members that
are down, disabled or removed (`model/cutting.py` says which).

What is down or disabled follows from the slice. It is compared with what was flushed since, so it does not matter which
news was missed; an agent that starts flushes once more, which harms no connection that lives. What was removed is in no
slice: each slice is compared with the last one, and an agent that starts compares with the slice of its file.

First the table, then the tracker: while OVN's flows of this node lead new connections to the member, the next packet of
a connection that was flushed would go there again. So the flows are read, again and again, until they do not.

Attempts that were never answered are flushed one by one, because the switch cannot select by state: its connections are
listed once for all load balancers that wait for it.
"""

import asyncio
import contextlib
import heapq
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from fairlead.client import ServerError
from fairlead.drivers.ovn.tracked import Attempt, Leading
from fairlead.drivers.ovn.vswitch import SwitchError
from fairlead.model.addresses import IPAddress, parse_address, render_endpoint
from fairlead.model.agent_counters import FLUSHED_ATTEMPTS, FLUSHED_MEMBERS, Counts
from fairlead.model.cutting import (
    Cut,
    Flows,
    Lost,
    Unanswered,
    addresses_of,
    cuts_left,
    cuts_of,
    is_unanswered,
    leads_to,
    left_of,
    lost_of,
    unanswered_of,
)
from fairlead.model.domain import Topology
from fairlead.model.loadbalancer import Transport, transport
from fairlead.model.network import PortUse
from fairlead.model.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot
from fairlead.model.statistics import CountedService, Zone, find_listeners
from fairlead.node.complaints import Complaints
from fairlead.node.given import Given
from fairlead.node.protocol import Whose

LOG = logging.getLogger(__name__)
Key: TypeAlias = tuple[Transport, IPAddress, int]
"""Protocol, address and port to which clients send."""
MOST_NAMED = 5
"""Members that a line of the log names."""
FIRST_PATIENCE, LONGEST_PATIENCE = 0.05, 1.0
"""Seconds from look to look whether OVN's flows have changed already; each is twice as long as the last."""
AGAIN = 2.0
"""Seconds until what has failed is tried again."""
PAUSE = 1.0
"""Seconds at least between two cuts of the same: a member that flaps keeps no node busy. And between two listings of
all connections."""
MOST_CUTS = 64
"""In one round for one load balancer, or those of one member; then others have their turn."""
MOST_AT_ONCE = 100
"""Load balancers that are looked at before others have the event loop."""
MOST_LEFT = 4096
"""Removed members of one load balancer that wait to be flushed."""
DNAT = "_dnat"
"""At the end of the name of a router's zone, in which it translates destinations (ovn-controller(8), ct-zone-*)."""
AskWhose = Callable[[Sequence[CountedService]], Awaitable[Whose]]
"""The listener of each service, and the network, router or port that its place is. Raises ServerError."""
Failed = Callable[[str, Owner, str | None], None]
"""Is told what could not be done for an owner, and why; None: it could."""
DATAPLANE = "connections"
"""What the failures are of."""


class Switch(Protocol):
    """Each question raises SwitchError."""

    async def zones(self) -> Mapping[str, int]: ...

    async def leading(self, addresses: Collection[IPAddress]) -> list[Leading]: ...

    async def cut(self, due: Iterable[tuple[int, Cut]]) -> None: ...

    async def unanswered(self) -> list[Attempt]: ...

    async def forget(self, attempts: Iterable[Attempt]) -> None: ...

    async def settled(self) -> None: ...


class Reach(NamedTuple):
    """Where a VIP was reached on this node."""

    ports: frozenset[str]
    """Of machines that reached it."""
    places: frozenset[str]
    """Networks and routers of this node whose rows led to it."""
    gateways: bool
    """Whether one of these routers has its gateway here."""


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """What a load balancer does not have any more, so the slice says nothing of it."""

    number: int
    flows: Flows
    reaches: Mapping[IPAddress, Reach]
    """Those of a change have it in common."""

    def __str__(self) -> str:
        return f"{self.number:020}"


Item: TypeAlias = Lost | Left | Unanswered


class _Due(NamedTuple):
    """A flush that is due."""

    cut: Cut
    reach: Reach | None
    """Of what was removed; None where the slice says it."""


@dataclass(slots=True)
class _Turn:
    """Of a load balancer that has something to cut."""

    due: float
    """By the clock of the process."""
    patience: float = FIRST_PATIENCE
    firm: bool = False
    """Whether no news makes it earlier: it has just been tried."""


class Cutting:
    def __init__(self, given: Given, switch: Switch, whose: AskWhose, failed: Failed) -> None:
        self._given = given
        self._switch = switch
        self._whose = whose
        self._failed = failed
        self._seen = Snapshot()
        """The slice when it was looked at last."""
        self._left: dict[Owner, frozenset[Left]] = {}
        """What was removed, and is to be cut."""
        self._done: dict[Owner, frozenset[Item]] = {}
        """What was cut, and would have to be if it had not been."""
        self._in_hand: dict[Owner, frozenset[Item]] = {}
        """What is being cut, without what has come back meanwhile: it may have new connections already."""
        self._listed: dict[Owner, frozenset[Unanswered]] = {}
        """What waits for the next listing of all connections. It is in hand."""
        self._next_listing = 0.0
        self._backlog: dict[Owner, Snapshot] = {}
        """Whom nobody has looked at yet, with the slice before: news may concern all load balancers at once."""
        self._numbers = itertools.count()
        self._rested: dict[tuple[Owner, Item], float] = {}
        """When what was cut lately may be cut again."""
        self._turns: dict[Owner, _Turn] = {}
        """By the time when they came."""
        self._news = asyncio.Event()
        self._complaints = Complaints("flushing connections")
        self._flushed = dict.fromkeys((FLUSHED_MEMBERS, FLUSHED_ATTEMPTS), 0)

    def counts(self) -> Counts:
        """Flushes in a zone of one member, and connections that no member answered."""
        return self._flushed

    async def run(self) -> None:
        """Until it is cancelled."""
        self._seen = self._given.snapshot
        self._given.subscribe(self.mark)
        await self._given.ready.wait()
        self.mark(Owner(Kind.LOAD_BALANCER, each) for each in self._given.snapshot.load_balancers)
        while True:
            owner = self._next()
            if self._backlog:
                self._look_at_more()
            elif self._listed and self._next_listing <= time.monotonic():
                await self._flush_unanswered()
            elif owner is None:
                await self._rest()
            else:
                await self._take_turn(owner)
            await asyncio.sleep(0)

    def mark(self, owners: Iterable[Owner]) -> None:
        """Look at these again."""
        before, self._seen = self._seen, self._given.snapshot
        for number, owner in enumerate(each for each in owners if each.kind is Kind.LOAD_BALANCER):
            earlier = self._backlog.pop(owner, before)
            if number < MOST_AT_ONCE:
                self._compare(owner, earlier)
                self._look(owner)
            else:
                self._backlog[owner] = earlier
                self._news.set()

    def _look_at_more(self) -> None:
        for owner in list(itertools.islice(self._backlog, MOST_AT_ONCE)):
            self._compare(owner, self._backlog.pop(owner))
            self._look(owner)

    def _compare(self, owner: Owner, before: Snapshot) -> None:
        """Find what was removed. What is added again is found when its turn comes."""
        gone = left_of(before, self._given.snapshot, owner.id)
        keys = {
            address: (transport(flows.listeners[0].protocol), address, flows.listeners[0].ports[0].first)
            for flows in gone
            for address in flows.addresses
        }
        reaches = {address: _reach(before, self._given.name, owner, key) for address, key in keys.items()}
        if any(each.places for each in reaches.values()):
            left = [Left(next(self._numbers), each, reaches) for each in gone]
            known = sorted((*self._left.get(owner, ()), *left), key=str)
            if len(known) > MOST_LEFT:
                LOG.warning("load balancer %s: only the newest %d removed members are flushed", owner.id, MOST_LEFT)
            self._left[owner] = frozenset(known[-MOST_LEFT:])

    def _look(self, owner: Owner) -> None:
        """What has come back is forgotten: when it is down again it is to be cut again."""
        wanted = self._wanted(owner)
        done = self._done.pop(owner, frozenset()) & wanted
        if done:
            self._done[owner] = done
        in_hand = self._in_hand.pop(owner, frozenset()) & wanted
        if in_hand:
            self._in_hand[owner] = in_hand
        left = wanted - done - in_hand
        if left:
            due = min(self._rested.get((owner, each), 0.0) for each in left)
            turn = self._turns.setdefault(owner, _Turn(max(time.monotonic(), due)))
            turn.due = turn.due if turn.firm else min(turn.due, due)
            self._news.set()
        elif self._turns.pop(owner, None) is not None:
            self._report(owner, None)

    def _wanted(self, owner: Owner) -> frozenset[Item]:
        snapshot = self._given.snapshot
        items: frozenset[Item] = self._left.get(owner, frozenset())
        return items | lost_of(snapshot, owner.id) | unanswered_of(snapshot, owner.id)

    def _report(self, owner: Owner, error: str | None) -> None:
        """A load balancer that was deleted is in no report."""
        if error is None or owner.id in self._given.snapshot.load_balancers:
            self._failed(DATAPLANE, owner, error)

    def _next(self) -> Owner | None:
        """The one that is due for longest."""
        now = time.monotonic()
        ready = [(turn.due, owner) for owner, turn in self._turns.items() if turn.due <= now]
        return min(ready, key=lambda each: each[0])[1] if ready else None

    async def _rest(self) -> None:
        """Until there is news, or somebody's turn, or a listing is due."""
        self._news.clear()
        times = [turn.due for turn in self._turns.values()] + ([self._next_listing] if self._listed else [])
        due = min(times, default=None)
        self._rested = {key: until for key, until in self._rested.items() if until > time.monotonic()}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if due is None else max(0.0, due - time.monotonic())):
                await self._news.wait()

    async def _take_turn(self, owner: Owner) -> None:
        turn, now = self._turns.pop(owner), time.monotonic()
        before = self._in_hand.get(owner, frozenset())
        left = self._wanted(owner) - self._done.get(owner, frozenset()) - before
        items, due = self._pick(owner, (each for each in left if self._rested.get((owner, each), 0.0) <= now))
        attempts = frozenset(each for each in items if isinstance(each, Unanswered))
        now_cut = frozenset(items) - attempts
        self._in_hand[owner] = before | frozenset(items)
        try:
            is_cut = await self._cut(owner, due, attempts)
        except (SwitchError, ServerError, OSError) as error:
            self._fail(owner, frozenset(items), error)
            return
        self._complaints.end()
        if not is_cut:
            self._drop(owner, frozenset(items))
            longer = min(2 * turn.patience, LONGEST_PATIENCE)
            self._turns[owner] = _Turn(time.monotonic() + turn.patience, longer, firm=True)
            return
        if attempts := attempts & self._in_hand.get(owner, frozenset()):
            self._listed[owner] = self._listed.get(owner, frozenset()) | attempts
        self._finish(owner, now_cut)

    def _fail(self, owner: Owner, items: frozenset[Item], error: Exception) -> None:
        self._complaints.say(error, AGAIN)
        self._report(owner, str(error))
        self._drop(owner, items)
        self._turns[owner] = _Turn(time.monotonic() + AGAIN, firm=True)

    def _drop(self, owner: Owner, items: frozenset[Item]) -> frozenset[Item]:
        """Take out of hand what was there still."""
        in_hand = self._in_hand.pop(owner, frozenset())
        if in_hand - items:
            self._in_hand[owner] = in_hand - items
        return in_hand & items

    def _finish(self, owner: Owner, items: frozenset[Item]) -> None:
        """These were cut."""
        self._report(owner, None)
        done = self._drop(owner, items)
        left = self._left.pop(owner, frozenset()) - done
        if left:
            self._left[owner] = left
        self._done[owner] = self._done.get(owner, frozenset()) | done
        self._rested |= {(owner, each): time.monotonic() + PAUSE for each in items}
        self._look(owner)

    def _pick(self, owner: Owner, items: Iterable[Item]) -> tuple[Sequence[Item], Sequence[_Due]]:
        """What is done in one round, and the flushes that it takes."""
        picked, due, snapshot = list[Item](), list[_Due](), self._given.snapshot
        for each in heapq.nsmallest(MOST_CUTS, items, key=str):
            if len(due) >= MOST_CUTS:
                break
            picked.append(each)
            match each:
                case Lost():
                    due += (_Due(cut, None) for cut in cuts_of(snapshot, owner.id, each))
                case Left():
                    due += (_Due(cut, each.reaches[cut.address]) for cut in cuts_left(each.flows))
                case Unanswered():
                    pass
        return picked, due

    async def _cut(self, owner: Owner, wanted: Sequence[_Due], attempts: Collection[Unanswered]) -> bool:
        """Whether OVN was ready for it. Raises SwitchError, ServerError, OSError."""
        due = [each for each in wanted if each.reach is None or not await self._is_served(each.cut, each.reach)]
        if not (due or attempts):
            return True
        if await self._are_led(owner, due, attempts):
            return False
        found = await self._switch.zones() if due else {}
        zones = dict[tuple[IPAddress, Reach | None], Sequence[int]]()
        for each in due:
            if (key := (each.cut.address, each.reach)) not in zones:
                zones[key] = sorted(await self._zones(found, owner, each))
        flushes = [(zone, each.cut) for each in due for zone in zones[each.cut.address, each.reach]]
        if flushes:
            await self._switch.cut(flushes)
            await self._switch.settled()
            await self._switch.cut(flushes)  # what it remembered of its old flows may have led a packet to the member
            self._flushed[FLUSHED_MEMBERS] += len(flushes)
            members = sorted({render_endpoint(cut.member, cut.member_port) for _, cut in flushes})
            said = ", ".join(members[:MOST_NAMED]) + (" and others" if len(members) > MOST_NAMED else "")
            LOG.info("load balancer %s: flushed connections of %s (%d flushes)", owner.id, said, len(flushes))
        return True

    async def _is_served(self, cut: Cut, reach: Reach) -> bool:
        """Whether a listener of now leads there: another load balancer may have the same address."""
        await asyncio.sleep(0)
        snapshot = self._given.snapshot
        services = [(place, _service(Zone(place), cut)) for place in sorted(reach.places)]
        owners = {snapshot.listener_owner.get(each) for each in find_listeners(snapshot, services) if each}
        return any(leads_to(snapshot.load_balancers[each], cut) for each in owners if each is not None)

    async def _are_led(self, owner: Owner, due: Sequence[_Due], attempts: Collection[Unanswered]) -> bool:
        """Whether flows of this node lead new connections to one of these members still. Another tenant's may lead to
        the same addresses: whose they are is asked."""
        lost: dict[Key, set[str]] = {}
        reaches: dict[Key, Reach] = {}
        addresses = set(addresses_of(self._given.snapshot, owner.id)) if attempts else set[IPAddress]()
        for cut, reach in due:
            lost.setdefault(cut[:3], set()).add(render_endpoint(cut.member, cut.member_port))
            addresses.add(cut.address)
            if reach is not None:
                reaches[cut[:3]] = reach
        leading = [
            each.service
            for each in await self._switch.leading(addresses)
            if each.backends & lost.get(_key(each.service), set()) or self._leads_attempts(owner, each, attempts)
        ]
        if not leading:
            return False
        whose = await self._whose(leading)
        places = whose.places or [None] * len(leading)
        return any(
            self._is_own(owner, listener) or (_key(each) in reaches and place in reaches[_key(each)].places)
            for each, listener, place in zip(leading, whose.listeners, places, strict=True)
        )

    def _leads_attempts(self, owner: Owner, leading: Leading, attempts: Collection[Unanswered]) -> bool:
        service = leading.service
        if not attempts or service.transport is not Transport.TCP:
            return False
        members = (each.rpartition(":") for each in leading.backends)
        cuts = (Cut(*_key(service), parse_address(each.strip("[]")), int(port)) for each, _, port in members)
        return any(is_unanswered(self._given.snapshot, owner.id, attempts, each) for each in cuts)

    async def _flush_unanswered(self) -> None:
        """Attempts to reach members of all load balancers that wait for it, by one listing of all connections."""
        waiting, self._listed = self._listed, {}
        listed = {owner: items & self._in_hand.get(owner, frozenset()) for owner, items in waiting.items()}
        try:
            attempts = list[Attempt]()
            if any(map(self._is_reached, listed)):
                await self._switch.settled()  # then nothing leads there any more: no attempt comes after the listing
                attempts = await self._switch.unanswered()
            found = await self._find_attempts(listed, attempts)
            await self._switch.forget([each for attempts in found.values() for each in attempts])
        except (SwitchError, ServerError, OSError) as error:
            for owner, items in listed.items():
                self._fail(owner, frozenset(items), error)
            return
        finally:
            self._next_listing = time.monotonic() + PAUSE
        self._complaints.end()
        for owner, items in listed.items():
            self._flushed[FLUSHED_ATTEMPTS] += len(found[owner])
            if found[owner]:
                LOG.info("load balancer %s: flushed %d unanswered connections", owner.id, len(found[owner]))
            self._finish(owner, frozenset(items))

    def _is_reached(self, owner: Owner) -> bool:
        """Whether connections to this load balancer may be tracked here: nodes without clients list nothing."""
        snapshot, name = self._given.snapshot, self._given.name
        balancer = snapshot.load_balancers.get(owner.id)
        if balancer is None:
            return False
        ports = (each.ports[0].first for each in balancer.listeners if transport(each.protocol) is Transport.TCP)
        port, addresses = next(ports, 0), addresses_of(snapshot, owner.id)
        clients = (_clients(snapshot, name, owner, (Transport.TCP, address, port)) for address in addresses)
        return any(True for each in (*clients, _gateways(snapshot, name)) for _ in each)

    async def _find_attempts(
        self, listed: Mapping[Owner, frozenset[Unanswered]], attempts: Sequence[Attempt]
    ) -> Mapping[Owner, Sequence[Attempt]]:
        """Raises SwitchError, ServerError."""
        snapshot, found = self._given.snapshot, dict[Owner, list[Attempt]]()
        at = dict[IPAddress, list[Attempt]]()
        for each in attempts:
            at.setdefault(each.cut.address, []).append(each)
        zones, numbers = dict[tuple[Owner, Key], frozenset[int]](), await self._switch.zones() if attempts else {}
        for owner, items in listed.items():
            found[owner] = []
            for address in addresses_of(snapshot, owner.id) & at.keys():
                for each in at[address]:
                    if is_unanswered(snapshot, owner.id, items, each.cut):
                        key = owner, each.cut[:3]
                        if key not in zones:
                            zones[key] = await self._zones(numbers, owner, _Due(each.cut, None))
                        if each.zone in zones[key]:
                            found[owner].append(each)
                    await asyncio.sleep(0)
        return found

    async def _zones(self, zones: Mapping[str, int], owner: Owner, due: _Due) -> frozenset[int]:
        """Those of this node in which connections to this address may be tracked: of machines that reach it, and of
        routers by whose gateways clients come in. Of what was removed a server of an earlier version names no router:
        then those are left out."""
        snapshot, name, reach = self._given.snapshot, self._given.name, due.reach
        ports = _clients(snapshot, name, owner, due.cut[:3]) if reach is None else reach.ports
        found = {zones[port] for port in ports if port in zones}
        if any(True for _ in _gateways(snapshot, name)) if reach is None else reach.gateways:
            named = [each for each in zones if each.endswith(DNAT)]
            whose = await self._whose([_service(Zone(each), due.cut) for each in named])
            if reach is None:
                own = (self._is_own(owner, each) for each in whose.listeners)
            else:
                own = (each in reach.places for each in whose.places)
            found |= {zones[each] for each, is_own in zip(named, own, strict=False) if is_own}
        return frozenset(found)

    def _is_own(self, owner: Owner, listener: str | None) -> bool:
        return _has(self._given.snapshot, owner, listener)


def _reach(snapshot: Snapshot, node: str, owner: Owner, key: Key) -> Reach:
    ports = frozenset(_clients(snapshot, node, owner, key))
    balancer = snapshot.load_balancers[owner.id]
    among = {*Topology(snapshot).domain_of(balancer).routers, balancer.router_id or ""}
    routers = sorted(each for each in among if each in snapshot.routers)
    listeners = find_listeners(snapshot, [(each, _service(Zone(each), key)) for each in routers])
    own = {router for router, each in zip(routers, listeners, strict=True) if _has(snapshot, owner, each)}
    networks = {snapshot.ports[port].network_id for port in ports}
    gateways = any(router in own for router in _gateways(snapshot, node))
    return Reach(ports, frozenset(own | networks), gateways)


def _clients(snapshot: Snapshot, node: str, owner: Owner, key: Key) -> Iterator[str]:
    """The machines' ports of this node from which the address is this load balancer's."""
    of_network = dict[str, list[str]]()
    for port_id in _node_ports(snapshot, node):
        port = snapshot.ports.get(port_id)
        if port is not None and port.use is PortUse.MACHINE:
            of_network.setdefault(port.network_id, []).append(port_id)
    asked = [(network, _service(Zone(network), key)) for network in of_network]
    for (network, _), listener in zip(asked, find_listeners(snapshot, asked), strict=True):
        if _has(snapshot, owner, listener):
            yield from of_network[network]


def _gateways(snapshot: Snapshot, node: str) -> Iterator[str]:
    """The routers whose gateways are on this node."""
    for port_id in _node_ports(snapshot, node):
        port = snapshot.ports.get(port_id)
        if port is not None and port.use is PortUse.ROUTER_GATEWAY:
            yield port.device_id


def _node_ports(snapshot: Snapshot, name: str) -> Iterable[str]:
    node = snapshot.chassis.get(name)
    return () if node is None else node.ports


def _has(snapshot: Snapshot, owner: Owner, listener: str | None) -> bool:
    return listener is not None and snapshot.listener_owner.get(listener) == owner.id


def _key(service: CountedService) -> Key:
    return service.transport, service.address, service.port


def _service(place: Zone, key: Key | Cut) -> CountedService:
    return CountedService(place=place, transport=key[0], address=key[1], port=key[2])

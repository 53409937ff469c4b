"""Flushes conntrack entries of this node's switch for members that are down, disabled or removed
(`model/queries/conntrack_flush.py`).

Only connections of clients on this node, or through its gateways, are tracked here.

- Down and disabled members follow from the slice. They are compared with the flushes since then, so a missed
  notification does not matter. A starting agent flushes once more, which affects no live connection.
- Removed members are in no slice. Each slice is compared with the last one; a starting agent compares with the slice
  in its file.
- Load-balancing flows change before conntrack: while OVN's flows on this node still select the member, the next
  packet of a flushed connection would go there again. So the flows are polled until they no longer do.
- Unanswered connection attempts are flushed one by one, because the switch cannot select by state. All load
  balancers that wait for this share one listing of connections.
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

from fairlead.drivers.ovn.vswitch.conntrack import Attempt, Leading
from fairlead.drivers.ovn.vswitch.database import SwitchError
from fairlead.http.server_client import ServerError
from fairlead.model.documents.addresses import IPAddress, parse_address, render_endpoint
from fairlead.model.documents.agent_counters import FLUSHED_ATTEMPTS, FLUSHED_MEMBERS, Counts
from fairlead.model.documents.loadbalancer import Transport, transport
from fairlead.model.documents.network import PortUse
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.conntrack_flush import (
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
from fairlead.model.queries.domain import Topology
from fairlead.model.queries.statistics import CountedService, Zone, find_listeners
from fairlead.model.snapshot import Snapshot
from fairlead.node.log_once import Complaints
from fairlead.node.server_requests import Whose
from fairlead.node.slice_view import Given

LOG = logging.getLogger(__name__)
Key: TypeAlias = tuple[Transport, IPAddress, int]
"""Protocol, address and port of a client's destination."""
MOST_NAMED = 5
"""Maximum members named in a log line."""
FIRST_PATIENCE, LONGEST_PATIENCE = 0.05, 1.0
"""Seconds between two polls of OVN's flows: first and maximum. Each is twice as long as the last."""
AGAIN = 2.0
"""Seconds before a failed flush is retried."""
PAUSE = 1.0
"""Minimum seconds between two flushes of the same item, which bounds the load of a flapping member, and between two
listings of all connections."""
MOST_CUTS = 64
"""Maximum flushes in one round for one load balancer, except that one member's are never split; then others get
their turn."""
MOST_AT_ONCE = 100
"""Load balancers that are compared before the event loop runs other tasks."""
MOST_LEFT = 4096
"""Maximum removed members of one load balancer that wait to be flushed."""
DNAT = "_dnat"
"""Suffix of the name of a router's DNAT zone (ovn-controller(8), ct-zone-*)."""
AskWhose = Callable[[Sequence[CountedService]], Awaitable[Whose]]
"""Returns the listener of each service, and the network, router or port of its zone. Raises ServerError."""
Failed = Callable[[str, Owner, str | None], None]
"""Reports the error of a flush for an owner; None after a success."""
DATAPLANE = "connections"
"""Name of the dataplane in the reports of `Failed`."""


class Switch(Protocol):
    """Client of this node's switch. Each query raises SwitchError."""

    async def zones(self) -> Mapping[str, int]: ...

    async def leading(self, addresses: Collection[IPAddress]) -> list[Leading]: ...

    async def cut(self, due: Iterable[tuple[int, Cut]]) -> None: ...

    async def unanswered(self) -> list[Attempt]: ...

    async def forget(self, attempts: Iterable[Attempt]) -> None: ...

    async def settled(self) -> None: ...


class Reach(NamedTuple):
    """Clients and routers on this node that could connect to a VIP."""

    ports: frozenset[str]
    """Ports of the machines that could connect to it."""
    places: frozenset[str]
    """Networks and routers of this node with rows for it."""
    gateways: bool
    """Whether one of these routers has its gateway on this node."""


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """Removed part of a load balancer, which is no longer in the slice."""

    number: int
    flows: Flows
    reaches: Mapping[IPAddress, Reach]
    """Reach of each address. All parts removed by one change share it."""

    def __str__(self) -> str:
        return f"{self.number:020}"


Item: TypeAlias = Lost | Left | Unanswered


class _Due(NamedTuple):
    """Flush that is due."""

    cut: Cut
    reach: Reach | None
    """Reach of a removed part; None where the slice has it."""


@dataclass(slots=True)
class _Turn:
    """Pending work of a load balancer."""

    due: float
    """Due time (time.monotonic)."""
    patience: float = FIRST_PATIENCE
    firm: bool = False
    """Whether no notification makes it earlier, because it has just been tried."""


class Cutting:
    def __init__(self, given: Given, switch: Switch, whose: AskWhose, failed: Failed) -> None:
        self._given = given
        self._switch = switch
        self._whose = whose
        self._failed = failed
        self._seen = Snapshot()
        """Slice at the last notification."""
        self._left: dict[Owner, frozenset[Left]] = {}
        """Removed parts that wait to be flushed."""
        self._done: dict[Owner, frozenset[Item]] = {}
        """Flushed items that still apply, and are not flushed again."""
        self._in_hand: dict[Owner, frozenset[Item]] = {}
        """Items in progress, without those that have recovered meanwhile: these may have new connections."""
        self._listed: dict[Owner, frozenset[Unanswered]] = {}
        """Items in progress that wait for the next listing of all connections."""
        self._next_listing = 0.0
        self._backlog: dict[Owner, Snapshot] = {}
        """Load balancers to compare, each with the slice before its change. One notification may name all of them."""
        self._numbers = itertools.count()
        self._rested: dict[tuple[Owner, Item], float] = {}
        """Time when a flushed item may be flushed again."""
        self._turns: dict[Owner, _Turn] = {}
        """Pending load balancers in order of arrival."""
        self._news = asyncio.Event()
        self._complaints = Complaints("flushing connections")
        self._flushed = dict.fromkeys((FLUSHED_MEMBERS, FLUSHED_ATTEMPTS), 0)

    def counts(self) -> Counts:
        """Return the number of flushes (one member in one zone each), and of flushed unanswered connections."""
        return self._flushed

    async def run(self) -> None:
        """Flush until cancelled."""
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
        """Compare load balancers that have changed."""
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
        """Find removed parts. Parts that were added again are found before their flush (`_is_served`)."""
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
        """Schedule the flushes of a load balancer. Recovered members are forgotten, so they are flushed again at the
        next failure."""
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
        """Report an error or success, unless the load balancer was deleted."""
        if error is None or owner.id in self._given.snapshot.load_balancers:
            self._failed(DATAPLANE, owner, error)

    def _next(self) -> Owner | None:
        """Return the load balancer that has been due longest."""
        now = time.monotonic()
        ready = [(turn.due, owner) for owner, turn in self._turns.items() if turn.due <= now]
        return min(ready, key=lambda each: each[0])[1] if ready else None

    async def _rest(self) -> None:
        """Wait for a notification, a due load balancer or a due listing."""
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
        """Remove items from those in progress; return those that were still there."""
        in_hand = self._in_hand.pop(owner, frozenset())
        if in_hand - items:
            self._in_hand[owner] = in_hand - items
        return in_hand & items

    def _finish(self, owner: Owner, items: frozenset[Item]) -> None:
        """Record flushed items."""
        self._report(owner, None)
        done = self._drop(owner, items)
        left = self._left.pop(owner, frozenset()) - done
        if left:
            self._left[owner] = left
        self._done[owner] = self._done.get(owner, frozenset()) | done
        self._rested |= {(owner, each): time.monotonic() + PAUSE for each in items}
        self._look(owner)

    def _pick(self, owner: Owner, items: Iterable[Item]) -> tuple[Sequence[Item], Sequence[_Due]]:
        """Select the items of one round, and return them with their flushes."""
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
        """Flush, unless OVN's flows still select one of the members; return whether they did not. Raises
        SwitchError, ServerError, OSError."""
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
            await self._switch.cut(flushes)  # an old datapath flow may have passed a packet in between
            self._flushed[FLUSHED_MEMBERS] += len(flushes)
            members = sorted({render_endpoint(cut.member, cut.member_port) for _, cut in flushes})
            said = ", ".join(members[:MOST_NAMED]) + (" and others" if len(members) > MOST_NAMED else "")
            LOG.info("load balancer %s: flushed connections of %s (%d flushes)", owner.id, said, len(flushes))
        return True

    async def _is_served(self, cut: Cut, reach: Reach) -> bool:
        """Whether a current listener, perhaps of another load balancer with the same address, selects the member."""
        await asyncio.sleep(0)
        snapshot = self._given.snapshot
        services = [(place, _service(Zone(place), cut)) for place in sorted(reach.places)]
        owners = {snapshot.listener_owner.get(each) for each in find_listeners(snapshot, services) if each}
        return any(leads_to(snapshot.load_balancers[each], cut) for each in owners if each is not None)

    async def _are_led(self, owner: Owner, due: Sequence[_Due], attempts: Collection[Unanswered]) -> bool:
        """Whether flows of this node still select one of these members. Other tenants' flows may have the same
        addresses, so the server is queried for their owners."""
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
        """Flush unanswered connections of all load balancers that wait for it, with one listing of all connections."""
        waiting, self._listed = self._listed, {}
        listed = {owner: items & self._in_hand.get(owner, frozenset()) for owner, items in waiting.items()}
        try:
            attempts = list[Attempt]()
            if any(map(self._is_reached, listed)):
                await self._switch.settled()  # no datapath flow selects the member any more: no new attempts
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
        """Whether connections to this load balancer may be tracked on this node. A node without clients lists
        nothing."""
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
        """Return the attempts to flush, by load balancer. Raises SwitchError, ServerError."""
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
        """Return the zones of this node that may track connections to an address: those of machines that can connect
        to it, and the DNAT zones of routers with a gateway here. A server of an earlier version does not return the
        router of removed parts; their DNAT zones are then left out."""
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
    """Yield the ports of machines on this node that reach this load balancer at the address."""
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
    """Yield the routers with their gateway on this node."""
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

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

from fairlead.drivers.ovn.vswitch.conntrack import ConnectionAttempt, ServiceBackends
from fairlead.drivers.ovn.vswitch.database import SwitchError
from fairlead.http.server_client import ServerError
from fairlead.model.documents.addresses import IPAddress, parse_address, render_endpoint
from fairlead.model.documents.agent_counters import FLUSHED_ATTEMPTS, FLUSHED_MEMBERS, Counts
from fairlead.model.documents.loadbalancer import Transport, transport
from fairlead.model.documents.network import PortUse
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.conntrack_flush import (
    EndedFlows,
    LostConnections,
    TrackedConnection,
    UnansweredAttempts,
    client_addresses,
    find_ended_flows,
    find_lost_connections,
    find_unanswered_attempts,
    is_still_served,
    is_unanswered,
    list_connections_to_flush,
    list_flows_to_flush,
)
from fairlead.model.queries.domain import Topology
from fairlead.model.queries.statistics import ConntrackZone, CountedService, find_listeners
from fairlead.model.snapshot import Snapshot
from fairlead.node.log_once import LogOnce
from fairlead.node.server_requests import ListenerLookup
from fairlead.node.slice_view import SliceView

LOG = logging.getLogger(__name__)
Key: TypeAlias = tuple[Transport, IPAddress, int]
"""Protocol, address and port of a client's destination."""
MAX_LOGGED_MEMBERS = 5
"""Maximum members named in a log line."""
MIN_POLL_INTERVAL, MAX_POLL_INTERVAL = 0.05, 1.0
"""Seconds between two polls of OVN's flows: first and maximum. Each is twice as long as the last."""
RETRY_INTERVAL = 2.0
"""Seconds before a failed flush is retried."""
MIN_FLUSH_INTERVAL = 1.0
"""Minimum seconds between two flushes of the same item, which bounds the load of a flapping member, and between two
listings of all connections."""
MAX_FLUSHES_PER_ROUND = 64
"""Maximum flushes in one round for one load balancer, except that one member's are never split; then others get
their turn."""
MAX_COMPARED_PER_STEP = 100
"""Load balancers that are compared before the event loop runs other tasks."""
MAX_REMOVED_MEMBERS = 4096
"""Maximum removed members of one load balancer that wait to be flushed."""
DNAT_ZONE_SUFFIX = "_dnat"
"""Suffix of the name of a router's DNAT zone (ovn-controller(8), ct-zone-*)."""
FindListeners = Callable[[Sequence[CountedService]], Awaitable[ListenerLookup]]
"""Returns the listener of each service, and the network, router or port of its zone. Raises ServerError."""
ReportError = Callable[[str, Owner, str | None], None]
"""Reports the error of a flush for an owner; None after a success."""
DATAPLANE = "connections"
"""Name of the dataplane in the reports of `Failed`."""


class ConntrackSwitch(Protocol):
    """Client of this node's switch. Each query raises SwitchError."""

    async def zones(self) -> Mapping[str, int]: ...

    async def read_backends(self, addresses: Collection[IPAddress]) -> list[ServiceBackends]: ...

    async def flush(self, due: Iterable[tuple[int, TrackedConnection]]) -> None: ...

    async def list_unanswered(self) -> list[ConnectionAttempt]: ...

    async def flush_attempts(self, attempts: Iterable[ConnectionAttempt]) -> None: ...

    async def wait_for_revalidation(self) -> None: ...


class Reachability(NamedTuple):
    """Clients and routers on this node that could connect to a VIP."""

    ports: frozenset[str]
    """Ports of the machines that could connect to it."""
    places: frozenset[str]
    """Networks and routers of this node with rows for it."""
    gateways: bool
    """Whether one of these routers has its gateway on this node."""


@dataclass(frozen=True, slots=True, eq=False)
class RemovedPart:
    """Removed part of a load balancer, which is no longer in the slice."""

    number: int
    flows: EndedFlows
    reaches: Mapping[IPAddress, Reachability]
    """Reach of each address. All parts removed by one change share it."""

    def __str__(self) -> str:
        return f"{self.number:020}"


Item: TypeAlias = LostConnections | RemovedPart | UnansweredAttempts


class _DueFlush(NamedTuple):
    """Flush that is due."""

    connection: TrackedConnection
    reach: Reachability | None
    """Reach of a removed part; None where the slice has it."""


@dataclass(slots=True)
class _PendingWork:
    """Pending work of a load balancer."""

    due: float
    """Due time (time.monotonic)."""
    poll_interval: float = MIN_POLL_INTERVAL
    is_fixed: bool = False
    """Whether no notification makes it earlier, because it has just been tried."""


class ConntrackFlusher:
    def __init__(self, given: SliceView, switch: ConntrackSwitch, whose: FindListeners, failed: ReportError) -> None:
        self._slice = given
        self._switch = switch
        self._find_listeners = whose
        self._report_error = failed
        self._last_snapshot = Snapshot()
        """Slice at the last notification."""
        self._removed: dict[Owner, frozenset[RemovedPart]] = {}
        """Removed parts that wait to be flushed."""
        self._completed: dict[Owner, frozenset[Item]] = {}
        """Flushed items that still apply, and are not flushed again."""
        self._in_progress: dict[Owner, frozenset[Item]] = {}
        """Items in progress, without those that have recovered meanwhile: these may have new connections."""
        self._awaiting_listing: dict[Owner, frozenset[UnansweredAttempts]] = {}
        """Items in progress that wait for the next listing of all connections."""
        self._next_listing = 0.0
        self._backlog: dict[Owner, Snapshot] = {}
        """Load balancers to compare, each with the slice before its change. One notification may name all of them."""
        self._numbers = itertools.count()
        self._next_allowed: dict[tuple[Owner, Item], float] = {}
        """Time when a flushed item may be flushed again."""
        self._pending: dict[Owner, _PendingWork] = {}
        """Pending load balancers in order of arrival."""
        self._wakeup = asyncio.Event()
        self._failure_log = LogOnce("flushing connections")
        self._flushed = dict.fromkeys((FLUSHED_MEMBERS, FLUSHED_ATTEMPTS), 0)

    def counts(self) -> Counts:
        """Return the number of flushes (one member in one zone each), and of flushed unanswered connections."""
        return self._flushed

    async def run(self) -> None:
        """Flush until cancelled."""
        self._last_snapshot = self._slice.snapshot
        self._slice.subscribe(self.mark)
        await self._slice.ready.wait()
        self.mark(Owner(Kind.LOAD_BALANCER, each) for each in self._slice.snapshot.load_balancers)
        while True:
            owner = self._next()
            if self._backlog:
                self._compare_backlog()
            elif self._awaiting_listing and self._next_listing <= time.monotonic():
                await self._flush_unanswered()
            elif owner is None:
                await self._wait()
            else:
                await self._process(owner)
            await asyncio.sleep(0)

    def mark(self, owners: Iterable[Owner]) -> None:
        """Compare load balancers that have changed."""
        before, self._last_snapshot = self._last_snapshot, self._slice.snapshot
        for number, owner in enumerate(each for each in owners if each.kind is Kind.LOAD_BALANCER):
            earlier = self._backlog.pop(owner, before)
            if number < MAX_COMPARED_PER_STEP:
                self._compare(owner, earlier)
                self._schedule(owner)
            else:
                self._backlog[owner] = earlier
                self._wakeup.set()

    def _compare_backlog(self) -> None:
        for owner in list(itertools.islice(self._backlog, MAX_COMPARED_PER_STEP)):
            self._compare(owner, self._backlog.pop(owner))
            self._schedule(owner)

    def _compare(self, owner: Owner, before: Snapshot) -> None:
        """Find removed parts. Parts that were added again are found before their flush (`_is_served`)."""
        gone = find_ended_flows(before, self._slice.snapshot, owner.id)
        keys = {
            address: (transport(flows.listeners[0].protocol), address, flows.listeners[0].ports[0].first)
            for flows in gone
            for address in flows.addresses
        }
        reaches = {address: _reachability(before, self._slice.name, owner, key) for address, key in keys.items()}
        if any(each.places for each in reaches.values()):
            left = [RemovedPart(next(self._numbers), each, reaches) for each in gone]
            known = sorted((*self._removed.get(owner, ()), *left), key=str)
            if len(known) > MAX_REMOVED_MEMBERS:
                LOG.warning(
                    "load balancer %s: only the newest %d removed members are flushed", owner.id, MAX_REMOVED_MEMBERS
                )
            self._removed[owner] = frozenset(known[-MAX_REMOVED_MEMBERS:])

    def _schedule(self, owner: Owner) -> None:
        """Schedule the flushes of a load balancer. Recovered members are forgotten, so they are flushed again at the
        next failure."""
        wanted = self._flushable_items(owner)
        done = self._completed.pop(owner, frozenset()) & wanted
        if done:
            self._completed[owner] = done
        in_hand = self._in_progress.pop(owner, frozenset()) & wanted
        if in_hand:
            self._in_progress[owner] = in_hand
        left = wanted - done - in_hand
        if left:
            due = min(self._next_allowed.get((owner, each), 0.0) for each in left)
            turn = self._pending.setdefault(owner, _PendingWork(max(time.monotonic(), due)))
            turn.due = turn.due if turn.is_fixed else min(turn.due, due)
            self._wakeup.set()
        elif self._pending.pop(owner, None) is not None:
            self._report(owner, None)

    def _flushable_items(self, owner: Owner) -> frozenset[Item]:
        snapshot = self._slice.snapshot
        items: frozenset[Item] = self._removed.get(owner, frozenset())
        return items | find_lost_connections(snapshot, owner.id) | find_unanswered_attempts(snapshot, owner.id)

    def _report(self, owner: Owner, error: str | None) -> None:
        """Report an error or success, unless the load balancer was deleted."""
        if error is None or owner.id in self._slice.snapshot.load_balancers:
            self._report_error(DATAPLANE, owner, error)

    def _next(self) -> Owner | None:
        """Return the load balancer that has been due longest."""
        now = time.monotonic()
        ready = [(turn.due, owner) for owner, turn in self._pending.items() if turn.due <= now]
        return min(ready, key=lambda each: each[0])[1] if ready else None

    async def _wait(self) -> None:
        """Wait for a notification, a due load balancer or a due listing."""
        self._wakeup.clear()
        times = [turn.due for turn in self._pending.values()] + ([self._next_listing] if self._awaiting_listing else [])
        due = min(times, default=None)
        self._next_allowed = {key: until for key, until in self._next_allowed.items() if until > time.monotonic()}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if due is None else max(0.0, due - time.monotonic())):
                await self._wakeup.wait()

    async def _process(self, owner: Owner) -> None:
        turn, now = self._pending.pop(owner), time.monotonic()
        before = self._in_progress.get(owner, frozenset())
        left = self._flushable_items(owner) - self._completed.get(owner, frozenset()) - before
        items, due = self._pick(owner, (each for each in left if self._next_allowed.get((owner, each), 0.0) <= now))
        attempts = frozenset(each for each in items if isinstance(each, UnansweredAttempts))
        now_cut = frozenset(items) - attempts
        self._in_progress[owner] = before | frozenset(items)
        try:
            is_cut = await self._flush(owner, due, attempts)
        except (SwitchError, ServerError, OSError) as error:
            self._fail(owner, frozenset(items), error)
            return
        self._failure_log.report_recovery()
        if not is_cut:
            self._drop(owner, frozenset(items))
            longer = min(2 * turn.poll_interval, MAX_POLL_INTERVAL)
            self._pending[owner] = _PendingWork(time.monotonic() + turn.poll_interval, longer, is_fixed=True)
            return
        if attempts := attempts & self._in_progress.get(owner, frozenset()):
            self._awaiting_listing[owner] = self._awaiting_listing.get(owner, frozenset()) | attempts
        self._finish(owner, now_cut)

    def _fail(self, owner: Owner, items: frozenset[Item], error: Exception) -> None:
        self._failure_log.report(error, RETRY_INTERVAL)
        self._report(owner, str(error))
        self._drop(owner, items)
        self._pending[owner] = _PendingWork(time.monotonic() + RETRY_INTERVAL, is_fixed=True)

    def _drop(self, owner: Owner, items: frozenset[Item]) -> frozenset[Item]:
        """Remove items from those in progress; return those that were still there."""
        in_hand = self._in_progress.pop(owner, frozenset())
        if in_hand - items:
            self._in_progress[owner] = in_hand - items
        return in_hand & items

    def _finish(self, owner: Owner, items: frozenset[Item]) -> None:
        """Record flushed items."""
        self._report(owner, None)
        done = self._drop(owner, items)
        left = self._removed.pop(owner, frozenset()) - done
        if left:
            self._removed[owner] = left
        self._completed[owner] = self._completed.get(owner, frozenset()) | done
        self._next_allowed |= {(owner, each): time.monotonic() + MIN_FLUSH_INTERVAL for each in items}
        self._schedule(owner)

    def _pick(self, owner: Owner, items: Iterable[Item]) -> tuple[Sequence[Item], Sequence[_DueFlush]]:
        """Select the items of one round, and return them with their flushes."""
        picked, due, snapshot = list[Item](), list[_DueFlush](), self._slice.snapshot
        for each in heapq.nsmallest(MAX_FLUSHES_PER_ROUND, items, key=str):
            if len(due) >= MAX_FLUSHES_PER_ROUND:
                break
            picked.append(each)
            match each:
                case LostConnections():
                    due += (_DueFlush(cut, None) for cut in list_connections_to_flush(snapshot, owner.id, each))
                case RemovedPart():
                    due += (_DueFlush(cut, each.reaches[cut.address]) for cut in list_flows_to_flush(each.flows))
                case UnansweredAttempts():
                    pass
        return picked, due

    async def _flush(self, owner: Owner, wanted: Sequence[_DueFlush], attempts: Collection[UnansweredAttempts]) -> bool:
        """Flush, unless OVN's flows still select one of the members; return whether they did not. Raises
        SwitchError, ServerError, OSError."""
        due = [
            each
            for each in wanted
            if each.reach is None or not await self._is_selected_by_listener(each.connection, each.reach)
        ]
        if not (due or attempts):
            return True
        if await self._flows_select_members(owner, due, attempts):
            return False
        found = await self._switch.zones() if due else {}
        zones = dict[tuple[IPAddress, Reachability | None], Sequence[int]]()
        for each in due:
            if (key := (each.connection.address, each.reach)) not in zones:
                zones[key] = sorted(await self._zones(found, owner, each))
        flushes = [(zone, each.connection) for each in due for zone in zones[each.connection.address, each.reach]]
        if flushes:
            await self._switch.flush(flushes)
            await self._switch.wait_for_revalidation()
            await self._switch.flush(flushes)  # an old datapath flow may have passed a packet in between
            self._flushed[FLUSHED_MEMBERS] += len(flushes)
            members = sorted({render_endpoint(cut.member, cut.member_port) for _, cut in flushes})
            said = ", ".join(members[:MAX_LOGGED_MEMBERS]) + (
                " and others" if len(members) > MAX_LOGGED_MEMBERS else ""
            )
            LOG.info("load balancer %s: flushed connections of %s (%d flushes)", owner.id, said, len(flushes))
        return True

    async def _is_selected_by_listener(self, cut: TrackedConnection, reach: Reachability) -> bool:
        """Whether some current listener can still send traffic to the member of this tracked connection. The listener
        may be of another load balancer with the same address."""
        await asyncio.sleep(0)
        snapshot = self._slice.snapshot
        services = [(place, _service(ConntrackZone(place), cut)) for place in sorted(reach.places)]
        owners = {snapshot.listener_owner.get(each) for each in find_listeners(snapshot, services) if each}
        return any(is_still_served(snapshot.load_balancers[each], cut) for each in owners if each is not None)

    async def _flows_select_members(
        self, owner: Owner, due: Sequence[_DueFlush], attempts: Collection[UnansweredAttempts]
    ) -> bool:
        """Whether flows of this node still select one of these members. Other tenants' flows may have the same
        addresses, so the server is queried for their owners."""
        lost: dict[Key, set[str]] = {}
        reaches: dict[Key, Reachability] = {}
        addresses = set(client_addresses(self._slice.snapshot, owner.id)) if attempts else set[IPAddress]()
        for cut, reach in due:
            lost.setdefault(cut[:3], set()).add(render_endpoint(cut.member, cut.member_port))
            addresses.add(cut.address)
            if reach is not None:
                reaches[cut[:3]] = reach
        leading = [
            each.service
            for each in await self._switch.read_backends(addresses)
            if each.backends & lost.get(_key(each.service), set()) or self._selects_attempts(owner, each, attempts)
        ]
        if not leading:
            return False
        whose = await self._find_listeners(leading)
        places = whose.places or [None] * len(leading)
        return any(
            self._is_own(owner, listener) or (_key(each) in reaches and place in reaches[_key(each)].places)
            for each, listener, place in zip(leading, whose.listeners, places, strict=True)
        )

    def _selects_attempts(
        self, owner: Owner, leading: ServiceBackends, attempts: Collection[UnansweredAttempts]
    ) -> bool:
        service = leading.service
        if not attempts or service.transport is not Transport.TCP:
            return False
        members = (each.rpartition(":") for each in leading.backends)
        cuts = (
            TrackedConnection(*_key(service), parse_address(each.strip("[]")), int(port)) for each, _, port in members
        )
        return any(is_unanswered(self._slice.snapshot, owner.id, attempts, each) for each in cuts)

    async def _flush_unanswered(self) -> None:
        """Flush unanswered connections of all load balancers that wait for it, with one listing of all connections."""
        waiting, self._awaiting_listing = self._awaiting_listing, {}
        listed = {owner: items & self._in_progress.get(owner, frozenset()) for owner, items in waiting.items()}
        try:
            attempts = list[ConnectionAttempt]()
            if any(map(self._is_reached, listed)):
                await (
                    self._switch.wait_for_revalidation()
                )  # no datapath flow selects the member any more: no new attempts
                attempts = await self._switch.list_unanswered()
            found = await self._find_attempts(listed, attempts)
            await self._switch.flush_attempts([each for attempts in found.values() for each in attempts])
        except (SwitchError, ServerError, OSError) as error:
            for owner, items in listed.items():
                self._fail(owner, frozenset(items), error)
            return
        finally:
            self._next_listing = time.monotonic() + MIN_FLUSH_INTERVAL
        self._failure_log.report_recovery()
        for owner, items in listed.items():
            self._flushed[FLUSHED_ATTEMPTS] += len(found[owner])
            if found[owner]:
                LOG.info("load balancer %s: flushed %d unanswered connections", owner.id, len(found[owner]))
            self._finish(owner, frozenset(items))

    def _is_reached(self, owner: Owner) -> bool:
        """Whether connections to this load balancer may be tracked on this node. A node without clients lists
        nothing."""
        snapshot, name = self._slice.snapshot, self._slice.name
        balancer = snapshot.load_balancers.get(owner.id)
        if balancer is None:
            return False
        ports = (each.ports[0].first for each in balancer.listeners if transport(each.protocol) is Transport.TCP)
        port, addresses = next(ports, 0), client_addresses(snapshot, owner.id)
        clients = (_clients(snapshot, name, owner, (Transport.TCP, address, port)) for address in addresses)
        return any(True for each in (*clients, _gateways(snapshot, name)) for _ in each)

    async def _find_attempts(
        self, listed: Mapping[Owner, frozenset[UnansweredAttempts]], attempts: Sequence[ConnectionAttempt]
    ) -> Mapping[Owner, Sequence[ConnectionAttempt]]:
        """Return the unanswered connection attempts whose conntrack entries must be flushed, by load balancer. Raises
        SwitchError, ServerError."""
        snapshot, found = self._slice.snapshot, dict[Owner, list[ConnectionAttempt]]()
        at = dict[IPAddress, list[ConnectionAttempt]]()
        for each in attempts:
            at.setdefault(each.connection.address, []).append(each)
        zones, numbers = dict[tuple[Owner, Key], frozenset[int]](), await self._switch.zones() if attempts else {}
        for owner, items in listed.items():
            found[owner] = []
            for address in client_addresses(snapshot, owner.id) & at.keys():
                for each in at[address]:
                    if is_unanswered(snapshot, owner.id, items, each.connection):
                        key = owner, each.connection[:3]
                        if key not in zones:
                            zones[key] = await self._zones(numbers, owner, _DueFlush(each.connection, None))
                        if each.zone in zones[key]:
                            found[owner].append(each)
                    await asyncio.sleep(0)
        return found

    async def _zones(self, zones: Mapping[str, int], owner: Owner, due: _DueFlush) -> frozenset[int]:
        """Return the zones of this node that may track connections to an address: those of machines that can connect
        to it, and the DNAT zones of routers with a gateway here. A server of an earlier version does not return the
        router of removed parts; their DNAT zones are then left out."""
        snapshot, name, reach = self._slice.snapshot, self._slice.name, due.reach
        ports = _clients(snapshot, name, owner, due.connection[:3]) if reach is None else reach.ports
        found = {zones[port] for port in ports if port in zones}
        if any(True for _ in _gateways(snapshot, name)) if reach is None else reach.gateways:
            named = [each for each in zones if each.endswith(DNAT_ZONE_SUFFIX)]
            whose = await self._find_listeners([_service(ConntrackZone(each), due.connection) for each in named])
            if reach is None:
                own = (self._is_own(owner, each) for each in whose.listeners)
            else:
                own = (each in reach.places for each in whose.places)
            found |= {zones[each] for each, is_own in zip(named, own, strict=False) if is_own}
        return frozenset(found)

    def _is_own(self, owner: Owner, listener: str | None) -> bool:
        return _has(self._slice.snapshot, owner, listener)


def _reachability(snapshot: Snapshot, node: str, owner: Owner, key: Key) -> Reachability:
    ports = frozenset(_clients(snapshot, node, owner, key))
    balancer = snapshot.load_balancers[owner.id]
    among = {*Topology(snapshot).domain_of(balancer).routers, balancer.router_id or ""}
    routers = sorted(each for each in among if each in snapshot.routers)
    listeners = find_listeners(snapshot, [(each, _service(ConntrackZone(each), key)) for each in routers])
    own = {router for router, each in zip(routers, listeners, strict=True) if _has(snapshot, owner, each)}
    networks = {snapshot.ports[port].network_id for port in ports}
    gateways = any(router in own for router in _gateways(snapshot, node))
    return Reachability(ports, frozenset(own | networks), gateways)


def _clients(snapshot: Snapshot, node: str, owner: Owner, key: Key) -> Iterator[str]:
    """Yield the ports of machines on this node that reach this load balancer at the address."""
    of_network = dict[str, list[str]]()
    for port_id in _node_ports(snapshot, node):
        port = snapshot.ports.get(port_id)
        if port is not None and port.use is PortUse.MACHINE:
            of_network.setdefault(port.network_id, []).append(port_id)
    asked = [(network, _service(ConntrackZone(network), key)) for network in of_network]
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


def _service(place: ConntrackZone, key: Key | TrackedConnection) -> CountedService:
    return CountedService(place=place, transport=key[0], address=key[1], port=key[2])

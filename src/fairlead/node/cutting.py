"""Cuts the connections of members that are down, of pools that reset them, as far as clients are on this node.

What is to be cut follows from the slice. It is compared with what was cut since the member went down, so it does not
matter which news was missed; who begins anew cuts once more, which harms nobody who lives.

First the table, then the cut: while OVN's flows of this node lead new connections to the member, the next packet of a
connection that was cut would take it there again. So the flows are looked at, again and again, until they do not.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fairlead.client import ServerError
from fairlead.drivers.ovn.tracked import Leading
from fairlead.drivers.ovn.vswitch import SwitchError
from fairlead.model.addresses import IPAddress, render_endpoint
from fairlead.model.cutting import Cut, cuts_of
from fairlead.model.network import PortUse
from fairlead.model.owner import Kind, Owner
from fairlead.model.statistics import CountedService, Zone, find_listeners
from fairlead.node.complaints import Complaints
from fairlead.node.given import Given

FIRST_PATIENCE, LONGEST_PATIENCE = 0.05, 1.0
"""Seconds from look to look whether OVN's flows have changed already; each is twice as long as the last."""
AGAIN = 2.0
"""Seconds until what has failed is tried again."""
PAUSE = 1.0
"""Seconds at least between two cuts of the same: a member that flaps keeps no node busy."""
MOST_CUTS = 64
"""In one round for one load balancer; then others have their turn."""
DNAT = "_dnat"
"""At the end of the name of a router's zone, in which it translates destinations (ovn-controller(8), ct-zone-*)."""
Whose = Callable[[Sequence[CountedService]], Awaitable[list[str | None]]]
"""The listener of each service; None for what is nobody's. Raises ServerError."""
Failed = Callable[[str, Owner, str | None], None]
"""Is told what could not be done for an owner, and why; None: it could."""
DATAPLANE = "connections"
"""What the failures are of."""


class Switch(Protocol):
    """Each question raises SwitchError."""

    async def zones(self) -> Mapping[str, int]: ...

    async def leading(self, addresses: Collection[IPAddress]) -> list[Leading]: ...

    async def cut(self, due: Iterable[tuple[int, Cut]]) -> None: ...

    async def settled(self) -> None: ...


@dataclass(slots=True)
class _Turn:
    """Of a load balancer that has something to cut."""

    due: float
    """By the clock of the process."""
    patience: float = FIRST_PATIENCE
    firm: bool = False
    """Whether no news makes it earlier: it has just been tried."""


class Cutting:
    def __init__(self, given: Given, switch: Switch, whose: Whose, failed: Failed) -> None:
        self._given = given
        self._switch = switch
        self._whose = whose
        self._failed = failed
        self._done: dict[Owner, frozenset[Cut]] = {}
        """What was cut, and would have to be if it had not been."""
        self._in_hand: tuple[Owner, frozenset[Cut]] | None = None
        """What is being cut, without what has come back meanwhile: it may have new connections already."""
        self._rested: dict[tuple[Owner, Cut], float] = {}
        """When what was cut lately may be cut again."""
        self._turns: dict[Owner, _Turn] = {}
        """By the time when they came."""
        self._news = asyncio.Event()
        self._complaints = Complaints("cutting connections of members that are down")

    async def run(self) -> None:
        """Until it is cancelled."""
        self._given.subscribe(self.mark)
        await self._given.ready.wait()
        self.mark(Owner(Kind.LOAD_BALANCER, each) for each in self._given.snapshot.load_balancers)
        while True:
            owner = self._next()
            if owner is None:
                await self._rest()
            else:
                await self._take_turn(owner)

    def mark(self, owners: Iterable[Owner]) -> None:
        """Look at these again."""
        for owner in owners:
            if owner.kind is Kind.LOAD_BALANCER:
                self._look(owner)

    def _look(self, owner: Owner) -> None:
        """What has come back is forgotten: when it is down again it is to be cut again."""
        wanted = self._wanted(owner)
        done = self._done.pop(owner, frozenset()) & wanted
        if done:
            self._done[owner] = done
        if self._in_hand is not None and self._in_hand[0] == owner:
            self._in_hand = owner, self._in_hand[1] & wanted
        if wanted - done:
            due = min(self._rested.get((owner, each), 0.0) for each in wanted - done)
            turn = self._turns.setdefault(owner, _Turn(max(time.monotonic(), due)))
            turn.due = turn.due if turn.firm else min(turn.due, due)
            self._news.set()
        elif self._turns.pop(owner, None) is not None:
            self._failed(DATAPLANE, owner, None)

    def _wanted(self, owner: Owner) -> frozenset[Cut]:
        return cuts_of(self._given.snapshot, owner.id)

    def _next(self) -> Owner | None:
        """The one that is due for longest."""
        now = time.monotonic()
        ready = [(turn.due, owner) for owner, turn in self._turns.items() if turn.due <= now]
        return min(ready, key=lambda each: each[0])[1] if ready else None

    async def _rest(self) -> None:
        """Until there is news, or somebody's turn."""
        self._news.clear()
        due = min((turn.due for turn in self._turns.values()), default=None)
        self._rested = {key: until for key, until in self._rested.items() if until > time.monotonic()}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if due is None else max(0.0, due - time.monotonic())):
                await self._news.wait()

    async def _take_turn(self, owner: Owner) -> None:
        turn, now = self._turns.pop(owner), time.monotonic()
        left = self._wanted(owner) - self._done.get(owner, frozenset())
        cuts = sorted((each for each in left if self._rested.get((owner, each), 0.0) <= now), key=str)[:MOST_CUTS]
        self._in_hand = owner, frozenset(cuts)
        try:
            cut = await self._cut(owner, cuts)
        except (SwitchError, ServerError, OSError) as error:
            self._complaints.say(error, AGAIN)
            self._failed(DATAPLANE, owner, str(error))
            self._turns[owner] = _Turn(time.monotonic() + AGAIN, firm=True)
            return
        self._complaints.end()
        if not cut:
            longer = min(2 * turn.patience, LONGEST_PATIENCE)
            self._turns[owner] = _Turn(time.monotonic() + turn.patience, longer, firm=True)
            return
        self._failed(DATAPLANE, owner, None)
        self._done[owner] = self._done.get(owner, frozenset()) | self._in_hand[1]
        self._rested |= {(owner, each): time.monotonic() + PAUSE for each in cuts}
        self._look(owner)

    async def _cut(self, owner: Owner, cuts: Sequence[Cut]) -> bool:
        """Whether OVN was ready for it. Raises SwitchError, ServerError, OSError."""
        if not cuts:
            return True
        if await self._are_led(owner, cuts):
            return False
        zones = {cut.address: await self._zones(owner, cut) for cut in {each.address: each for each in cuts}.values()}
        due = [(zone, cut) for cut in cuts for zone in sorted(zones[cut.address])]
        if due:
            await self._switch.cut(due)
            await self._switch.settled()
            await self._switch.cut(due)  # what it remembered of its old flows may have led a packet to the member
        return True

    async def _are_led(self, owner: Owner, cuts: Sequence[Cut]) -> bool:
        """Whether flows of this node lead new connections to one of these members still. Another tenant's may lead to
        the same addresses: whose they are is asked."""
        lost: dict[tuple[object, ...], set[str]] = {}
        for cut in cuts:
            key = cut.transport, cut.address, cut.port
            lost.setdefault(key, set()).add(render_endpoint(cut.member, cut.member_port))
        found = await self._switch.leading({cut.address for cut in cuts})
        leading = [each.service for each in found if each.backends & lost.get(_key(each.service), set())]
        return bool(leading) and any(self._is_own(owner, each) for each in await self._whose(leading))

    async def _zones(self, owner: Owner, cut: Cut) -> frozenset[int]:
        """Those of this node in which connections to this address may be tracked: of machines that reach it, and of
        routers by whose gateways clients come in."""
        zones = await self._switch.zones()
        found = {zones[port] for port in self._clients(owner, cut) if port in zones}
        snapshot = self._given.snapshot
        here = (snapshot.ports.get(port) for port in self._node_ports())
        if any(port is not None and port.use is PortUse.ROUTER_GATEWAY for port in here):
            named = [name for name in zones if name.endswith(DNAT)]
            listeners = await self._whose([_service(Zone(name), cut) for name in named])
            found |= {zones[name] for name, each in zip(named, listeners, strict=True) if self._is_own(owner, each)}
        return frozenset(found)

    def _clients(self, owner: Owner, cut: Cut) -> Iterator[str]:
        """The machines' ports of this node from which the address is this load balancer's."""
        snapshot, of_network = self._given.snapshot, dict[str, list[str]]()
        for port_id in self._node_ports():
            port = snapshot.ports.get(port_id)
            if port is not None and port.use is PortUse.MACHINE:
                of_network.setdefault(port.network_id, []).append(port_id)
        asked = [(network, _service(Zone(network), cut)) for network in of_network]
        for (network, _), listener in zip(asked, find_listeners(snapshot, asked), strict=True):
            if self._is_own(owner, listener):
                yield from of_network[network]

    def _node_ports(self) -> Iterable[str]:
        node = self._given.snapshot.chassis.get(self._given.name)
        return () if node is None else node.ports

    def _is_own(self, owner: Owner, listener: str | None) -> bool:
        return listener is not None and self._given.snapshot.listener_owner.get(listener) == owner.id


def _key(service: CountedService) -> tuple[object, ...]:
    return service.transport, service.address, service.port


def _service(place: Zone, cut: Cut) -> CountedService:
    return CountedService(place=place, transport=cut.transport, address=cut.address, port=cut.port)

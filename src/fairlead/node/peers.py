"""The other plain hosts, as this one reaches them. Members behind a lost host have no slot here.

Servers are not asked, so nothing waits for them when a host dies. The kernel of a host answers pings (ICMP echo, RFC
792 and 4443), so one whose agent has ended is there all the same. Each host sees for itself, and all see the same where
they are: packets that come to one that has not seen it yet go to the dead host, for as long.

A kernel answers pings before an agent has applied the rows of this boot. Therefore a host that answers pings gets empty
datagrams at the port of its tunnel. A host without rows refuses them (ICMP port unreachable), because it has no tunnel
yet, or because its agent keeps the port closed (`drivers/native/ruleset.py`). A tunnel drops them silently, with and
without an agent, and in every release. A lost host is found again when it answers pings and its tunnel is silent.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from fairlead.dataplane.native import TUNNEL_PORTS
from fairlead.model.checks import PlainCheck, Rhythm, Target
from fairlead.model.facts import LOST_HOSTS, with_facts
from fairlead.model.health import Endpoint, Health
from fairlead.model.hosts import way_to
from fairlead.model.loadbalancer import MonitorType, Transport
from fairlead.model.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot
from fairlead.node.given import Given
from fairlead.node.prober_thread import News, ProberThread

LOG = logging.getLogger(__name__)
MOST_TOLD = 10
"""Hosts in one line of the log."""
DELAY = 0.2
"""Seconds from question to question to one host, where there are few."""
MOST_A_SECOND = 1_000
"""Questions, of this host to all others."""
FAILURES, ANSWERS = 3, 2
"""In a row, until a host is lost, and found again."""
FIRST_LOOK = 5.0
"""Seconds until those of whom nothing is known yet count as being there."""
_ANSWERS = {Health.ONLINE, Health.ERROR}
PINGS = 5
"""Pings of a host for each datagram to its tunnel."""
_PING, _DATAGRAM = PlainCheck(type=MonitorType.PING), PlainCheck(type=MonitorType.UDP_CONNECT)


def targets(snapshot: Snapshot, name: str) -> Mapping[Endpoint, Target]:
    """All hosts that this one has a way to. A network has no such id: an endpoint says whose it is."""
    own = snapshot.hosts.get(name)
    if own is None:
        return {}
    others = (host for host in snapshot.hosts.values() if host.name != name)
    ways = {host.name: address for host in others if (address := way_to(own, host)) is not None}
    delay = max(DELAY, len(ways) * (1 + 1 / PINGS) / MOST_A_SECOND)
    rhythm = Rhythm(delay=delay, timeout=delay, max_retries=ANSWERS, max_retries_down=FAILURES)
    endpoints = (Endpoint("", address, 0, Transport.ANY, "", other) for other, address in ways.items())
    return {each: Target(endpoint=each, check=_PING, rhythm=rhythm) for each in endpoints}


def tunnel_of(ping: Target) -> Target:
    """The port of a tunnel of the same host. Kernels refuse one datagram a second (`icmp_ratelimit` of ip-sysctl)."""
    delay = PINGS * ping.rhythm.delay
    endpoint = ping.endpoint._replace(number=TUNNEL_PORTS[0], transport=Transport.UDP)
    return Target(endpoint=endpoint, check=_DATAGRAM, rhythm=replace(ping.rhythm, delay=delay, timeout=delay))


class Peers:
    def __init__(self, given: Given) -> None:
        self.ready = asyncio.Event()
        """Set when all are known, or have had their time."""
        self._given = given
        self._pings: Mapping[Endpoint, Target] = {}
        """Of all hosts."""
        self._tunnels: Mapping[Endpoint, Target] = {}
        """Of the same hosts, by these endpoints."""
        self._targets: Mapping[Endpoint, Target] = {}
        """All that is probed: pings, and tunnels of hosts that answer them."""
        self._known: Mapping[Endpoint, Health] = {}
        self._lost = frozenset[str]()
        self._view = self._given_view = given.snapshot
        """What was asked for last, and the slice that it was made of."""
        self._news = asyncio.Event()
        self._call: Callable[[Iterable[Owner]], None] = lambda _: None

    @property
    def snapshot(self) -> Snapshot:
        """What the node is given, and which hosts are lost: the same one until either changes."""
        given = self._given.snapshot
        if given is not self._given_view or self._lost != self._view.lost_hosts:
            self._given_view, self._view = given, with_facts(given, LOST_HOSTS, self._lost)
        return self._view

    def follow(self, call: Callable[[Iterable[Owner]], None]) -> None:
        """`call` is told whose rows may differ since hosts were lost, or found."""
        self._call = call

    async def run(self) -> None:
        """Until it is cancelled."""
        self._given.subscribe(self._mark)
        await self._given.ready.wait()
        thread = ProberThread(self._given.name, None, self._tell)
        await thread.start()
        thread.ended.add_done_callback(lambda _: self._news.set())
        waiting = asyncio.ensure_future(self._wait())
        try:
            while True:
                self._pings = targets(self._given.snapshot, self._given.name)
                self._tunnels = {endpoint: tunnel_of(ping) for endpoint, ping in self._pings.items()}
                before, self._targets = self._targets, dict(self._probed())
                gone = before.keys() - self._targets.keys()
                thread.change(gone, [each for key, each in self._targets.items() if before.get(key) != each], ())
                self._know({endpoint: each for endpoint, each in self._known.items() if endpoint not in gone})
                await self._news.wait()
                self._news.clear()
                if thread.ended.done():
                    thread.ended.result()  # raises: hosts of whom nobody knows anything would be there for ever
        finally:
            waiting.cancel()
            thread.stop()

    def _probed(self) -> Iterator[tuple[Endpoint, Target]]:
        """A tunnel is probed anew after its host has not answered pings: what it did before counts no longer."""
        for endpoint, ping in self._pings.items():
            yield endpoint, ping
            if self._known.get(endpoint) is Health.ONLINE:
                tunnel = self._tunnels[endpoint]
                yield tunnel.endpoint, tunnel

    def _mark(self, owners: Iterable[Owner]) -> None:
        if any(owner.kind is Kind.HOST for owner in owners):
            self._news.set()

    def _tell(self, news: News) -> None:
        found = {endpoint: each.health for endpoint, each in news.items() if each.health in _ANSWERS}
        self._know({**self._known, **{each: health for each, health in found.items() if each in self._targets}})

    def _know(self, known: Mapping[Endpoint, Health]) -> None:
        before, pings, self._known = self.snapshot, self._known, known
        if any(pings.get(each) is not known.get(each) for each in self._pings):
            self._news.set()
        found = {endpoint.asker: self._health(endpoint) for endpoint in self._pings}
        self._lost = frozenset(
            name
            for name, health in found.items()
            if health is Health.ERROR or (health is None and name in before.lost_hosts)
        )
        if self._lost != before.lost_hosts:
            named = ", ".join(sorted(self._lost)[:MOST_TOLD]) or "none"
            LOG.warning("hosts that do not answer pings, or have no tunnels since they booted: %s", named)
            self._call(LOST_HOSTS.concerns(before, self.snapshot, self._lost))
        if None not in found.values():
            self.ready.set()

    def _health(self, ping: Endpoint) -> Health | None:
        """Of a host; None while it is not known."""
        answered = self._known.get(ping)
        return answered if answered is not Health.ONLINE else self._known.get(self._tunnels[ping].endpoint)

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK):
                await self.ready.wait()
        self.ready.set()

"""Reachability of the other plain hosts from this one. Members routed by a lost host have no slot here.

No server is involved, so a host's failure is handled without waiting for one. The kernel answers pings (ICMP echo, RFC
792 and 4443), so a host without an agent is still alive. Each host decides for itself, and all come to the same result;
packets to a host that has not detected a failure yet go to the dead host until then.

A kernel answers pings before an agent has applied the rows of this boot. Therefore a host that answers pings gets empty
datagrams at the port of its tunnel. A host without rows rejects them (ICMP port unreachable), because it has no tunnel
yet, or because its agent keeps the port closed (`drivers/native/nftables/ruleset.py`). A tunnel drops them silently,
with and without an agent, and in every release. A lost host is available again when it answers pings and its tunnel is
silent.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from fairlead.dataplane.native import TUNNEL_PORTS
from fairlead.model.documents.checks import PlainCheck, ProbeSchedule, Target
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.hosts import find_tunnel_endpoint
from fairlead.model.documents.loadbalancer import MonitorType, Transport
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.facts import UNREACHABLE_HOSTS, with_facts
from fairlead.model.snapshot import Snapshot
from fairlead.node.prober_thread import ProberThread, ResultsByEndpoint
from fairlead.node.slice_view import SliceView

LOG = logging.getLogger(__name__)
MAX_LOGGED_HOSTS = 10
"""Maximum hosts in one log line."""
PING_INTERVAL = 0.2
"""Seconds between two pings of a host, unless there are many hosts."""
MAX_PROBES_PER_SECOND = 1_000
"""Maximum pings and datagrams per second to all hosts."""
FAILURES_UNTIL_LOST, ANSWERS_UNTIL_AVAILABLE = 3, 2
"""Consecutive failures until a host is lost, and successes until it is available again."""
INITIAL_TIMEOUT = 5.0
"""Seconds after the start until hosts without a result count as available."""
_CONCLUSIVE = {Health.ONLINE, Health.ERROR}
PINGS_PER_DATAGRAM = 5
"""Pings per datagram to the tunnel."""
_PING, _DATAGRAM = PlainCheck(type=MonitorType.PING), PlainCheck(type=MonitorType.UDP_CONNECT)


def ping_targets(snapshot: Snapshot, name: str) -> Mapping[Endpoint, Target]:
    """Return the pings of all reachable hosts. The endpoint has the host's name in place of a monitor."""
    own = snapshot.hosts.get(name)
    if own is None:
        return {}
    others = (host for host in snapshot.hosts.values() if host.name != name)
    ways = {host.name: address for host in others if (address := find_tunnel_endpoint(own, host)) is not None}
    delay = max(PING_INTERVAL, len(ways) * (1 + 1 / PINGS_PER_DATAGRAM) / MAX_PROBES_PER_SECOND)
    rhythm = ProbeSchedule(
        delay=delay, timeout=delay, max_retries=ANSWERS_UNTIL_AVAILABLE, max_retries_down=FAILURES_UNTIL_LOST
    )
    endpoints = (Endpoint("", address, 0, Transport.ANY, "", other) for other, address in ways.items())
    return {each: Target(endpoint=each, check=_PING, schedule=rhythm) for each in endpoints}


def tunnel_target(ping: Target) -> Target:
    """Return the probe of the same host's tunnel port. Kernels limit ICMP errors to one per second (`icmp_ratelimit`,
    ip-sysctl)."""
    delay = PINGS_PER_DATAGRAM * ping.schedule.delay
    endpoint = ping.endpoint._replace(port=TUNNEL_PORTS[0], transport=Transport.UDP)
    return Target(endpoint=endpoint, check=_DATAGRAM, schedule=replace(ping.schedule, delay=delay, timeout=delay))


class Peers:
    def __init__(self, given: SliceView) -> None:
        self.ready = asyncio.Event()
        """Set when the state of all hosts is known, or `INITIAL_TIMEOUT` is over."""
        self._slice = given
        self._pings: Mapping[Endpoint, Target] = {}
        """Pings of all hosts."""
        self._tunnels: Mapping[Endpoint, Target] = {}
        """Tunnel probes of the same hosts, by the endpoint of the ping."""
        self._targets: Mapping[Endpoint, Target] = {}
        """Active probes: all pings, and tunnels of hosts that answer pings."""
        self._results: Mapping[Endpoint, Health] = {}
        self._lost = frozenset[str]()
        self._cached_view = self._view_source = given.snapshot
        """Last result of `snapshot`, and the slice it was built from."""
        self._wakeup = asyncio.Event()
        self._on_change: Callable[[Iterable[Owner]], None] = lambda _: None

    @property
    def snapshot(self) -> Snapshot:
        """Slice with the lost hosts; the same object until either changes."""
        given = self._slice.snapshot
        if given is not self._view_source or self._lost != self._cached_view.lost_hosts:
            self._view_source, self._cached_view = given, with_facts(given, UNREACHABLE_HOSTS, self._lost)
        return self._cached_view

    def subscribe(self, call: Callable[[Iterable[Owner]], None]) -> None:
        """Register a callback for owners whose rows may change after a host was lost or is available again."""
        self._on_change = call

    async def run(self) -> None:
        """Probe until cancelled."""
        self._slice.subscribe(self._mark)
        await self._slice.ready.wait()
        thread = ProberThread(self._slice.name, None, self._take_results)
        await thread.start()
        thread.ended.add_done_callback(lambda _: self._wakeup.set())
        waiting = asyncio.ensure_future(self._end_initial_wait())
        try:
            while True:
                self._pings = ping_targets(self._slice.snapshot, self._slice.name)
                self._tunnels = {endpoint: tunnel_target(ping) for endpoint, ping in self._pings.items()}
                before, self._targets = self._targets, dict(self._probed())
                gone = before.keys() - self._targets.keys()
                thread.change(gone, [each for key, each in self._targets.items() if before.get(key) != each], ())
                self._update({endpoint: each for endpoint, each in self._results.items() if endpoint not in gone})
                await self._wakeup.wait()
                self._wakeup.clear()
                if thread.ended.done():
                    thread.ended.result()  # raises, as without a prober lost hosts would never be detected
        finally:
            waiting.cancel()
            thread.stop()

    def _probed(self) -> Iterator[tuple[Endpoint, Target]]:
        """Yield the active probes. A tunnel is probed from scratch after its host failed to answer pings."""
        for endpoint, ping in self._pings.items():
            yield endpoint, ping
            if self._results.get(endpoint) is Health.ONLINE:
                tunnel = self._tunnels[endpoint]
                yield tunnel.endpoint, tunnel

    def _mark(self, owners: Iterable[Owner]) -> None:
        if any(owner.kind is Kind.HOST for owner in owners):
            self._wakeup.set()

    def _take_results(self, news: ResultsByEndpoint) -> None:
        found = {endpoint: each.health for endpoint, each in news.items() if each.health in _CONCLUSIVE}
        self._update({**self._results, **{each: health for each, health in found.items() if each in self._targets}})

    def _update(self, known: Mapping[Endpoint, Health]) -> None:
        before, pings, self._results = self.snapshot, self._results, known
        if any(pings.get(each) is not known.get(each) for each in self._pings):
            self._wakeup.set()
        found = {endpoint.monitor_id: self._health(endpoint) for endpoint in self._pings}
        self._lost = frozenset(
            name
            for name, health in found.items()
            if health is Health.ERROR or (health is None and name in before.lost_hosts)
        )
        if self._lost != before.lost_hosts:
            named = ", ".join(sorted(self._lost)[:MAX_LOGGED_HOSTS]) or "none"
            LOG.warning("unreachable hosts (no ICMP echo reply, or no tunnel since boot): %s", named)
            self._on_change(UNREACHABLE_HOSTS.affected_owners(before, self.snapshot, self._lost))
        if None not in found.values():
            self.ready.set()

    def _health(self, ping: Endpoint) -> Health | None:
        """Return the health of a host; None while unknown."""
        answered = self._results.get(ping)
        return answered if answered is not Health.ONLINE else self._results.get(self._tunnels[ping].endpoint)

    async def _end_initial_wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(INITIAL_TIMEOUT):
                await self.ready.wait()
        self.ready.set()

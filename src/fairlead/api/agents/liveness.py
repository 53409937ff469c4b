"""State of the node agents as seen by this server: heartbeats, probe results, and delegated probing for stale nodes.

Agents report to every server, and each server decides from its own observations. All state here is facts, which agents
send again after a restart. The last probe result of an endpoint stays valid until there is a newer one.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

from fairlead.agent_protocol.reports import AgentReport, ProbeResults
from fairlead.model.documents.agent import Agent, find_stale
from fairlead.model.documents.agent_counters import Counts
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.observed_proxy import Proxy
from fairlead.model.documents.probe_result import ProbeResult, next_result
from fairlead.model.documents.proxy_place import place_of_host_proxy, place_of_port, proxy_chassis
from fairlead.model.queries.delegated_probing import (
    MAX_DELEGATED_PLACES,
    find_delegate,
    is_endpoint_monitored,
    is_responsive,
    list_monitored_places,
    list_places_without_port,
    nodes_without_agent,
    probe_place,
    probes_here,
    stale_nodes,
)
from fairlead.model.queries.host_proxies import has_host_proxy
from fairlead.model.queries.placement import filter_own_addresses
from fairlead.model.queries.probes import endpoints
from fairlead.model.registry.facts import AGENTS, DELEGATE_PORTS, DELEGATES, OWN_ADDRESSES, PROBE_RESULTS, PROXIES
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import Steps
from fairlead.store.model import Model

LOG = logging.getLogger(__name__)
MAX_ENDPOINTS_PER_AGENT = 20_000
"""Maximum endpoints that an agent may report."""
FORGET_AFTER = 86_400.0
"""Seconds without a heartbeat after which an agent and its probe results are forgotten."""
FIRST_REPORT_TIMEOUT = 15.0
"""Seconds after the start within which each live agent must have reported: the stale timeout of the default
heartbeat."""
RECONNECT_GRACE = 0.25
"""Seconds that an agent may be disconnected before it counts as gone, for instance to renew its certificate."""
FLAPPING_HOLD_OFF = 300.0
"""Seconds that disconnects of an agent are ignored after a disconnect turned out to be wrong, because something
between the agent and this server closes connections."""
NOT_ASSIGNED_TEXT = "this chassis does not probe this endpoint"
NO_MONITOR_TEXT = "no health monitor needs this endpoint"
DELEGATED_PROBING_TEXT, PROXY_FAILOVER_TEXT = (
    "other agents probe its members",
    "clients are sent to proxies of other chassis",
)
HOST_UNMANAGED_TEXT = (
    "its host keeps the last configuration, its members keep their last status, and no change reaches it"
)
TOO_MANY = f"an agent reports at most {MAX_ENDPOINTS_PER_AGENT} endpoints"


@dataclass(slots=True)
class _AgentState:
    at: float
    """Time of the last report, by the monotonic clock."""
    last_report_wall: float | None = None
    """Time of the last report, by the wall clock; None if the agent has not reported since this server started."""
    has_complete_report: bool = False
    """Whether it has sent a complete report. The first one may contain only changes since its report to another
    server."""
    counted: Counts = field(default_factory=dict)
    """Counters of its own work in its last report."""
    endpoints: set[Endpoint] = field(default_factory=set)
    reconnects: int = 0
    """Number of times that the agent reconnected after it was stale, which invalidates its earlier reports."""
    connection: object = None
    """Connection of the last report."""
    disconnected_at: float | None = None
    """Time when `connection` was closed, by the monotonic clock."""
    hold_off_until: float = 0.0
    """Time after which a closed connection counts as a disconnect again."""
    proxies: set[str] = field(default_factory=set)
    """Keys of the agent's running proxies (`Snapshot.proxies`)."""


class NodeAgents:
    def __init__(
        self,
        model: Model,
        near: Callable[[str], Collection[str]],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`near` returns the chassis that reach a network."""
        self._model = model
        self._chassis_reaching = near
        self._clock, self._wall = clock, wall
        self._states: dict[str, _AgentState] = {}
        self._began = self._clock()
        self._unprobed = set[Endpoint]()
        """Endpoints that no agent probes any more; their last results stay valid while a monitor needs them."""
        for endpoint, seen in model.snapshot.sightings.items():  # restored from the file of the previous process
            self._remember(seen.chassis).endpoints.add(endpoint)

    async def restore(self, seen: ProbeResults) -> None:
        """Restore stored results of stale nodes, for endpoints without a result in this server."""
        snapshot = self._model.snapshot
        news = {
            endpoint: each
            for endpoint, each in seen.items()
            if each is not None and endpoint not in snapshot.sightings and is_endpoint_monitored(snapshot, endpoint)
        }
        for endpoint, each in news.items():
            self._remember(each.chassis).endpoints.add(endpoint)
        if news:
            await run_in_steps(self._model.observe(PROBE_RESULTS, news))

    def last_report(self, chassis: str) -> float | None:
        """Return the wall-clock time of the agent's last report; None if there is none."""
        heard = self._states.get(chassis)
        return None if heard is None else heard.last_report_wall

    def counted_by(self, chassis: str) -> Counts:
        """Return an agent's counters of its own work; empty if it reports none."""
        heard = self._states.get(chassis)
        return {} if heard is None else heard.counted

    def counted(self) -> Mapping[str, Counts]:
        """Map chassis to the counters of responsive agents. Counters of unresponsive ones are outdated."""
        agents = self._model.snapshot.agents
        names = (name for name in sorted(self._states) if name in agents and agents[name].is_responsive)
        return {name: self._states[name].counted for name in names}

    def reconnects(self, chassis: str) -> int:
        """Return how often the agent returned after it was stale. The number is part of the epoch it receives, so it
        sends a full report."""
        heard = self._states.get(chassis)
        return 0 if heard is None else heard.reconnects

    def _remember(self, chassis: str) -> _AgentState:
        return self._states.setdefault(chassis, _AgentState(self._clock()))

    def reported_endpoints(self, chassis: str) -> int:
        """Return the number of endpoints that the agent reports."""
        heard = self._states.get(chassis)
        return 0 if heard is None else len(heard.endpoints)

    def record_disconnect(self, chassis: str, connection: object) -> None:
        """Record that a connection was closed. An agent keeps its connection open for its lifetime."""
        heard, now = self._states.get(chassis), self._clock()
        if heard is not None and heard.connection is connection and now >= heard.hold_off_until:
            heard.disconnected_at = now

    async def take_report(self, report: AgentReport, connection: object = None) -> list[tuple[Endpoint, str]]:
        """Take a report, and return the rejected endpoints with the reason; they change nothing."""
        name, now, wall = report.agent.name, self._clock(), self._wall()
        heard = self._remember(name)
        heard.at, heard.last_report_wall, heard.counted = now, wall, report.counted
        before = self._model.snapshot.agents.get(name)
        if heard.disconnected_at is not None and before is not None and before.since == report.agent.since:
            heard.hold_off_until = now + FLAPPING_HOLD_OFF
        heard.connection, heard.disconnected_at = connection, None
        agent = replace(report.agent, has_full_report=before is not None and before.has_full_report)
        await run_in_steps(
            self._take_proxies(name, report.serving, heard)
        )  # first: a responsive agent has known proxies
        await run_in_steps(self._take_addresses(report))
        if before != agent:
            await run_in_steps(self._model.observe(AGENTS, {name: agent}))
        if before is not None and not before.is_responsive:
            LOG.info("agent %s reconnected", name)
            heard.reconnects += 1
            await run_in_steps(self._assign_delegates())
        heard.has_complete_report |= report.is_complete and name in self._model.snapshot.chassis
        refused = await run_in_steps(self._take_results(report, heard))
        now_known = self._model.snapshot.agents.get(name)
        if heard.has_complete_report and not report.more and now_known is not None and not now_known.has_full_report:
            await run_in_steps(self._model.observe(AGENTS, {name: replace(now_known, has_full_report=True)}))
        return refused

    def _take_proxies(self, chassis: str, serving: Mapping[str, frozenset[int]], heard: _AgentState) -> Steps[None]:
        """Record the proxies of this chassis; proxies missing from the report are not running."""
        snapshot = self._model.snapshot
        named = ((_proxy_of(snapshot, chassis, each), ports) for each, ports in serving.items())
        own = {name: ports for name, ports in named if name is not None}
        news: dict[str, Proxy | None] = dict.fromkeys(heard.proxies - own.keys())
        news |= {each: Proxy(serving=ports) for each, ports in own.items()}
        heard.proxies = set(own)
        changed = {each: proxy for each, proxy in news.items() if snapshot.proxies.get(each) != proxy}
        if changed:
            yield from self._model.observe(PROXIES, changed)

    def _take_addresses(self, report: AgentReport) -> Steps[None]:
        """Record the own addresses of a host among those routed to it."""
        snapshot, name = self._model.snapshot, report.agent.name
        if report.addresses is not None and name in snapshot.hosts:
            own = filter_own_addresses(snapshot, name, report.addresses)
            if snapshot.own_addresses.get(name) != own:
                yield from self._model.observe(OWN_ADDRESSES, {name: own})

    def _take_results(self, report: AgentReport, heard: _AgentState) -> Steps[list[tuple[Endpoint, str]]]:
        """Record the probe results of a report. A restarted agent does not know its endpoints yet, so earlier results
        stay valid until then."""
        refused: list[tuple[Endpoint, str]] = []
        news: dict[Endpoint, ProbeResult | None] = {}
        snapshot, known = self._model.snapshot, self._model.snapshot.sightings
        looks_since = report.probing_since or report.agent.since
        for endpoint, sighting in report.probe_results.items():
            if sighting is None:
                if endpoint in heard.endpoints:
                    news[endpoint] = None
                yield
                continue
            why = self._rejection_reason(snapshot, report.agent.name, endpoint)
            if why or (endpoint not in heard.endpoints and len(heard.endpoints) + len(news) >= MAX_ENDPOINTS_PER_AGENT):
                refused.append((endpoint, why or TOO_MANY))
            elif known.get(endpoint) != sighting or endpoint not in heard.endpoints:
                news[endpoint] = _newer_result(known.get(endpoint), sighting, looks_since)
            yield
        if report.is_complete:
            name, untold = report.agent.name, heard.endpoints - report.probe_results.keys()
            news.update({each: None for each in untold if self._rejection_reason(snapshot, name, each)})
        yield from self._publish(heard, report.agent.name, news)
        return refused

    def _rejection_reason(self, snapshot: Snapshot, chassis: str, endpoint: Endpoint) -> str:
        if not probes_here(snapshot, chassis, endpoint):
            return NOT_ASSIGNED_TEXT
        return "" if is_endpoint_monitored(snapshot, endpoint) else NO_MONITOR_TEXT

    def _publish(self, heard: _AgentState, chassis: str, news: dict[Endpoint, ProbeResult | None]) -> Steps[None]:
        """Publish new results and withdrawals. A result that another agent has replaced is not withdrawn."""
        known, asked = self._model.snapshot.sightings, dict[str, frozenset[Endpoint]]()
        for endpoint, sighting in list(news.items()):
            if sighting is not None:
                heard.endpoints.add(endpoint)
                continue
            heard.endpoints.discard(endpoint)
            last = known.get(endpoint)
            if last is None or last.chassis != chassis:
                del news[endpoint]
            elif self._is_monitored(endpoint, asked):
                news[endpoint] = self._reassigned(endpoint, last)
            yield
        if news:
            yield from self._model.observe(PROBE_RESULTS, news)

    def _is_monitored(self, endpoint: Endpoint, asked: dict[str, frozenset[Endpoint]]) -> bool:
        """Return whether a monitor still needs the endpoint. `asked` caches the endpoints of each monitor."""
        snapshot = self._model.snapshot
        if endpoint.monitor_id not in asked:
            balancer_id = snapshot.monitor_owner.get(endpoint.monitor_id, "")
            probing = snapshot.load_balancers.get(balancer_id) or snapshot.local_ips.get(endpoint.monitor_id)
            asked[endpoint.monitor_id] = frozenset(endpoints(snapshot, probing) if probing is not None else ())
        return endpoint in asked[endpoint.monitor_id]

    def _reassigned(self, endpoint: Endpoint, last: ProbeResult) -> ProbeResult:
        """Return the last result under its next prober, because it stays valid until there is a newer one. Without a
        prober it becomes an orphan: its machine has left the node, or OVN has no location for a moment."""
        snapshot = self._model.snapshot
        hosts = (
            name for name in self._states if is_responsive(snapshot, name) and probes_here(snapshot, name, endpoint)
        )
        heir = snapshot.covered.get(probe_place(endpoint)) or next(hosts, None)
        if heir is None:
            self._unprobed.add(endpoint)
            return last
        self._remember(heir).endpoints.add(endpoint)
        return replace(last, chassis=heir)

    async def _drop_unprobed(self) -> None:
        """Drop orphans that are probed again, and results that no monitor can need any more."""
        snapshot = self._model.snapshot
        gone = [each for each in self._unprobed if not _may_be_monitored(snapshot, each)]
        self._unprobed -= {each for each in self._unprobed if self._probes_it(each)}.union(gone)
        if gone:
            await run_in_steps(self._model.observe(PROBE_RESULTS, dict.fromkeys(gone)))

    def _probes_it(self, endpoint: Endpoint) -> bool:
        """Return whether the agent of the last result will withdraw it when it stops probing."""
        seen = self._model.snapshot.sightings.get(endpoint)
        heard = self._states.get(seen.chassis) if seen is not None else None
        return seen is None or (heard is not None and endpoint in heard.endpoints)

    async def find_stale(self) -> None:
        """Find agents that became stale or disconnected, and assign their places to other agents."""
        agents, now = self._model.snapshot.agents, self._clock()
        silences = {name: now - heard.at for name, heard in self._states.items() if name in agents}
        beats = {name: agents[name].heartbeat for name in silences}
        before = {name for name in silences if not agents[name].is_responsive}
        stale = find_stale(silences, beats, before)
        news: dict[str, Agent | None] = {name: replace(agents[name], is_responsive=False) for name in stale - before}
        for name in news:
            LOG.warning("agent %s is unresponsive: %s", name, self._effect_text(name, DELEGATED_PROBING_TEXT))
        for name in self._find_disconnected(now) - news.keys():
            LOG.warning("agent %s disconnected: %s", name, self._effect_text(name, PROXY_FAILOVER_TEXT))
            news[name] = replace(agents[name], is_disconnected=True)
        for name in [name for name, heard in self._states.items() if now - heard.at > FORGET_AFTER]:
            await self.forget(name)
        if news:
            await run_in_steps(self._model.observe(AGENTS, news))
        snapshot = self._model.snapshot
        gone = [each for each in snapshot.own_addresses if each not in snapshot.hosts]
        if gone:  # own addresses of a stale host stay valid
            await run_in_steps(self._model.observe(OWN_ADDRESSES, dict.fromkeys(gone)))
        await self._drop_unprobed()
        await run_in_steps(self._assign_delegates())

    def _effect_text(self, name: str, elsewhere: str) -> str:
        """Return the log text for the effect of a missing agent; a plain host has no substitute."""
        return HOST_UNMANAGED_TEXT if name in self._model.snapshot.hosts else elsewhere

    def _find_disconnected(self, now: float) -> set[str]:
        """Return the agents that disconnected and did not reconnect in time."""
        agents, gone = self._model.snapshot.agents, set[str]()
        for name, heard in self._states.items():
            if heard.disconnected_at is not None and now - heard.disconnected_at > RECONNECT_GRACE:
                gone.add(name)
        return {
            name for name in gone if name in agents and agents[name].is_responsive and not agents[name].is_disconnected
        }

    async def forget(self, chassis: str) -> None:
        """Forget an agent and its probe results."""
        heard = self._states.pop(chassis, None)
        if heard is not None:
            await run_in_steps(self._publish(heard, chassis, dict.fromkeys(heard.endpoints)))
            await run_in_steps(self._take_proxies(chassis, {}, heard))
        if chassis in self._model.snapshot.agents:
            await run_in_steps(self._model.observe(AGENTS, {chassis: None}))

    def _assign_delegates(self) -> Steps[None]:
        """Assign delegated probing. The port on the network (`DELEGATE_PORTS`) is published before the places, so that
        a chassis can probe when it receives them."""
        snapshot = self._model.snapshot
        covers, found = dict[str, str | None](), dict[str, str]()
        for place, network_id in islice(self._places(snapshot), MAX_DELEGATED_PLACES):
            if network_id not in covers:
                covers[network_id] = find_delegate(snapshot, network_id, self._chassis_reaching)
            chassis = covers[network_id]
            if chassis is not None:
                found[place] = chassis
            yield
        covering = {network_id: chassis for network_id, chassis in covers.items() if chassis is not None}
        for fact, known, wanted in (
            (DELEGATE_PORTS, self._model.snapshot.covering, covering),
            (DELEGATES, self._model.snapshot.covered, found),
        ):
            news: dict[str, str | None] = {key: who for key, who in wanted.items() if known.get(key) != who}
            news.update({key: None for key in known if key not in wanted})
            if news:
                yield from self._model.observe(fact, news)

    def _places(self, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
        """Yield the places of stale agents, of agents that have not reported since the start, and those without a
        port."""
        for name in stale_nodes(snapshot):
            yield from list_monitored_places(snapshot, name)
        if self._clock() - self._began > FIRST_REPORT_TIMEOUT:
            for name in nodes_without_agent(snapshot):
                yield from list_monitored_places(snapshot, name)
        yield from list_places_without_port(snapshot)


def _proxy_of(snapshot: Snapshot, chassis: str, named: str) -> str | None:
    """Return the key of a proxy by the name its agent uses: a proxy port of the chassis, or a load balancer place on a
    plain host. None if the chassis has no such proxy."""
    port = snapshot.ports.get(named)
    if port is not None:
        return named if proxy_chassis(port) == chassis and place_of_port(port) is not None else None
    identity = f"{named}/{chassis}"
    place = place_of_host_proxy(identity)
    if place is None or place not in snapshot.proxied:
        return None
    return identity if has_host_proxy(snapshot, chassis, place) else None


def _newer_result(last: ProbeResult | None, seen: ProbeResult, looks_since: datetime) -> ProbeResult:
    """Merge a result with the known one. A result that the agent restored from before its start does not replace a
    newer one."""
    if last is not None and seen.health is not Health.UNPROBED and seen.since < looks_since and last.since > seen.since:
        return last
    return next_result(last, seen)


def _may_be_monitored(snapshot: Snapshot, endpoint: Endpoint) -> bool:
    """Return whether the endpoint's machine and its monitor still exist."""
    has_asker = endpoint.monitor_id in snapshot.monitor_owner or endpoint.monitor_id in snapshot.local_ips
    return (
        has_asker
        and (not endpoint.port_id or endpoint.port_id in snapshot.ports)
        and is_endpoint_monitored(snapshot, endpoint)
    )

"""Reports of this node to every server: heartbeat, owners that could not be applied, and probe results.

Results are stored by endpoint, and each server has a set of endpoints that are still to be reported, so only the last
result of an endpoint is sent. A restarted server gets a full report. A result that a server rejects, because it does
not know the endpoint yet, is sent again with the next heartbeat.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from fairlead.agent_protocol.reports import MAX_PROBE_RESULTS, AgentReport, ProbeResults, read_endpoint, render_report
from fairlead.http.server_client import ServerError
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.agent import MAX_REPORTED_FAILURES, Agent, ApplyFailure
from fairlead.model.documents.agent_counters import Counts
from fairlead.model.documents.health import Endpoint
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.probe_result import ProbeResult, next_result
from fairlead.node.connection import Connection, Remote
from fairlead.node.log_once import LogOnce

LOG = logging.getLogger(__name__)
MIN_REPORT_INTERVAL = 0.05
"""Minimum seconds between two reports: the first change is sent immediately, later ones are batched."""
RESPONSE_TIMEOUT = 10.0
RETRY_INTERVAL = 1.0
"""Retry interval in seconds; the heartbeat interval if that is less."""


@dataclass(slots=True, kw_only=True)
class _ServerState:
    """Reports of this agent to one server: what it has accepted, and what is to be sent next."""

    epoch: str = ""
    is_full: bool = True
    """True if the next report is a full one."""
    pending: dict[Endpoint, None] = field(default_factory=dict)
    rejected: dict[Endpoint, None] = field(default_factory=dict)
    """Endpoints whose results were rejected."""
    wakeup: asyncio.Event = field(default_factory=asyncio.Event)


class Reports:
    def __init__(self, agent: Callable[[], Agent], remotes: Callable[[], Sequence[Remote]], servers: int) -> None:
        """`agent` returns the agent's own data without unapplied owners; `remotes` returns the servers, `servers` of
        them."""
        self._agent = agent
        self._remotes = remotes
        self._results: dict[Endpoint, ProbeResult] = {}
        self._unapplied: dict[tuple[str, str], str] = {}
        self._proxy_ports: dict[str, frozenset[int]] = {}
        self._addresses: frozenset[IPAddress] | None = None
        self._current_since: datetime | None = None
        """Time since which results are current, if the process had no CPU time for seconds since the agent started
        (`Prober.on_cpu_stall`); older results are restored ones."""
        self._servers = [_ServerState() for _ in range(servers)]
        self._counter_sources: list[Callable[[], Counts]] = []

    def add_counters(self, *counting: Callable[[], Counts]) -> None:
        """Each report has what these return of this agent's own work."""
        self._counter_sources += counting

    def observe(self, news: Mapping[Endpoint, ProbeResult | None]) -> None:
        """Take new results; None means that the endpoint is no longer probed."""
        for endpoint, sighting in news.items():
            if sighting is None:
                self._results.pop(endpoint, None)
            else:
                self._results[endpoint] = next_result(self._results.get(endpoint), sighting)
        for told in self._servers:
            told.pending.update(dict.fromkeys(news))
            told.wakeup.set()

    def mark_stale(self) -> None:
        """Mark all results as older than a time without CPU (`Prober.on_cpu_stall`), so that they do not replace newer
        ones of other nodes. A server without newer ones uses them; otherwise members that are down would receive
        traffic when a server has just started."""
        self._current_since = datetime.now(UTC)

    def set_apply_error(self, dataplane: str, owner: Owner, error: str | None) -> None:
        """Record why an owner could not be applied; None means that it was."""
        key = dataplane, str(owner)
        before = self._unapplied.get(key)
        if error is None:
            self._unapplied.pop(key, None)
        else:
            self._unapplied[key] = error
        if before != error:
            for told in self._servers:
                told.wakeup.set()

    def set_proxy_ports(self, port_id: str, ports: frozenset[int] | None) -> None:
        """Record the ports that a proxy serves; None means that it does not run."""
        before = self._proxy_ports.get(port_id)
        if ports is None:
            self._proxy_ports.pop(port_id, None)
        else:
            self._proxy_ports[port_id] = ports
        if before != ports:
            for told in self._servers:
                told.wakeup.set()

    def set_own_addresses(self, addresses: frozenset[IPAddress]) -> None:
        """Record the host's own addresses among those routed to it."""
        before, self._addresses = self._addresses, addresses
        if before != addresses:
            for told in self._servers:
                told.wakeup.set()

    async def run(self) -> None:
        """Report to all servers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for index in range(len(self._servers)):
                tasks.create_task(self._report_to(index))

    async def _report_to(self, index: int) -> None:
        told, complaints = self._servers[index], LogOnce("reporting")
        remote, connection, loop = None, None, asyncio.get_running_loop()
        try:
            while True:
                if connection is None or self._remotes()[index] is not remote:
                    if connection is not None:
                        connection.close()
                    remote = self._remotes()[index]
                    connection = Connection(remote, RESPONSE_TIMEOUT)
                heartbeat, began = self._agent().heartbeat, loop.time()
                try:
                    more = await self.send_report(connection, told)
                except ServerError as error:
                    complaints.report(error, RETRY_INTERVAL)
                    await asyncio.sleep(min(RETRY_INTERVAL, heartbeat))
                    continue
                complaints.report_recovery()
                if not more:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(heartbeat):
                            await told.wakeup.wait()
                        await asyncio.sleep(began + MIN_REPORT_INTERVAL - loop.time())
        finally:
            if connection is not None:
                connection.close()

    async def send_report(self, connection: Connection, told: _ServerState) -> bool:
        """Send one report, and return whether more is to be sent immediately. Raises ServerError."""
        told.wakeup.clear()
        if told.is_full:
            told.pending = dict.fromkeys(self._results)
            told.rejected.clear()
        told.pending.update(told.rejected)
        told.rejected.clear()
        some = [endpoint for endpoint, _ in zip(told.pending, range(MAX_PROBE_RESULTS), strict=False)]
        sightings = {endpoint: self._results.get(endpoint) for endpoint in some}
        report = replace(self._build_report(sightings, whole=told.is_full), more=len(some) < len(told.pending))
        answer = await connection.request(*render_report(report))
        again = not told.is_full and answer["epoch"] != told.epoch
        told.epoch, told.is_full = answer["epoch"], again
        for endpoint, sighting in sightings.items():
            if self._results.get(endpoint) is sighting:
                told.pending.pop(endpoint, None)
        for refused, why in answer["refused"]:
            endpoint = read_endpoint(refused)
            if endpoint in self._results:
                told.rejected[endpoint] = None
                LOG.debug("a server rejected the probe result of %s: %s", endpoint, why)
        return again or bool(told.pending)

    def _build_report(self, sightings: ProbeResults, *, whole: bool) -> AgentReport:
        agent = self._agent()
        unapplied = tuple(
            ApplyFailure(dataplane=dataplane, owner=owner, error=error)
            for (dataplane, owner), error in sorted(self._unapplied.items())[:MAX_REPORTED_FAILURES]
        )
        agent = replace(agent, apply_failures=unapplied)
        serving = dict(self._proxy_ports)
        return AgentReport(
            agent=agent,
            probe_results=sightings,
            is_complete=whole,
            serving=serving,
            addresses=self._addresses,
            probing_since=self._current_since,
            counted={counter: number for counts in self._counter_sources for counter, number in counts().items()},
        )

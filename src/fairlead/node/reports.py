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

from fairlead.agent_protocol.reports import MOST_SIGHTINGS, Report, Sightings, read_endpoint, render_report
from fairlead.http.server_client import ServerError
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.agent import MOST_UNAPPLIED, Agent, Unapplied
from fairlead.model.documents.agent_counters import Counts
from fairlead.model.documents.health import Endpoint
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.probe_result import Sighting, after
from fairlead.node.connection import Connection, Remote
from fairlead.node.log_once import Complaints

LOG = logging.getLogger(__name__)
REPORT_PAUSE = 0.05
"""Minimum seconds between two reports: the first change is sent immediately, later ones are batched."""
ANSWER_PATIENCE = 10.0
AGAIN = 1.0
"""Retry interval in seconds; the heartbeat interval if that is less."""


@dataclass(slots=True, kw_only=True)
class _Told:
    """State of one server."""

    epoch: str = ""
    whole: bool = True
    """True if the next report is a full one."""
    pending: dict[Endpoint, None] = field(default_factory=dict)
    later: dict[Endpoint, None] = field(default_factory=dict)
    """Endpoints whose results were rejected."""
    wanted: asyncio.Event = field(default_factory=asyncio.Event)


class Reports:
    def __init__(self, agent: Callable[[], Agent], remotes: Callable[[], Sequence[Remote]], servers: int) -> None:
        """`agent` returns the agent's own data without unapplied owners; `remotes` returns the servers, `servers` of
        them."""
        self._agent = agent
        self._remotes = remotes
        self._seen: dict[Endpoint, Sighting] = {}
        self._unapplied: dict[tuple[str, str], str] = {}
        self._serving: dict[str, frozenset[int]] = {}
        self._addresses: frozenset[IPAddress] | None = None
        self._looks_since: datetime | None = None
        """Time since which results are current, if the process had no CPU time for seconds since the agent started
        (`Prober.overslept`); older results are restored ones."""
        self._told = [_Told() for _ in range(servers)]
        self._counting: list[Callable[[], Counts]] = []

    def count(self, *counting: Callable[[], Counts]) -> None:
        """Each report has what these return of this agent's own work."""
        self._counting += counting

    def observe(self, news: Mapping[Endpoint, Sighting | None]) -> None:
        """Take new results; None means that the endpoint is no longer probed."""
        for endpoint, sighting in news.items():
            if sighting is None:
                self._seen.pop(endpoint, None)
            else:
                self._seen[endpoint] = after(self._seen.get(endpoint), sighting)
        for told in self._told:
            told.pending.update(dict.fromkeys(news))
            told.wanted.set()

    def doubt(self) -> None:
        """Mark all results as older than a time without CPU (`Prober.overslept`), so that they do not replace newer
        ones of other nodes. A server without newer ones uses them; otherwise members that are down would receive
        traffic when a server has just started."""
        self._looks_since = datetime.now(UTC)

    def failed(self, dataplane: str, owner: Owner, error: str | None) -> None:
        """Record why an owner could not be applied; None means that it was."""
        key = dataplane, str(owner)
        before = self._unapplied.get(key)
        if error is None:
            self._unapplied.pop(key, None)
        else:
            self._unapplied[key] = error
        if before != error:
            for told in self._told:
                told.wanted.set()

    def serves(self, port_id: str, ports: frozenset[int] | None) -> None:
        """Record the ports that a proxy serves; None means that it does not run."""
        before = self._serving.get(port_id)
        if ports is None:
            self._serving.pop(port_id, None)
        else:
            self._serving[port_id] = ports
        if before != ports:
            for told in self._told:
                told.wanted.set()

    def has(self, addresses: frozenset[IPAddress]) -> None:
        """Record the host's own addresses among those routed to it."""
        before, self._addresses = self._addresses, addresses
        if before != addresses:
            for told in self._told:
                told.wanted.set()

    async def run(self) -> None:
        """Report to all servers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for index in range(len(self._told)):
                tasks.create_task(self._tell(index))

    async def _tell(self, index: int) -> None:
        told, complaints = self._told[index], Complaints("reporting")
        remote, connection, loop = None, None, asyncio.get_running_loop()
        try:
            while True:
                if connection is None or self._remotes()[index] is not remote:
                    if connection is not None:
                        connection.close()
                    remote = self._remotes()[index]
                    connection = Connection(remote, ANSWER_PATIENCE)
                heartbeat, began = self._agent().heartbeat, loop.time()
                try:
                    more = await self.tell(connection, told)
                except ServerError as error:
                    complaints.say(error, AGAIN)
                    await asyncio.sleep(min(AGAIN, heartbeat))
                    continue
                complaints.end()
                if not more:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(heartbeat):
                            await told.wanted.wait()
                        await asyncio.sleep(began + REPORT_PAUSE - loop.time())
        finally:
            if connection is not None:
                connection.close()

    async def tell(self, connection: Connection, told: _Told) -> bool:
        """Send one report, and return whether more is to be sent immediately. Raises ServerError."""
        told.wanted.clear()
        if told.whole:
            told.pending = dict.fromkeys(self._seen)
            told.later.clear()
        told.pending.update(told.later)
        told.later.clear()
        some = [endpoint for endpoint, _ in zip(told.pending, range(MOST_SIGHTINGS), strict=False)]
        sightings = {endpoint: self._seen.get(endpoint) for endpoint in some}
        report = replace(self._report(sightings, whole=told.whole), more=len(some) < len(told.pending))
        answer = await connection.ask(*render_report(report))
        again = not told.whole and answer["epoch"] != told.epoch
        told.epoch, told.whole = answer["epoch"], again
        for endpoint, sighting in sightings.items():
            if self._seen.get(endpoint) is sighting:
                told.pending.pop(endpoint, None)
        for refused, why in answer["refused"]:
            endpoint = read_endpoint(refused)
            if endpoint in self._seen:
                told.later[endpoint] = None
                LOG.debug("a server does not believe what was seen of %s: %s", endpoint, why)
        return again or bool(told.pending)

    def _report(self, sightings: Sightings, *, whole: bool) -> Report:
        agent = self._agent()
        unapplied = tuple(
            Unapplied(dataplane=dataplane, owner=owner, error=error)
            for (dataplane, owner), error in sorted(self._unapplied.items())[:MOST_UNAPPLIED]
        )
        agent = replace(agent, unapplied=unapplied)
        serving = dict(self._serving)
        return Report(
            agent=agent,
            sightings=sightings,
            whole=whole,
            serving=serving,
            addresses=self._addresses,
            looks_since=self._looks_since,
            counted={counter: number for counts in self._counting for counter, number in counts().items()},
        )

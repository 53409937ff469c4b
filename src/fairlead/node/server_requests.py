"""Requests of an agent to the servers: listener lookup, counters, neighbours, and keys and certificates of proxies.

The messages are declared in `agent_protocol/messages.py`, for both ends.
"""

import asyncio
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

from fairlead.agent_protocol.messages import (
    DesiredNeighbours,
    read_neighbours,
    render_counter_report,
    render_listener_lookup,
    render_neighbours_request,
)
from fairlead.api.agents.keys import MAX_SECRETS, read_keys, render_keys_request
from fairlead.http.server_client import ApiClient, ServerError
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.queries.neighbours import AnnouncedAddresses
from fairlead.model.queries.secrets import SecretRequest, SecretResponse
from fairlead.model.queries.statistics import MAX_SERVICES_PER_REQUEST, CountedService
from fairlead.node.threads import run_in_daemon_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportResult:
    unknown: Set[str]
    """Listeners unknown to all servers that answered."""
    failure: BaseException | None
    """Error of the first server that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLookup:
    listeners: Sequence[str | None]
    """Listener of each service; None if there is none."""
    proxied: Set[str]
    """Listeners among these that use proxies."""
    places: Sequence[str | None] = ()
    """Network, router or port of each service; None if it is not on this node. Empty if the server's release does not
    send them."""


class Servers:
    """All servers of a deployment."""

    def __init__(self, servers: Sequence[ApiClient]) -> None:
        self._servers = list(servers)

    async def find_listeners(self, chassis: str, services: Sequence[CountedService]) -> ListenerLookup:
        """Find the listeners of services. Raises ServerError."""
        found, places, proxied = list[str | None](), list[str | None](), set[str]()
        for first in range(0, len(services), MAX_SERVICES_PER_REQUEST):
            question = render_listener_lookup(chassis, services[first : first + MAX_SERVICES_PER_REQUEST])
            answer = await self._request(*question)
            found += answer["listeners"]
            places += answer.get("places", ())
            proxied.update(answer.get("proxied", ()))
        return ListenerLookup(listeners=found, proxied=proxied, places=places if len(places) == len(found) else ())

    async def report(self, chassis: str, interval: int, sums: Mapping[str, TrafficCounters]) -> ReportResult:
        """Send the sums to all servers, because each answers clients from its own memory."""
        report = render_counter_report(chassis, interval, sums)
        found = await asyncio.gather(
            *(asyncio.to_thread(server.request, *report) for server in self._servers), return_exceptions=True
        )
        unknown = [set(answer["unknown"]) for answer in found if not isinstance(answer, BaseException)]
        failure = next((answer for answer in found if isinstance(answer, BaseException)), None)
        return ReportResult(unknown=set.intersection(*unknown) if unknown else set(), failure=failure)

    async def poll_neighbours(
        self, chassis: str, digest: str, remembered: AnnouncedAddresses, wait: int
    ) -> DesiredNeighbours:
        """Long-poll the MACs that machines of this node should have for their neighbours (ARP, ND): until they differ
        from the digest, or for `wait` seconds. `remembered` are the addresses announced so far. Raises ServerError."""
        try:
            return read_neighbours(await self._request(*render_neighbours_request(chassis, digest, remembered, wait)))
        except ValueError as error:
            raise ServerError(f"invalid response of a server: {error}") from None

    async def fetch_keys(self, chassis: str, wanted: Sequence[SecretRequest]) -> list[SecretResponse]:
        """Fetch the current keys and certificates. Raises ServerError."""
        found = list[SecretResponse]()
        for first in range(0, len(wanted), MAX_SECRETS):
            some = wanted[first : first + MAX_SECRETS]
            answer = await self._request(*render_keys_request(chassis, some))
            try:
                found += read_keys(answer, len(some))
            except ValueError as error:
                raise ServerError(str(error)) from None
        return found

    async def _request(self, method: str, path: str, body: object) -> Any:
        """Send a request to the servers in turn until one answers, which becomes the first for the next request. Raises
        ServerError."""
        complaints = []
        for server in tuple(self._servers):
            try:
                answer = await run_in_daemon_thread(partial(server.request, method, path, body))
            except ServerError as error:
                complaints.append(error)
            else:
                self._servers.sort(key=lambda each: each is not server)
                return answer
        raise complaints[0]

"""Requests of an agent to the servers: listener lookup, counters, neighbours, and keys and certificates of proxies.

The messages are declared in `agent_protocol/messages.py`, for both ends.
"""

import asyncio
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

from fairlead.agent_protocol.messages import (
    HeardNeighbours,
    read_neighbours,
    render_neighbours_question,
    render_question,
    render_report,
)
from fairlead.api.agents.keys import MOST_ASKED, read_keys, render_keys_question
from fairlead.http.server_client import Server, ServerError
from fairlead.model.documents.traffic_counters import Figures
from fairlead.model.queries.neighbours import Remembered
from fairlead.model.queries.secrets import Found, Wanted
from fairlead.model.queries.statistics import MOST_SERVICES, CountedService
from fairlead.node.threads import beside


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    unknown: Set[str]
    """Listeners unknown to all servers that answered."""
    failure: BaseException | None
    """Error of the first server that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    listeners: Sequence[str | None]
    """Listener of each service; None if there is none."""
    proxied: Set[str]
    """Listeners among these that use proxies."""
    places: Sequence[str | None] = ()
    """Network, router or port of each service; None if it is not on this node. Empty if the server's release does not
    send them."""


class Servers:
    """All servers of a deployment."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = list(servers)

    async def ask_whose(self, chassis: str, services: Sequence[CountedService]) -> Whose:
        """Find the listeners of services. Raises ServerError."""
        found, places, proxied = list[str | None](), list[str | None](), set[str]()
        for first in range(0, len(services), MOST_SERVICES):
            question = render_question(chassis, services[first : first + MOST_SERVICES])
            answer = await self._ask_one(*question)
            found += answer["listeners"]
            places += answer.get("places", ())
            proxied.update(answer.get("proxied", ()))
        return Whose(listeners=found, proxied=proxied, places=places if len(places) == len(found) else ())

    async def tell(self, chassis: str, interval: int, sums: Mapping[str, Figures]) -> Told:
        """Send the sums to all servers, because each answers clients from its own memory."""
        report = render_report(chassis, interval, sums)
        found = await asyncio.gather(
            *(asyncio.to_thread(server.ask, *report) for server in self._servers), return_exceptions=True
        )
        unknown = [set(answer["unknown"]) for answer in found if not isinstance(answer, BaseException)]
        failure = next((answer for answer in found if isinstance(answer, BaseException)), None)
        return Told(unknown=set.intersection(*unknown) if unknown else set(), failure=failure)

    async def hear(self, chassis: str, digest: str, remembered: Remembered, wait: int) -> HeardNeighbours:
        """Receive the desired neighbours as soon as they differ from the digest, or after `wait` seconds. Raises
        ServerError."""
        try:
            return read_neighbours(await self._ask_one(*render_neighbours_question(chassis, digest, remembered, wait)))
        except ValueError as error:
            raise ServerError(f"a server's answer cannot be read: {error}") from None

    async def ask_keys(self, chassis: str, wanted: Sequence[Wanted]) -> list[Found]:
        """Fetch the current keys and certificates. Raises ServerError."""
        found = list[Found]()
        for first in range(0, len(wanted), MOST_ASKED):
            some = wanted[first : first + MOST_ASKED]
            answer = await self._ask_one(*render_keys_question(chassis, some))
            try:
                found += read_keys(answer, len(some))
            except ValueError as error:
                raise ServerError(str(error)) from None
        return found

    async def _ask_one(self, method: str, path: str, body: object) -> Any:
        """Send a request to the servers in turn until one answers, which becomes the first for the next request. Raises
        ServerError."""
        complaints = []
        for server in tuple(self._servers):
            try:
                answer = await beside(partial(server.ask, method, path, body))
            except ServerError as error:
                complaints.append(error)
            else:
                self._servers.sort(key=lambda each: each is not server)
                return answer
        raise complaints[0]

"""What an agent says to servers: it asks whose the addresses are that it has counted for, tells its sums, asks for
news of its machines' neighbours, and for the keys and certificates of its proxies.

The messages are declared in `api/agent_messages.py`, for both ends.
"""

import asyncio
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

from fairlead.api.agent_keys import MOST_ASKED, read_keys, render_keys_question
from fairlead.api.agent_messages import (
    HeardNeighbours,
    read_neighbours,
    render_neighbours_question,
    render_question,
    render_report,
)
from fairlead.client import Server, ServerError
from fairlead.model.figures import Figures
from fairlead.model.neighbours import Remembered
from fairlead.model.secrets import Found, Wanted
from fairlead.model.statistics import MOST_SERVICES, CountedService
from fairlead.node.threads import beside


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    unknown: Set[str]
    """The listeners that none of the servers knows that have answered."""
    failure: BaseException | None
    """Of the first server that was not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    listeners: Sequence[str | None]
    """Of each service; None for what is nobody's."""
    proxied: Set[str]
    """Those of them that lead to proxies."""
    places: Sequence[str | None] = ()
    """The network, router or port that the place of each service is; None: none of this node. Empty: the server is of
    a version that does not name them."""


class Servers:
    """All servers of a deployment."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = list(servers)

    async def ask_whose(self, chassis: str, services: Sequence[CountedService]) -> Whose:
        """Raises ServerError."""
        found, places, proxied = list[str | None](), list[str | None](), set[str]()
        for first in range(0, len(services), MOST_SERVICES):
            question = render_question(chassis, services[first : first + MOST_SERVICES])
            answer = await self._ask_one(*question)
            found += answer["listeners"]
            places += answer.get("places", ())
            proxied.update(answer.get("proxied", ()))
        return Whose(listeners=found, proxied=proxied, places=places if len(places) == len(found) else ())

    async def tell(self, chassis: str, interval: int, sums: Mapping[str, Figures]) -> Told:
        """Tell all servers: each answers for itself what clients ask."""
        report = render_report(chassis, interval, sums)
        found = await asyncio.gather(
            *(asyncio.to_thread(server.ask, *report) for server in self._servers), return_exceptions=True
        )
        unknown = [set(answer["unknown"]) for answer in found if not isinstance(answer, BaseException)]
        failure = next((answer for answer in found if isinstance(answer, BaseException)), None)
        return Told(unknown=set.intersection(*unknown) if unknown else set(), failure=failure)

    async def hear(self, chassis: str, digest: str, remembered: Remembered, wait: int) -> HeardNeighbours:
        """By which MACs neighbours have to be known, as soon as that is not what the digest is of, or after `wait`
        seconds. Raises ServerError."""
        try:
            return read_neighbours(await self._ask_one(*render_neighbours_question(chassis, digest, remembered, wait)))
        except ValueError as error:
            raise ServerError(f"a server's answer cannot be read: {error}") from None

    async def ask_keys(self, chassis: str, wanted: Sequence[Wanted]) -> list[Found]:
        """What each is now. Raises ServerError."""
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
        """The first server that answers knows, and is asked first the next time. Raises ServerError."""
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

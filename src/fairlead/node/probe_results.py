"""Probe results of this node, stored in a file; they are valid until there are newer ones.

If an agent restarts while a server starts, no process would know which members are down, and these would receive
traffic until they have failed again. An agent therefore reports its stored results first.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from fairlead.agent_protocol.probe_results_file import read_sightings, write_sightings
from fairlead.model.documents.agent import Agent
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.probe_result import Sighting
from fairlead.node.connection import Remote
from fairlead.node.log_once import Complaints
from fairlead.node.reports import Reports
from fairlead.node.threads import beside

GATHER, AGAIN = 0.05, 2.0
"""Seconds that probe verdicts are batched before a write, and retry interval of a failed write."""


def sightings_path(path: Path) -> Path:
    """Return the path of the results, beside the file of the counters."""
    return path.with_name(f"{path.stem}.sightings.json")


class KeptReports(Reports):
    def __init__(
        self, path: Path, agent: Callable[[], Agent], remotes: Callable[[], Sequence[Remote]], servers: int
    ) -> None:
        """Like `Reports`, beginning with the results in the file."""
        super().__init__(agent, remotes, servers)
        self._path = path
        self._news = asyncio.Event()
        super().observe(read_sightings(path))

    def observe(self, news: Mapping[Endpoint, Sighting | None]) -> None:
        before = {endpoint: self._health(endpoint) for endpoint in news}
        super().observe(news)
        if any(self._health(endpoint) is not health for endpoint, health in before.items()):
            self._news.set()

    def _health(self, endpoint: Endpoint) -> Health | None:
        seen = self._seen.get(endpoint)
        return None if seen is None else seen.health

    def probes_only(self, endpoints: Collection[Endpoint]) -> None:
        """Drop results from the file for endpoints that are not probed here."""
        self.observe(dict.fromkeys(self._seen.keys() - set(endpoints)))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run())
            tasks.create_task(self._keep())

    async def _keep(self) -> None:
        complaints = Complaints("keeping what is seen")
        while True:
            await self._news.wait()
            self._news.clear()
            kept = tuple(self._seen.items())
            try:
                await beside(partial(write_sightings, self._path, kept))
            except OSError as error:
                complaints.say(error, AGAIN)
                self._news.set()
                await asyncio.sleep(AGAIN)
            else:
                complaints.end()
                await asyncio.sleep(GATHER)

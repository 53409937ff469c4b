"""What this node saw of whoever it probes, kept in a file: it holds until it sees something else.

Servers keep what agents see in memory alone. Where a server and the agents end together nobody would know any more who
is dead, and the dead would serve until they have failed again. So an agent that begins tells what it saw last.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from fairlead.api.agent_reports import read_endpoint
from fairlead.model.agent import Agent
from fairlead.model.health import Endpoint
from fairlead.model.sighting import Sighting
from fairlead.node.complaints import Complaints
from fairlead.node.connection import Remote
from fairlead.node.reporting import Reports
from fairlead.node.state import write_whole
from fairlead.node.threads import beside
from fairlead.store.codec import encode_value, read_value

LOG = logging.getLogger(__name__)
GATHER, AGAIN = 0.05, 2.0
"""Seconds for which verdicts are gathered, and until what could not be written is tried again."""


def sightings_path(path: Path) -> Path:
    """Beside the file of the sums."""
    return path.with_name(f"{path.stem}.sightings.json")


def read_sightings(path: Path) -> dict[Endpoint, Sighting]:
    """What an earlier agent left; nothing when there is no file, or none that can be read."""
    try:
        return {
            read_endpoint(endpoint): read_value(seen, Sighting)
            for endpoint, seen in msgspec.json.decode(path.read_bytes(), type=list[tuple[list[object], object]])
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        LOG.warning("%s cannot be read (%s); nothing is known of members until they are probed", path, error)
        return {}


def _write(path: Path, kept: Sequence[tuple[Endpoint, Sighting]]) -> None:
    """Raises OSError."""
    write_whole(path, encode_value(kept))


class KeptReports(Reports):
    def __init__(
        self, path: Path, agent: Callable[[], Agent], remotes: Callable[[], Sequence[Remote]], servers: int
    ) -> None:
        """As `Reports`; what the file has is told first."""
        super().__init__(agent, remotes, servers)
        self._path = path
        self._kept = read_sightings(path)
        self._news = asyncio.Event()
        super().observe(self._kept)

    def observe(self, news: Mapping[Endpoint, Sighting | None]) -> None:
        super().observe(news)
        for endpoint, seen in news.items():
            before = self._kept.pop(endpoint, None)
            if seen is not None:
                self._kept[endpoint] = seen
            if (before and before.health) is not (seen and seen.health):
                self._news.set()

    def probes_only(self, endpoints: Collection[Endpoint]) -> None:
        """Of others that the file has nothing is known any more: they are not probed here now."""
        self.observe(dict.fromkeys(self._kept.keys() - set(endpoints)))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run())
            tasks.create_task(self._keep())

    async def _keep(self) -> None:
        complaints = Complaints("keeping what is seen")
        while True:
            await self._news.wait()
            self._news.clear()
            kept = tuple(self._kept.items())
            try:
                await beside(partial(_write, self._path, kept))
            except OSError as error:
                complaints.say(error, AGAIN)
                self._news.set()
                await asyncio.sleep(AGAIN)
            else:
                complaints.end()
                await asyncio.sleep(GATHER)

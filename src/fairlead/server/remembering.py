"""What agents have told a server, in a file of its own: it holds until somebody has seen something newer.

A server that begins knows nothing of members, and whoever is unknown serves. Agents tell again what they saw; but one
may be away for long, and of what it saw in the place of another a server believes nothing before it knows who is
silent. So a server keeps what would be something else if it were not known: who is down, and who answers that is
nobody's port. What a node had seen that has fallen silent is known to all servers (`model/silence.py`).
The rest is no part of the model: each server has what it was told, and what agents tell goes before it.
"""

import asyncio
import logging
import time
from pathlib import Path

from fairlead.api.sightings_file import read_sightings, write_sightings
from fairlead.model.facts import SIGHTINGS
from fairlead.model.health import Endpoint, Health
from fairlead.model.sighting import Sighting
from fairlead.model.snapshot import Snapshot
from fairlead.resting import in_steps
from fairlead.store.model import Model, Published

LOG = logging.getLogger(__name__)
FILE = "sightings.json"
GATHER, AGAIN = 0.05, 2.0
"""Seconds for which news are gathered, and until what could not be written is tried again."""
REST = 10
"""After it was written it is not written for so many times as long as that took: ten thousand take a while."""


class Remembered:
    def __init__(self, path: Path, model: Model) -> None:
        self._path = path
        self._model = model
        self._seen: dict[Endpoint, Sighting] = {}
        self._news = asyncio.Event()

    async def recall(self) -> None:
        """Before anybody is heard, and when the model has been read: of what nobody asks any more nothing is known."""
        found = read_sightings(self._path)
        for node in self._model.snapshot.silent_nodes.values():  # nobody tells it again
            found.update(
                (each, seen) for each, seen in node.seen if each not in found or found[each].since < seen.since
            )
        self._seen = {endpoint: seen for endpoint, seen in found.items() if _is_asked(self._model.snapshot, endpoint)}
        if self._seen:
            LOG.info("%d members and replicas are remembered as they were seen last", len(self._seen))
            await in_steps(self._model.observe(SIGHTINGS, dict(self._seen)))
        self._model.watch(self._take)

    def _take(self, published: Published) -> None:
        if published.fact is not SIGHTINGS:
            return
        for endpoint, seen in published.news.items():
            before = self._seen.pop(endpoint, None)
            after = seen if seen is not None and _matters(endpoint, seen.health) else None
            if after is not None:
                self._seen[endpoint] = after
            if (before and before.health) is not (after and after.health):
                self._news.set()

    async def keep(self) -> None:
        """Until it is cancelled."""
        fails = False
        while True:
            await self._news.wait()
            self._news.clear()
            kept, began = tuple(self._seen.items()), time.monotonic()
            try:
                await asyncio.to_thread(write_sightings, self._path, kept)
            except OSError as error:
                if not fails:
                    LOG.warning("what agents see cannot be kept (%s); trying again every %g s", error, AGAIN)
                fails = True
                self._news.set()
                await asyncio.sleep(AGAIN)
            else:
                fails = False
                await asyncio.sleep(max(GATHER, REST * (time.monotonic() - began)))


def _matters(endpoint: Endpoint, health: Health) -> bool:
    """Who is nobody's port is down until somebody has seen it answer, and all others serve until they do not."""
    return health is (Health.ERROR if endpoint.port_id else Health.ONLINE)


def _is_asked(snapshot: Snapshot, endpoint: Endpoint) -> bool:
    """Whether whoever asked is still there. What it asks for rests on networks of others, which were not read yet."""
    return endpoint.asker in snapshot.monitor_owner or endpoint.asker in snapshot.local_ips

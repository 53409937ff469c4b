"""Probe results of agents, saved in a file over restarts of a server, until newer ones arrive.

A new server has no probe results, and unknown members are used. Agents resend theirs, but one may be offline for long,
and its results of delegated probes are not accepted before the unresponsive nodes are known. So a server saves the
results that differ from the default for unknown members: members that are down, and members without a port that are up.
The results of nodes that became unresponsive are known to all servers (`model/documents/unresponsive_nodes.py`).

The file is no part of the model: each server saves what it received, and newer reports of agents override it.
"""

import asyncio
import logging
import time
from pathlib import Path

from fairlead.agent_protocol.probe_results_file import read_probe_results, write_probe_results
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.model.registry.facts import PROBE_RESULTS
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.cooperative import run_in_steps
from fairlead.store.model import Model, Published

LOG = logging.getLogger(__name__)
FILE = "sightings.json"
BATCH_DELAY, RETRY_INTERVAL = 0.05, 2.0
"""Seconds to collect changes for one write, and between attempts after a failed write."""
REST = 10
"""Pause after a write as a multiple of its duration: ten thousand results take a while."""


class ProbeResultCache:
    def __init__(self, path: Path, model: Model) -> None:
        self._path = path
        self._model = model
        self._seen: dict[Endpoint, ProbeResult] = {}
        self._changed = asyncio.Event()

    async def load(self) -> None:
        """Load the file, after the model and before agents connect. Drops results that no monitor needs any more."""
        found = read_probe_results(self._path)
        for node in self._model.snapshot.unresponsive_nodes.values():  # these nodes do not resend their results
            found.update(
                (each, seen) for each, seen in node.seen if each not in found or found[each].since < seen.since
            )
        self._seen = {endpoint: seen for endpoint, seen in found.items() if _is_asked(self._model.snapshot, endpoint)}
        if self._seen:
            LOG.info("loaded the last probe results of %d members and replicas", len(self._seen))
            await run_in_steps(self._model.observe(PROBE_RESULTS, dict(self._seen)))
        self._model.watch(self._take)

    def _take(self, published: Published) -> None:
        if published.fact is not PROBE_RESULTS:
            return
        for endpoint, seen in published.update.items():
            before = self._seen.pop(endpoint, None)
            after = seen if seen is not None and _matters(endpoint, seen.health) else None
            if after is not None:
                self._seen[endpoint] = after
            if (before and before.health) is not (after and after.health):
                self._changed.set()

    async def save_changes(self) -> None:
        """Write changes until cancelled."""
        fails = False
        while True:
            await self._changed.wait()
            self._changed.clear()
            kept, began = tuple(self._seen.items()), time.monotonic()
            try:
                await asyncio.to_thread(write_probe_results, self._path, kept)
            except OSError as error:
                if not fails:
                    LOG.warning("cannot save probe results (%s); retrying every %g s", error, RETRY_INTERVAL)
                fails = True
                self._changed.set()
                await asyncio.sleep(RETRY_INTERVAL)
            else:
                fails = False
                await asyncio.sleep(max(BATCH_DELAY, REST * (time.monotonic() - began)))


def _matters(endpoint: Endpoint, health: Health) -> bool:
    """Whether the result differs from the default: members without a port are down, others up."""
    return health is (Health.ERROR if endpoint.port_id else Health.ONLINE)


def _is_asked(snapshot: Snapshot, endpoint: Endpoint) -> bool:
    """Whether the endpoint's monitor still exists. Its targets are not compared, because they may be on unmanaged
    networks, which are read later."""
    return endpoint.monitor_id in snapshot.monitor_owner or endpoint.monitor_id in snapshot.local_ips

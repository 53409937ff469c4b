"""Probe results of this node, stored in a file; they are valid until there are newer ones.

If an agent restarts while a server starts, no process would know which members are down, and these would receive
traffic until they have failed again. An agent therefore reports its stored results first.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from fairlead.agent_protocol.probe_results_file import read_probe_results, write_probe_results
from fairlead.model.documents.agent import Agent
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.node.connection import Remote
from fairlead.node.log_once import LogOnce
from fairlead.node.reports import Reports
from fairlead.node.threads import run_in_daemon_thread

BATCH_SECONDS, RETRY_INTERVAL = 0.05, 2.0
"""Seconds that probe verdicts are batched before a write, and retry interval of a failed write."""


def probe_results_path(path: Path) -> Path:
    """Return the path of the results, beside the file of the counters."""
    return path.with_name(f"{path.stem}.sightings.json")


class PersistentReports(Reports):
    def __init__(
        self, path: Path, agent: Callable[[], Agent], remotes: Callable[[], Sequence[Remote]], servers: int
    ) -> None:
        """Like `Reports`, beginning with the results in the file."""
        super().__init__(agent, remotes, servers)
        self._path = path
        self._changed = asyncio.Event()
        super().observe(read_probe_results(path))

    def observe(self, news: Mapping[Endpoint, ProbeResult | None]) -> None:
        before = {endpoint: self._health(endpoint) for endpoint in news}
        super().observe(news)
        if any(self._health(endpoint) is not health for endpoint, health in before.items()):
            self._changed.set()

    def _health(self, endpoint: Endpoint) -> Health | None:
        seen = self._results.get(endpoint)
        return None if seen is None else seen.health

    def retain_only(self, endpoints: Collection[Endpoint]) -> None:
        """Drop results from the file for endpoints that are not probed here."""
        self.observe(dict.fromkeys(self._results.keys() - set(endpoints)))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run())
            tasks.create_task(self._write_periodically())

    async def _write_periodically(self) -> None:
        complaints = LogOnce("writing probe results")
        while True:
            await self._changed.wait()
            self._changed.clear()
            kept = tuple(self._results.items())
            try:
                await run_in_daemon_thread(partial(write_probe_results, self._path, kept))
            except OSError as error:
                complaints.report(error, RETRY_INTERVAL)
                self._changed.set()
                await asyncio.sleep(RETRY_INTERVAL)
            else:
                complaints.report_recovery()
                await asyncio.sleep(BATCH_SECONDS)

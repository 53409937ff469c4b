"""Stores the reports of nodes that became unresponsive for all servers, and deletes them when the nodes reconnect.

The leader does so. If it never received the node's reports, a server that has does. Each server stores a node once per
outage, so two servers do not alternate endlessly if only one of them receives the node.

Without a central dataplane every server may: each change is guarded by the document that was read, and is not needed
after another server has made it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from fairlead.api.agents.liveness import NodeAgents
from fairlead.api.agents.traffic_counters import NodeCounts
from fairlead.changes.unresponsive_nodes import delete_unresponsive_node, has_room, is_obsolete, store_unresponsive_node
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.documents.health import Endpoint
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.model.documents.unresponsive_nodes import MAX_STORED_TOTAL, UnresponsiveNode
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import Steps
from fairlead.store.interface import StoreError
from fairlead.store.model import Model

LOG = logging.getLogger(__name__)
CHECK_INTERVAL = 1.0
"""Seconds between checks."""
OTHERS = 30.0
"""Seconds that a standby waits, because the leader is expected to do it."""
MAX_BATCH = 20
"""Maximum nodes per check. If more fail together (a rack without power), the rest wait for other writes."""


class UnresponsiveNodes:
    def __init__(
        self,
        model: Model,
        counts: NodeCounts,
        agents: NodeAgents,
        writes: Callable[[], bool],
        now: Callable[[], datetime],
    ) -> None:
        self._model = model
        self._counts = counts
        self._agents = agents
        self._writes = writes
        self._now = now
        self._kept: dict[str, datetime] = {}
        """Node -> start of the outage with reports that this server has stored."""
        self._taken: Mapping[str, UnresponsiveNode] = {}

    async def run(self) -> None:
        """Run until cancelled; retries while the store is unavailable."""
        while True:
            try:
                await self.check()
            except (StoreError, Unsupported) as error:
                LOG.warning("cannot store the last reports of unresponsive nodes: %s", error)
            await asyncio.sleep(CHECK_INTERVAL)

    async def check(self) -> None:
        """Store new unresponsive nodes and delete reconnected ones. Raises StoreError."""
        await self._take()
        silent = self._counts.unresponsive()
        self._kept = {chassis: since for chassis, since in self._kept.items() if chassis in silent}
        if not silent and not self._model.snapshot.unresponsive_nodes:
            return
        writes = self._writes()
        due = [chassis for chassis, seconds in silent.items() if seconds > (0 if writes else OTHERS)]
        await self._keep_some(
            [chassis for chassis in due if self._kept.get(chassis) != self._counts.last_report_at(chassis)]
        )
        if writes:
            await self._forget_some()

    async def _take(self) -> None:
        """Take over stored probe results that this server never received, or has forgotten."""
        stored, known = self._model.snapshot.unresponsive_nodes, self._taken
        if stored is known:
            return
        self._taken = stored
        for name, node in stored.items():
            if node is not known.get(name):
                await self._agents.restore(dict(node.seen))

    async def _keep_some(self, due: Sequence[str]) -> None:
        for chassis in due[:MAX_BATCH]:
            words = await run_in_steps(self._counts.stored_report(chassis))
            node = replace(words, seen=await run_in_steps(self._seen_by(chassis)))
            after = await self._model.write(partial(_keep, node=node))
            self._kept[chassis] = node.since
            if not has_room(after, node):
                LOG.warning(
                    "the last report of unresponsive chassis %s is not stored: the limit of %d entries of all nodes is"
                    " reached",
                    chassis,
                    MAX_STORED_TOTAL,
                )

    async def _forget_some(self) -> None:
        snapshot = self._model.snapshot
        nodes = snapshot.unresponsive_nodes.values()
        over = [
            each for each in nodes if self._counts.is_responsive(each.name) or is_obsolete(snapshot, each, self._now())
        ]
        for node in over[:MAX_BATCH]:
            await self._model.write(partial(delete_unresponsive_node, node=node))

    def _seen_by(self, chassis: str) -> Steps[tuple[tuple[Endpoint, ProbeResult], ...]]:
        found = []
        for endpoint, each in self._model.snapshot.sightings.items():
            if each.chassis == chassis:
                found.append((endpoint, each))
            yield
        return tuple(found)


async def _keep(snapshot: Snapshot, node: UnresponsiveNode) -> Changes:
    return await run_in_steps(store_unresponsive_node(snapshot, node))

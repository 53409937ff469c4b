"""Server side of the node agents: the push channel, and the agents' reports."""

import asyncio
import secrets
from dataclasses import dataclass, field

from fairlead.api.agents.liveness import NodeAgents
from fairlead.api.agents.push_channel import PushChannel
from fairlead.model.documents.owner import Kind
from fairlead.store.model import Model, Published

POLL_INTERVAL = 0.5
"""Seconds between two searches for stale agents."""


@dataclass(slots=True)
class NeighbourCounters:
    """Counters of the neighbour long polls."""

    waiting: int = 0
    """Pending long polls."""
    changed: int = 0
    """Answers with changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRegistry:
    channel: PushChannel
    agents: NodeAgents
    neighbours: NeighbourCounters = field(default_factory=NeighbourCounters)
    revoked: set[str] = field(default_factory=set)
    """Chassis with revoked certificates; their agents will be forgotten."""

    @classmethod
    def of(cls, model: Model) -> "NodeRegistry":
        channel = PushChannel(model, secrets.token_hex(8))
        nodes = cls(channel=channel, agents=NodeAgents(model, channel.chassis_reaching))
        model.watch(nodes.handle_identity_changes)
        return nodes

    def handle_identity_changes(self, news: Published) -> None:
        """Close the streams of nodes that were revoked or enrolled again."""
        for owner in news.documents:
            if owner.kind is Kind.NODE and owner.id in news.before.nodes:
                if owner.id not in news.after.nodes:
                    self.channel.remove(owner.id)
                    self.revoked.add(owner.id)
                elif news.after.nodes[owner.id].enrolled_at != news.before.nodes[owner.id].enrolled_at:
                    self.channel.remove(owner.id)

    async def find_stale_agents(self) -> None:
        """Search for stale agents until cancelled."""
        while True:
            await asyncio.sleep(POLL_INTERVAL)
            while self.revoked:
                await self.agents.forget(self.revoked.pop())
            await self.agents.find_stale()

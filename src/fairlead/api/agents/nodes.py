"""Server side of the node agents: the push channel, and the agents' reports."""

import asyncio
import secrets
from dataclasses import dataclass, field

from fairlead.api.agents.liveness import NodeAgents
from fairlead.api.agents.push_channel import Channel
from fairlead.model.documents.owner import Kind
from fairlead.store.model import Model, Published

LOOK = 0.5
"""Seconds between two searches for stale agents."""


@dataclass(slots=True)
class NeighbourFigures:
    """Counters of the neighbour long polls."""

    waiting: int = 0
    """Pending long polls."""
    told: int = 0
    """Answers with changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    channel: Channel
    agents: NodeAgents
    neighbours: NeighbourFigures = field(default_factory=NeighbourFigures)
    revoked: set[str] = field(default_factory=set)
    """Chassis with revoked certificates; their agents will be forgotten."""

    @classmethod
    def of(cls, model: Model) -> "Nodes":
        channel = Channel(model, secrets.token_hex(8))
        nodes = cls(channel=channel, agents=NodeAgents(model, channel.near))
        model.watch(nodes.revoke)
        return nodes

    def revoke(self, news: Published) -> None:
        """Close the streams of nodes that were revoked or enrolled again."""
        for owner in news.documents:
            if owner.kind is Kind.NODE and owner.id in news.before.nodes:
                if owner.id not in news.after.nodes:
                    self.channel.end(owner.id)
                    self.revoked.add(owner.id)
                elif news.after.nodes[owner.id].enrolled_at != news.before.nodes[owner.id].enrolled_at:
                    self.channel.end(owner.id)

    async def look(self) -> None:
        """Search for stale agents until cancelled."""
        while True:
            await asyncio.sleep(LOOK)
            while self.revoked:
                await self.agents.forget(self.revoked.pop())
            await self.agents.look()

"""What a server has for the agents of nodes: the channel on which they are told, and what they tell."""

import asyncio
import secrets
from dataclasses import dataclass, field

from fairlead.api.agent_channel import Channel
from fairlead.api.node_agents import NodeAgents
from fairlead.model.owner import Kind
from fairlead.store.model import Model, Published

LOOK = 0.5
"""Seconds between two looks for agents that have fallen silent."""


@dataclass(slots=True)
class NeighbourFigures:
    """Of nodes that ask by which MACs their machines have to know their neighbours, to announce them."""

    waiting: int = 0
    """Nodes whose question waits for news."""
    told: int = 0
    """Answers that were news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    channel: Channel
    agents: NodeAgents
    neighbours: NeighbourFigures = field(default_factory=NeighbourFigures)
    revoked: set[str] = field(default_factory=set)
    """Whose agents are to be forgotten."""

    @classmethod
    def of(cls, model: Model) -> "Nodes":
        channel = Channel(model, secrets.token_hex(8))
        nodes = cls(channel=channel, agents=NodeAgents(model, channel.near))
        model.watch(nodes.revoke)
        return nodes

    def revoke(self, news: Published) -> None:
        """Who is known no more, or by other certificates, listens no more, from this moment."""
        for owner in news.documents:
            if owner.kind is Kind.NODE and owner.id in news.before.nodes:
                if owner.id not in news.after.nodes:
                    self.channel.end(owner.id)
                    self.revoked.add(owner.id)
                elif news.after.nodes[owner.id].enrolled_at != news.before.nodes[owner.id].enrolled_at:
                    self.channel.end(owner.id)

    async def look(self) -> None:
        """Until it is cancelled: who has fallen silent."""
        while True:
            await asyncio.sleep(LOOK)
            while self.revoked:
                await self.agents.forget(self.revoked.pop())
            await self.agents.look()

"""Both ends of the channel to agents, without a connection between them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fairlead.agent_protocol.reports import Report
from fairlead.agent_protocol.slice_lines import Slice, read_line
from fairlead.api.agents.liveness import NodeAgents
from fairlead.api.agents.push_channel import Channel
from fairlead.api.agents.watch_buffer import Watch
from fairlead.model.documents.agent import Agent
from fairlead.model.documents.owner import Owner
from fairlead.model.registry.changeset import Changes
from fairlead.runtime.steps import Steps, at_once
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.language import parse_model
from harness.waiting import eventually

TEXT = """\
network pool announced 203.0.113.0/24
network net1 10.0.0.0/24
host one 1 10.20.0.21 10.1.0.0/24
host two 2 10.20.0.22 10.2.0.0/24
web vip=203.0.113.5 on=pool provider=native http:80{proxy=2000}=a/10.1.0.11:8080
api vip=203.0.113.6 on=pool provider=native project=alice http:80{proxy=2000}=a/10.1.0.12:8080
"""


@dataclass
class Listener:
    """The agent's end of the channel."""

    channel: Channel
    slice: Slice
    watch: Watch | None = None
    concerned: list[Owner] = field(default_factory=list)
    lists: int = 0
    received: int = 0

    def listen(self) -> None:
        self.watch = self.channel.follow(self.slice.name)
        missed = self.channel.missed(self.slice.name, self.slice.cursor)
        pieces = [missed] if missed is not None else self.channel.whole(self.slice.name)
        for piece in (*pieces, *self.watch.waiting):
            self.take(piece)
        self.watch.waiting.clear()
        self.watch.write = self.take

    def hang_up(self) -> None:
        self.channel.leave(self.watch)
        self.slice.interrupted()

    def take(self, message: bytes) -> None:
        at_once(self.taking(message))

    def taking(self, message: bytes) -> Steps[None]:
        """Process a message, with cooperative yields."""
        self.received += len(message)
        for text in message.splitlines():
            line = read_line(text)
            self.lists += line.list is not None
            self.concerned += yield from self.slice.take(line)


@dataclass
class Server:
    """Parts of a server that receive agents' reports and send slices."""

    model: Model
    channel: Channel
    agents: NodeAgents

    async def hear(self, name: str, serving: dict[str, frozenset[int]]) -> None:
        await self.agents.hear(Report(agent=seen(name), sightings={}, whole=True, serving=serving))
        await self.rest()

    async def rest(self) -> None:
        at_once(self.channel.looking())
        await eventually(lambda: not self.channel.writing)


def seen(name: str) -> Agent:
    return Agent(name=name, since=datetime(2026, 1, 1, tzinfo=UTC), heartbeat=5.0)


@asynccontextmanager
async def server(folder: Path, epoch: str = "first") -> AsyncIterator[Server]:
    store = await SqliteStore.open(folder / "store.db")
    model = await Model.load(store, check=lambda snapshot, owner: None)
    channel = Channel(model, epoch, frame=bytes)
    if not model.snapshot.hosts:
        await model.write(lambda _: Changes(puts=tuple(parse_model(TEXT, {})[0].values())))
    try:
        yield Server(model, channel, NodeAgents(model, channel.near))
    finally:
        await store.close()

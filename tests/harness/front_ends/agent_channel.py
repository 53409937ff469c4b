"""Both ends of the channel to agents, without a connection between them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fairlead.agent_protocol.reports import AgentReport
from fairlead.agent_protocol.slice_lines import SliceBuilder, read_line
from fairlead.api.agents.liveness import NodeAgents
from fairlead.api.agents.push_channel import PushChannel
from fairlead.api.agents.watch_buffer import Watch
from fairlead.model.documents.agent import Agent
from fairlead.model.documents.owner import Owner
from fairlead.model.registry.changeset import Changes
from fairlead.runtime.steps import Steps, run_to_completion
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.language import parse_model
from harness.waiting import eventually

MODEL_TEXT = """\
network pool announced 203.0.113.0/24
network net1 10.0.0.0/24
host one 1 10.20.0.21 10.1.0.0/24
host two 2 10.20.0.22 10.2.0.0/24
web vip=203.0.113.5 on=pool provider=native http:80{proxy=2000}=a/10.1.0.11:8080
api vip=203.0.113.6 on=pool provider=native project=alice http:80{proxy=2000}=a/10.1.0.12:8080
"""


@dataclass
class AgentEnd:
    """The agent's end of the channel."""

    channel: PushChannel
    slice: SliceBuilder
    watch: Watch | None = None
    notified_owners: list[Owner] = field(default_factory=list)
    listing_count: int = 0
    received: int = 0

    def listen(self) -> None:
        self.watch = self.channel.open_watch(self.slice.name)
        missed = self.channel.messages_after(self.slice.name, self.slice.cursor)
        pieces = [missed] if missed is not None else self.channel.full_slice(self.slice.name)
        for piece in (*pieces, *self.watch.buffered):
            self.receive_message(piece)
        self.watch.buffered.clear()
        self.watch.write = self.receive_message

    def disconnect(self) -> None:
        self.channel.close_watch(self.watch)
        self.slice.drop_incomplete()

    def receive_message(self, message: bytes) -> None:
        run_to_completion(self.receive_stepwise(message))

    def receive_stepwise(self, message: bytes) -> Steps[None]:
        """Process a message, with cooperative yields."""
        self.received += len(message)
        for text in message.splitlines():
            line = read_line(text)
            self.listing_count += line.list is not None
            self.notified_owners += yield from self.slice.take(line)


@dataclass
class ChannelServer:
    """Parts of a server that receive agents' reports and send slices."""

    model: Model
    channel: PushChannel
    agents: NodeAgents

    async def connect_agent(self, name: str, serving: dict[str, frozenset[int]]) -> None:
        await self.agents.take_report(
            AgentReport(agent=seen(name), probe_results={}, is_complete=True, serving=serving)
        )
        await self.send_pending()

    async def send_pending(self) -> None:
        run_to_completion(self.channel.recompute_reaches())
        await eventually(lambda: not self.channel.writing)


def seen(name: str) -> Agent:
    return Agent(name=name, since=datetime(2026, 1, 1, tzinfo=UTC), heartbeat=5.0)


@asynccontextmanager
async def server(folder: Path, epoch: str = "first") -> AsyncIterator[ChannelServer]:
    store = await SqliteStore.open(folder / "store.db")
    model = await Model.load(store, check=lambda snapshot, owner: None)
    channel = PushChannel(model, epoch, frame=bytes)
    if not model.snapshot.hosts:
        await model.write(lambda _: Changes(puts=tuple(parse_model(MODEL_TEXT, {})[0].values())))
    try:
        yield ChannelServer(model, channel, NodeAgents(model, channel.chassis_reaching))
    finally:
        await store.close()

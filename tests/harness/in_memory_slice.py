"""A node's slice without its file, for tests on a virtual clock."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot


@dataclass
class InMemorySlice:
    snapshot: Snapshot
    name: str = "node1"
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    synced: asyncio.Event = field(default_factory=asyncio.Event)
    call: Callable[[tuple[Owner, ...]], None] = lambda _: None

    def subscribe(self, call: Callable[[tuple[Owner, ...]], None]) -> None:
        self.call = call

    def replace(self, snapshot: Snapshot) -> None:
        """Replace the slice, and notify of all its load balancers."""
        self.snapshot = snapshot
        self.call(tuple(Owner(Kind.LOAD_BALANCER, each) for each in snapshot.load_balancers))

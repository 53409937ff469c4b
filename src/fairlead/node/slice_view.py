"""Interface to the slice of a node, for the modules that act on it."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from fairlead.model.documents.owner import Owner
from fairlead.model.snapshot import Snapshot


class SliceView(Protocol):
    @property
    def name(self) -> str:
        """Name of the chassis."""

    @property
    def snapshot(self) -> Snapshot: ...

    @property
    def ready(self) -> asyncio.Event:
        """Event that is set when there is a slice."""

    @property
    def synced(self) -> asyncio.Event:
        """Event that is set when a server has sent the slice, as opposed to the file of an earlier process."""

    def subscribe(self, call: Callable[[tuple[Owner, ...]], None]) -> None:
        """Register a callback for changed owners."""

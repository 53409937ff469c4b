"""The slice that a node was given, as those need it who act on it."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from fairlead.model.owner import Owner
from fairlead.model.snapshot import Snapshot


class Given(Protocol):
    @property
    def name(self) -> str:
        """The chassis."""

    @property
    def snapshot(self) -> Snapshot: ...

    @property
    def ready(self) -> asyncio.Event:
        """Is set when there is a slice."""

    @property
    def heard(self) -> asyncio.Event:
        """Is set when a server has told it, and not only the file of an earlier life."""

    def subscribe(self, call: Callable[[tuple[Owner, ...]], None]) -> None:
        """To what concerns these owners."""

"""What readers of OVN's databases have in common: each follows one by itself, and never writes."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

from fairlead.drivers.ovsdb.client import Client, Disconnected, Event, Settings
from fairlead.model.facts import Fact
from fairlead.model.steps import Steps

LOG = logging.getLogger(__name__)
MOST_COMPLAINTS = 100
"""Reasons that are told: they bear what somebody else has written."""
Observe: TypeAlias = Callable[[Fact[Any], Any], Steps[None] | None]
"""Takes the news of a fact. It may answer with work in steps, which is done before anything else is told."""


class Reader(ABC):
    """`start` and `close`."""

    def __init__(self, settings: Settings) -> None:
        self._database = settings.database
        self._complaints: set[str] = set()
        self._lost = time.monotonic()
        self._client = Client(settings, self._hear)

    @property
    def connected(self) -> bool:
        """All that the database has was told, and what changes is."""
        return self._client.connected

    @property
    def silence(self) -> float:
        """Seconds for which nothing could be heard; 0.0 while it can be."""
        return 0.0 if self.connected else time.monotonic() - self._lost

    def start(self) -> None:
        """Connect, and stay connected, in a task of the running loop."""
        self._client.start()

    async def close(self) -> None:
        await self._client.close()

    async def wait_connected(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # what callers expect
        """Until all is told; TimeoutError after `timeout` seconds."""
        await self._client.wait_connected(timeout)

    @abstractmethod
    def _see(self, event: Event) -> Steps[None] | None: ...

    def _hear(self, event: Event) -> Steps[None] | None:
        if isinstance(event, Disconnected):
            self._lost = time.monotonic()
        return self._see(event)

    def _complain(self, of: str, reasons: set[str]) -> None:
        """Each reason is worth one line, however many rows have it. They are taken out: they have been told."""
        while reasons:
            reason = reasons.pop()
            if reason not in self._complaints and len(self._complaints) < MOST_COMPLAINTS:
                self._complaints.add(reason)
                LOG.warning("%s: rows of %s that cannot be read are left out: %s", self._database, of, reason)

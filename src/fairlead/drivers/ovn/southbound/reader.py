"""Base of the readers of OVN's databases: each has its own connection and never writes."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

from fairlead.drivers.ovsdb.client import Client, ConnectionClosed, Event, Settings
from fairlead.model.registry.facts import Fact
from fairlead.runtime.steps import Steps

LOG = logging.getLogger(__name__)
MAX_LOGGED_REASONS = 100
"""Maximum logged reasons, because they contain text of other writers."""
Observe: TypeAlias = Callable[[Fact[Any], Any], Steps[None] | None]
"""Receives news of a fact. A returned generator is run in steps before the next news."""


class Reader(ABC):
    """Reader of a database. Use `start` and `close`."""

    def __init__(self, settings: Settings) -> None:
        self._database = settings.database
        self._logged_reasons: set[str] = set()
        self._disconnected_at = time.monotonic()
        self._client = Client(settings, self._receive_event)

    @property
    def connected(self) -> bool:
        """Whether all contents have been reported, and changes are."""
        return self._client.connected

    @property
    def disconnected_seconds(self) -> float:
        """Seconds since the connection was lost; 0.0 while connected."""
        return 0.0 if self.connected else time.monotonic() - self._disconnected_at

    def start(self) -> None:
        """Connect and reconnect, in a task of the running loop."""
        self._client.start()

    async def close(self) -> None:
        await self._client.close()

    async def wait_connected(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # what callers expect
        """Wait until all contents have been reported. Raises TimeoutError after `timeout` seconds."""
        await self._client.wait_connected(timeout)

    @abstractmethod
    def _handle_event(self, event: Event) -> Steps[None] | None: ...

    def _receive_event(self, event: Event) -> Steps[None] | None:
        if isinstance(event, ConnectionClosed):
            self._disconnected_at = time.monotonic()
        return self._handle_event(event)

    def _log_reasons(self, of: str, reasons: set[str]) -> None:
        """Log each reason once, however many rows have it, and empty the set."""
        while reasons:
            reason = reasons.pop()
            if reason not in self._logged_reasons and len(self._logged_reasons) < MAX_LOGGED_REASONS:
                self._logged_reasons.add(reason)
                LOG.warning("%s: skipping unreadable rows of %s: %s", self._database, of, reason)

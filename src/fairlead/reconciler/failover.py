"""Failover of the lock: when a standby server takes the lock from a leader that does not write.

A leader that exits loses its OVSDB lock with its connection. A frozen leader keeps both, because ovsdb-server sends no
probes on a Unix socket. So a standby that waits too long steals the lock. A frozen leader receives the notification
when it resumes, and each of its transactions asserts the lock, so no row is written twice.

A server with state that may be older than the leader's (store revision, probe results) never takes the lock, because it
would write outdated rows.

A standby waits too long if a desired change is missing in the dataplane, this server could write it, and no managed row
has changed for a while. It pings the dataplane first, so a standby that was itself frozen processes the updates
received since. Two live servers that disagree must not steal the lock from each other without end, so the timeout
doubles with each takeover and is reset only after `RESET_AFTER_SECONDS` seconds without one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from fairlead.drivers.interface import DriverError
from fairlead.reconciler.loop import Reconciler

LOG = logging.getLogger(__name__)
MIN_TIMEOUT = 2.5
MAX_TIMEOUT = 600.0
RESET_AFTER_SECONDS = 3600.0
"""Seconds without a takeover after which the timeout is `FIRST_PATIENCE` again."""
PING_INTERVAL = 1.0
"""Seconds before an unresponsive dataplane is pinged again."""


class LockingDriver(Protocol):
    """A driver with a lock: only one server writes at a time."""

    @property
    def has_lock(self) -> bool: ...

    async def ping(self) -> None:
        """Return when the dataplane has answered and all earlier updates are processed. Raises DriverError."""

    async def take_lock(self) -> None:
        """Take the lock from its current holder. Raises DriverError."""


@dataclass(slots=True)
class FailoverTimeout:
    """Timeout before a takeover, in seconds of one clock. Pure."""

    takeovers: int = 0
    _last: float = 0.0

    def seconds(self, now: float) -> float:
        if self.takeovers and now - self._last > RESET_AFTER_SECONDS:
            self.takeovers = 0
        return min(MIN_TIMEOUT * float(1 << min(self.takeovers, 16)), MAX_TIMEOUT)

    def record_takeover(self, now: float) -> None:
        self.takeovers, self._last = self.takeovers + 1, now


class Failover:
    def __init__(
        self,
        writer: LockingDriver,
        reconciler: Reconciler,
        clock: Callable[[], float],
        knows_all: Callable[[], Awaitable[bool]],
    ) -> None:
        """`knows_all` waits for the newest revision of the store and returns whether it could be read."""
        self.takeovers = 0
        self._is_up_to_date = knows_all
        self._writer = writer
        self._reconciler = reconciler
        self._clock = clock
        self._timeout = FailoverTimeout()

    async def run(self) -> None:
        """Run until cancelled. Sleeps while no owner waits for the leader."""
        while True:
            await self._reconciler.waiting_for_leader.wait()
            self._reconciler.waiting_for_leader.clear()
            while not self._writer.has_lock and (waited := self._reconciler.waiting_for_leader_seconds()) is not None:
                missing = self._timeout.seconds(self._clock()) - waited
                if missing > 0:
                    await asyncio.sleep(missing)
                else:
                    await self._take_over()

    async def _take_over(self) -> None:
        try:
            await self._writer.ping()
            if not await self._is_up_to_date():
                await asyncio.sleep(PING_INTERVAL)
                return
            waited = self._reconciler.waiting_for_leader_seconds()
            if self._writer.has_lock or waited is None or waited < self._timeout.seconds(self._clock()):
                return
            LOG.warning("the leader has not applied waiting changes for %.1f s; taking its lock", waited)
            self.takeovers += 1
            self._timeout.record_takeover(self._clock())
            await self._writer.take_lock()
        except DriverError as error:
            LOG.info("cannot take the leader's lock: %s", error)
            await asyncio.sleep(PING_INTERVAL)

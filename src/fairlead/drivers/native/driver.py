"""Driver of a plain Linux host: rows in its kernel, read back by any process, and written in one transaction.

Only this driver writes to its nftables table, so the rows last written are taken as actual as long as the table's
handle is the same. All kernel calls run in a thread.
"""

import asyncio
import errno
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto
from functools import partial
from typing import ParamSpec, TypeVar

from fairlead.dataplane.rows import Diff, Rows
from fairlead.drivers.interface import DriverError, Unavailable
from fairlead.drivers.native.change_monitor import ChangeMonitor
from fairlead.drivers.native.netlink import ReadOnly, retry_interrupted
from fairlead.drivers.native.nftables.encoding import connection_key
from fairlead.drivers.native.nftables.ruleset import FAMILIES
from fairlead.drivers.native.observed import (
    KernelState,
    find_missing,
    forwards_to,
    read,
    restore,
    update_source_address,
)
from fairlead.drivers.native.prerequisites import Prerequisites
from fairlead.drivers.native.row_writer import RowWriter
from fairlead.model.documents.owner import Owner
from fairlead.model.queries.conntrack_flush import TrackedConnection
from fairlead.runtime.threads import in_thread

LOG = logging.getLogger(__name__)
TABLE = "fairlead"
_P = ParamSpec("_P")
_T = TypeVar("_T")


class CheckResult(Enum):
    """State of the rows after a check."""

    UNCHANGED = auto()
    RESTORED = auto()
    """Parts removed by another program were restored."""
    LOST = auto()
    """Every owner has to be read again."""


class Native:
    """Driver that applies many owners in one transaction (`drivers/interface.py`)."""

    def __init__(self, table: str = TABLE) -> None:
        self._table = table
        self._prerequisites: Prerequisites | None = None
        self._monitor: ChangeMonitor | None = None
        self._state: KernelState | None = None
        self._stale_state: KernelState | None = None
        """State before a failure, until the actual one has been read."""
        self._busy = asyncio.Lock()
        self._on_table_lost: Callable[[], None] = lambda: None
        self._is_table_lost = False

    def subscribe(self, lost: Callable[[], None]) -> None:
        """Register a callback for a removed table: it has been re-created, and every owner has to be read again."""
        self._on_table_lost = lost

    async def open(self) -> None:
        """Start, taking over the state of a previous agent. Raises DriverError."""
        await self._in_thread(self._install)

    async def close(self) -> None:
        """Close; all rows stay in the kernel and keep working."""
        async with self._busy:
            ground, watch = self._prerequisites, self._monitor
            self._prerequisites = self._monitor = self._state = self._stale_state = None
            for each in (ground, watch):
                if each is not None:
                    each.close()

    async def open_tunnels(self) -> None:
        """Accept traffic from other hosts' tunnels, once all rows are applied. A re-created table rejects it until
        then.

        Raises DriverError.
        """
        await self._in_thread(self._open_tunnels)

    async def remove(self) -> None:
        """Remove everything from the host, and restore its original settings. Raises DriverError."""
        await self._in_thread(self._remove)

    async def check_and_restore(self) -> CheckResult:
        """Check for changes by other programs and restore the rows. Cheap without such changes. Raises DriverError."""
        return await self._in_thread(self._check_and_restore)

    async def read_all(self) -> Mapping[Owner, Rows]:
        found = await self._in_thread(self._reread)
        return {owner: dict(rows) for owner, rows in found.owners.items()}

    async def read_only(self) -> Mapping[Owner, Rows]:
        """Return the complete rows in the kernel, without writing. Raises DriverError."""
        return await self._in_thread(self._read_only)

    async def read(self, owner: Owner) -> Rows:
        return (await self.read_some([owner]))[owner]

    async def read_some(self, owners: Collection[Owner]) -> Mapping[Owner, Rows]:
        found = await self._in_thread(self._current_state)
        return {owner: dict(found.owners.get(owner, {})) for owner in owners}

    async def apply(self, owner: Owner, diff: Diff) -> None:
        await self.apply_all({owner: diff})

    async def apply_all(self, diffs: Mapping[Owner, Diff]) -> None:
        if any(diffs.values()):
            await self._in_thread(self._apply, diffs)

    async def flush_connections(self, cuts: Collection[TrackedConnection]) -> tuple[int, frozenset[TrackedConnection]]:
        """Delete the tracked connections with these ends.

        Returns their number, and the ends that a row still leads to; those are not deleted, because the next packet
        would continue to the same member. Raises DriverError.
        """
        return await self._in_thread(self._flush_connections, cuts)

    async def _in_thread(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run in a thread, one call at a time. A cancelled call completes in the thread before the next one starts."""
        async with self._busy:
            try:
                return await in_thread(work, *args, **kwargs)
            except OSError as error:
                self._mark_stale()
                raise _translated(error) from error
            except Unavailable:  # perhaps in the middle of a change
                self._mark_stale()
                raise
            finally:
                is_lost, self._is_table_lost = self._is_table_lost, False
                if is_lost:
                    asyncio.get_running_loop().call_soon(self._on_table_lost)

    def _mark_stale(self) -> None:
        self._stale_state, self._state = self._state or self._stale_state, None

    def _current_state(self) -> KernelState:
        """Return the known rows, re-read if the table was re-created."""
        found = self._state
        if found is None or self._prerequisites is None:
            return self._reread()
        if found.handle == self._prerequisites.handle():
            return found
        self._is_table_lost = True
        LOG.warning("nftables table %s was removed by another process; restoring it", self._table)
        return self._reread()

    def _check_and_restore(self) -> CheckResult:
        if self._state is None and self._stale_state is not None:
            return CheckResult.UNCHANGED if self._stale_state.owners == self._reread().owners else CheckResult.LOST
        ground, watch, found = self._prerequisites, self._monitor, self._state
        if ground is None or watch is None or found is None:
            return CheckResult.UNCHANGED
        if ground.handle() != found.handle:
            return CheckResult.LOST
        if not watch.needs_check():
            return CheckResult.UNCHANGED
        begun, kept = time.monotonic(), CheckResult.UNCHANGED
        missing = retry_interrupted(partial(find_missing, found, ground))
        if missing:
            kept = (
                CheckResult.RESTORED
                if retry_interrupted(partial(restore, missing, found, ground))
                else CheckResult.LOST
            )
        retry_interrupted(partial(update_source_address, found, ground))
        watch.record_check(time.monotonic() - begun)
        return kept

    def _install(self) -> Prerequisites:
        ground = self._prerequisites = self._prerequisites or Prerequisites(self._table)
        self._monitor = self._monitor or ChangeMonitor(ground.routing.port)
        retry_interrupted(ground.install)
        return ground

    def _reread(self) -> KernelState:
        self._state = retry_interrupted(partial(read, self._install()))
        self._stale_state = None
        return self._state

    def _read_only(self) -> Mapping[Owner, Rows]:
        ground = Prerequisites(self._table, ReadOnly)
        try:
            if not retry_interrupted(ground.can_be_read):
                return {}
            return {owner: dict(rows) for owner, rows in retry_interrupted(partial(read, ground)).owners.items()}
        finally:
            ground.close()

    def _apply(self, diffs: Mapping[Owner, Diff]) -> None:
        before = self._state
        found = self._current_state()
        if self._prerequisites is None or (before is not None and found is not before):
            raise DriverError(
                "the nftables table was removed by another process: the change is retried after the table is restored"
            )
        RowWriter(found, diffs).write(self._prerequisites)

    def _flush_connections(self, cuts: Collection[TrackedConnection]) -> tuple[int, frozenset[TrackedConnection]]:
        found, number = self._current_state(), 0
        leading = frozenset(each for each in cuts if forwards_to(found, each))
        for version in FAMILIES:
            ending = dict[bytes, set[tuple[bytes, int]]]()
            for each in cuts:
                if each.address.version == version and each not in leading:
                    key = connection_key(each.address, each.transport, each.port)
                    ending.setdefault(key, set()).add((each.member.packed, each.member_port))
            if ending and self._prerequisites is not None:
                number += self._prerequisites.flush_translated(version, ending)
        return number, leading

    def _open_tunnels(self) -> None:
        if self._prerequisites is not None:
            retry_interrupted(self._prerequisites.open_tunnels)

    def _remove(self) -> None:
        ground, watch = self._prerequisites or Prerequisites(self._table), self._monitor
        self._prerequisites = self._monitor = self._state = self._stale_state = None
        try:
            ground.remove()
        finally:
            ground.close()
            if watch is not None:
                watch.close()


def _translated(error: OSError) -> DriverError:
    if error.errno == errno.EPERM:
        return DriverError("operation not permitted: rules, routes and addresses need root (CAP_NET_ADMIN)")
    return DriverError(f"kernel: {os.strerror(error.errno) if error.errno else error}")

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
from fairlead.drivers.native.netlink import ReadOnly, steadily
from fairlead.drivers.native.nftables.encoding import connection_key
from fairlead.drivers.native.nftables.ruleset import FAMILIES
from fairlead.drivers.native.observed import Found, find_missing, follow_addresses, leads_to, mend, read
from fairlead.drivers.native.prerequisites import Ground
from fairlead.drivers.native.watching import Watch
from fairlead.drivers.native.writing import Writing
from fairlead.model.documents.owner import Owner
from fairlead.model.queries.conntrack_flush import Cut

LOG = logging.getLogger(__name__)
TABLE = "fairlead"
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Kept(Enum):
    """State of the rows after a check."""

    WHOLE = auto()
    MENDED = auto()
    """Parts removed by another program were restored."""
    LOST = auto()
    """Every owner has to be read again."""


class Native:
    """Driver that applies many owners in one transaction (`drivers/interface.py`)."""

    def __init__(self, table: str = TABLE) -> None:
        self._table = table
        self._ground: Ground | None = None
        self._watch: Watch | None = None
        self._found: Found | None = None
        self._doubted: Found | None = None
        """State before a failure, until the actual one has been read."""
        self._busy = asyncio.Lock()
        self._lost: Callable[[], None] = lambda: None
        self._is_lost = False

    def follow(self, lost: Callable[[], None]) -> None:
        """Register a callback for a removed table: it has been re-created, and every owner has to be read again."""
        self._lost = lost

    async def open(self) -> None:
        """Start, taking over the state of a previous agent. Raises DriverError."""
        await self._in_thread(self._install)

    async def close(self) -> None:
        """Close; all rows stay in the kernel and keep working."""
        async with self._busy:
            ground, watch = self._ground, self._watch
            self._ground = self._watch = self._found = self._doubted = None
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

    async def look_after(self) -> Kept:
        """Check for changes by other programs and restore the rows. Cheap without such changes. Raises DriverError."""
        return await self._in_thread(self._look_after)

    async def read_all(self) -> Mapping[Owner, Rows]:
        found = await self._in_thread(self._read_anew)
        return {owner: dict(rows) for owner, rows in found.owners.items()}

    async def look(self) -> Mapping[Owner, Rows]:
        """Return the complete rows in the kernel, without writing. Raises DriverError."""
        return await self._in_thread(self._look)

    async def read(self, owner: Owner) -> Rows:
        return (await self.read_some([owner]))[owner]

    async def read_some(self, owners: Collection[Owner]) -> Mapping[Owner, Rows]:
        found = await self._in_thread(self._known)
        return {owner: dict(found.owners.get(owner, {})) for owner in owners}

    async def apply(self, owner: Owner, diff: Diff) -> None:
        await self.apply_all({owner: diff})

    async def apply_all(self, diffs: Mapping[Owner, Diff]) -> None:
        if any(diffs.values()):
            await self._in_thread(self._apply, diffs)

    async def flush(self, cuts: Collection[Cut]) -> tuple[int, frozenset[Cut]]:
        """Delete the tracked connections with these ends.

        Returns their number, and the ends that a row still leads to; those are not deleted, because the next packet
        would continue to the same member. Raises DriverError.
        """
        return await self._in_thread(self._flush, cuts)

    async def _in_thread(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run in a thread, one call at a time. A cancelled call completes in the thread before the next one starts."""
        async with self._busy:
            running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                await asyncio.wait([running])
                raise
            except OSError as error:
                self._doubt()
                raise _translated(error) from error
            except Unavailable:  # perhaps in the middle of a change
                self._doubt()
                raise
            finally:
                is_lost, self._is_lost = self._is_lost, False
                if is_lost:
                    asyncio.get_running_loop().call_soon(self._lost)

    def _doubt(self) -> None:
        self._doubted, self._found = self._found or self._doubted, None

    def _known(self) -> Found:
        """Return the known rows, re-read if the table was re-created."""
        found = self._found
        if found is None or self._ground is None:
            return self._read_anew()
        if found.handle == self._ground.handle():
            return found
        self._is_lost = True
        LOG.warning("somebody has removed our table %s of nftables: it is made anew", self._table)
        return self._read_anew()

    def _look_after(self) -> Kept:
        if self._found is None and self._doubted is not None:
            return Kept.WHOLE if self._doubted.owners == self._read_anew().owners else Kept.LOST
        ground, watch, found = self._ground, self._watch, self._found
        if ground is None or watch is None or found is None:
            return Kept.WHOLE
        if ground.handle() != found.handle:
            return Kept.LOST
        if not watch.is_due():
            return Kept.WHOLE
        begun, kept = time.monotonic(), Kept.WHOLE
        missing = steadily(partial(find_missing, found, ground))
        if missing:
            kept = Kept.MENDED if steadily(partial(mend, missing, found, ground)) else Kept.LOST
        steadily(partial(follow_addresses, found, ground))
        watch.looked(time.monotonic() - begun)
        return kept

    def _install(self) -> Ground:
        ground = self._ground = self._ground or Ground(self._table)
        self._watch = self._watch or Watch(ground.routing.port)
        steadily(ground.install)
        return ground

    def _read_anew(self) -> Found:
        self._found = steadily(partial(read, self._install()))
        self._doubted = None
        return self._found

    def _look(self) -> Mapping[Owner, Rows]:
        ground = Ground(self._table, ReadOnly)
        try:
            if not steadily(ground.can_be_read):
                return {}
            return {owner: dict(rows) for owner, rows in steadily(partial(read, ground)).owners.items()}
        finally:
            ground.close()

    def _apply(self, diffs: Mapping[Owner, Diff]) -> None:
        before = self._found
        found = self._known()
        if self._ground is None or (before is not None and found is not before):
            raise DriverError(
                "somebody had removed our table of nftables: what was to be changed is not there any more"
            )
        Writing(found, diffs).write(self._ground)

    def _flush(self, cuts: Collection[Cut]) -> tuple[int, frozenset[Cut]]:
        found, number = self._known(), 0
        leading = frozenset(each for each in cuts if leads_to(found, each))
        for version in FAMILIES:
            ending = dict[bytes, set[tuple[bytes, int]]]()
            for each in cuts:
                if each.address.version == version and each not in leading:
                    key = connection_key(each.address, each.transport, each.port)
                    ending.setdefault(key, set()).add((each.member.packed, each.member_port))
            if ending and self._ground is not None:
                number += self._ground.forget_translated(version, ending)
        return number, leading

    def _open_tunnels(self) -> None:
        if self._ground is not None:
            steadily(self._ground.open_tunnels)

    def _remove(self) -> None:
        ground, watch = self._ground or Ground(self._table), self._watch
        self._ground = self._watch = self._found = self._doubted = None
        try:
            ground.remove()
        finally:
            ground.close()
            if watch is not None:
                watch.close()


def _translated(error: OSError) -> DriverError:
    if error.errno == errno.EPERM:
        return DriverError("the kernel takes rules, routes and addresses of root alone (CAP_NET_ADMIN)")
    return DriverError(f"the kernel: {os.strerror(error.errno) if error.errno else error}")

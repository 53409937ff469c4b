"""The rows of HAProxy on this node: kept in a folder for each network, and told to its process.

What the runtime API can do it is told; for everything else a new process takes the place of the old one without a lost
connection. The files are written first, always. A process that ends is started again at once, and then after longer
and longer pauses; whoever asks is told at which ports connections are taken (`Serving`), and that they are not.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from fairlead.dataplane.haproxy import Backend, Certificate, Frontend, HAProxyRow, Process, Secret, Server
from fairlead.dataplane.haproxy_commands import Command, commands
from fairlead.dataplane.haproxy_text import Sockets, files
from fairlead.dataplane.haproxy_words import Unwritable
from fairlead.dataplane.rows import Diff, Key, Rows, diff
from fairlead.drivers.haproxy.kept import Kept, read_kept
from fairlead.drivers.haproxy.places import Places
from fairlead.drivers.haproxy.process import (
    CONTROL,
    PEERS,
    Program,
    Running,
    all_running,
    check,
    ended,
    read_running,
    retire,
    start,
    stop,
)
from fairlead.drivers.haproxy.rights import Rights
from fairlead.drivers.haproxy.runtime import CommandFailed, running_pid, tell
from fairlead.drivers.interface import DriverError, Unavailable
from fairlead.model.owner import Owner

LOG = logging.getLogger(__name__)
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 10.0
"""Seconds until a process that has ended is started again; each pause is twice as long as the last."""
_OURS = re.compile("[0-9a-f]{12}")
"""Names of folders (`_folder_name`): somebody may name one in which there are others'."""
STEADY = 30.0
"""Seconds after which a process counts as one that runs."""
Serving: TypeAlias = Callable[[str, frozenset[int] | None], None]
"""Told of a port's id, and at which ports the proxy behind it takes connections; None where it does not run."""


@dataclass(slots=True)
class _Network:
    kept: Kept
    inside: Sequence[str] = ()
    """The words before those of a command that runs in its place."""
    running: Running | None = None
    watch: "asyncio.Task[None] | None" = None
    pause: float = FIRST_PAUSE
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    placed: Process | None = None
    """As its place was made by this driver; None if it was not yet."""

    @property
    def wanted(self) -> Process | None:
        """What is to run; None while it would have nobody to serve."""
        return self.kept.process if any(isinstance(row, Frontend) for row in self.kept.rows) else None


class HAProxy:
    """A driver (`drivers/interface.py`)."""

    def __init__(self, folder: Path, places: Places, serving: Serving, program: Program = Program()) -> None:  # noqa: B008
        """`folder` is on a tmpfs: what is there is worth nothing after a restart of the machine."""
        self._folder = folder
        self._places = places
        self._serving = serving
        self._program = program
        self._rights = Rights(program.user)
        self._networks: dict[str, _Network] = {}

    async def open(self) -> None:
        """Find what an earlier agent left, and go on with it. A node that never had a proxy has no folder.

        Raises OSError.
        """
        if not self._folder.exists():
            return
        for each in sorted(each for each in self._folder.iterdir() if _OURS.fullmatch(each.name)):
            kept = read_kept(each)
            if kept.process is None:
                await self._remove_left(each)
                continue
            network = self._networks[kept.process.network] = _Network(kept, running=read_running(each))
            if network.running is None and (left := await asyncio.to_thread(all_running, each)):
                network.running, kept.settled = left[-1], False
            try:
                await self._go_on(network)
            except DriverError as error:
                LOG.warning("the proxy of %s: %s; trying again", each.name, error)
                self._watch_by(network, self._go_on_later(network))

    async def close(self) -> None:
        """Processes go on."""
        watches = [network.watch for network in self._networks.values() if network.watch is not None]
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    async def read_all(self) -> Mapping[Owner, Rows]:
        found = defaultdict[Owner, dict[Key, HAProxyRow]](dict)
        for network in self._networks.values():
            for owner, rows in network.kept.owners.items():
                found[owner].update(rows)
        return {owner: rows for owner, rows in found.items() if rows}

    async def read(self, owner: Owner) -> Rows:
        return self._rows_of(owner)

    def _rows_of(self, owner: Owner) -> dict[Key, HAProxyRow]:
        found: dict[Key, HAProxyRow] = {}
        for network in self._networks.values():
            found.update(network.kept.owners.get(owner, {}))
        return found

    async def apply(self, owner: Owner, change: Diff) -> None:
        """A load balancer is on one network, and a network is one: its rows are of one process."""
        before = self._rows_of(owner)
        after = {key: row for key, row in before.items() if key not in change.deletes}
        after |= _ours(change.creates) | _ours({key: update.after for key, update in change.updates.items()})
        was, is_now = _network_of(before), _network_of(after)
        for network_id in {*map(was, before.values()), *map(is_now, after.values())}:
            rows = {key: row for key, row in after.items() if is_now(row) == network_id}
            await self._put(network_id, owner, rows)

    async def _put(self, network_id: str, owner: Owner, rows: Mapping[Key, HAProxyRow]) -> None:
        """Raises DriverError; then all is as it was."""
        network = self._networks.get(network_id)
        if network is None:
            network = self._networks[network_id] = _Network(Kept(self._folder / _folder_name(network_id)))
        async with network.busy:
            before = dict(network.kept.owners)
            had = {row.key: row for row in network.kept.rows}
            network.kept.owners[owner] = dict(rows)
            if not rows:
                del network.kept.owners[owner]
            try:
                await self._bring(network_id, network, diff({row.key: row for row in network.kept.rows}, had))
            except (OSError, Unwritable, DriverError) as error:
                network.kept.owners = before
                await self._hold(network)
                raise DriverError(f"the proxy of network {network_id}: {error}") from None

    async def _hold(self, network: _Network) -> None:
        """What was there before a change that failed. A process that was told already to end is none."""
        kept = network.kept
        with contextlib.suppress(OSError):
            kept.write(settled=kept.settled)
        if network.running is not None and await running_pid(kept.folder / CONTROL) != network.running.pid:
            network.running = None
            self._say(network)
        if network.running is None or not kept.settled:
            self._watch_by(network, self._go_on_later(network))

    async def _bring(self, network_id: str, network: _Network, change: Diff) -> None:
        kept = network.kept
        process = network.wanted
        if process is None:
            await self._end(network_id, network)
            return
        if not change and network.running is not None and network.running.is_there:
            return
        self._rights.make(kept.folder, (kept.folder / CONTROL).parent)
        moved = network.placed is None or _devices_of(network.placed) != _devices_of(process)
        told = None if moved or not kept.settled or network.running is None else commands(change)
        texts = await asyncio.to_thread(self._files, kept, process)
        if told is None:
            await self._check(kept.folder, texts)
        kept.write(settled=False)
        for name, text in texts.items():
            self._rights.write(kept.folder / name, text)
        if told is not None and network.running is not None and network.running.is_there:
            try:
                await tell(kept.folder / CONTROL, (self._said(kept, each) for each in told))
            except (CommandFailed, Unavailable) as error:
                LOG.info("network %s: %s; a new process takes its place", network_id, error)
            else:
                kept.write(settled=True)
                return
        await self._start(network, process, moved=moved)

    async def _start(self, network: _Network, process: Process, *, moved: bool) -> None:
        kept = network.kept
        if moved:
            if network.running is not None and network.placed is not None:
                await self._stop(network)
            await self._place(network, process)
        before = network.running if network.running is not None and network.running.is_there else None
        network.running = await start(kept.folder, self._program, network.inside, before)
        self._watch(network)
        self._say(network)
        there = await asyncio.to_thread(all_running, kept.folder)
        retire([each for each in there if each != network.running])
        kept.write(settled=True)

    async def _place(self, network: _Network, process: Process) -> None:
        network.placed = None
        network.inside = await self._places.make(process)
        network.placed = process

    async def _go_on(self, network: _Network) -> None:
        """What was not finished is done again, and a process started where none is. Raises DriverError."""
        async with network.busy:
            process = network.wanted
            if process is None:
                return
            try:
                if network.placed is None or _devices_of(network.placed) != _devices_of(process):
                    await self._place(network, process)
                if network.running is not None and network.running.is_there and network.kept.settled:
                    self._watch(network)
                    self._say(network)
                    return
                for name, text in (await asyncio.to_thread(self._files, network.kept, process)).items():
                    self._rights.write(network.kept.folder / name, text)
                await self._start(network, process, moved=False)
            except (OSError, Unwritable) as error:
                raise DriverError(str(error)) from None

    async def _go_on_later(self, network: _Network) -> None:
        """After a pause, and again until it is done."""
        while True:
            await asyncio.sleep(network.pause)
            network.pause = min(2 * network.pause, LONGEST_PAUSE)
            try:
                await self._go_on(network)
            except DriverError as error:
                LOG.warning("the proxy of %s: %s; trying again", network.kept.folder.name, error)
            else:
                return

    async def _end(self, network_id: str, network: _Network) -> None:
        """A network that has nobody to serve has no process, and without a port no place."""
        await self._stop(network)
        if network.kept.process is not None:
            self._rights.make(network.kept.folder, (network.kept.folder / CONTROL).parent)
            network.kept.write(settled=True)
            return
        await self._places.remove(network_id)
        network.kept.remove()
        if not network.kept.owners:
            self._networks.pop(network_id, None)

    async def _stop(self, network: _Network) -> None:
        if network.watch is not None:
            network.watch.cancel()
            network.watch = None
        for each in await asyncio.to_thread(all_running, network.kept.folder):
            await stop(each)
        if network.running is not None:
            network.running = None
            self._say(network)

    def _watch(self, network: _Network) -> None:
        self._watch_by(network, self._keep(network))

    def _watch_by(self, network: _Network, work: Coroutine[None, None, None]) -> None:
        if network.watch is not None and network.watch is not asyncio.current_task():
            network.watch.cancel()
        network.watch = asyncio.ensure_future(work)

    async def _keep(self, network: _Network) -> None:
        """Until the process is to end: it is started again whenever it has ended."""
        running = network.running
        if running is not None:
            loop = asyncio.get_running_loop()
            began = loop.time()
            await ended(running)
            async with network.busy:  # one that is being replaced ends before the other one is known
                if network.running is not running:
                    return
                network.running = None
                self._say(network)
            if loop.time() - began > STEADY:
                network.pause = FIRST_PAUSE
            LOG.warning("the proxy of %s has ended; starting it again", network.kept.folder.name)
        await self._go_on_later(network)

    def _say(self, network: _Network) -> None:
        process = network.kept.process or network.placed
        if process is not None:
            self._serving(process.port, None if network.running is None else ports_of(network.kept.rows))

    async def _check(self, folder: Path, texts: Mapping[str, str]) -> None:
        """In a folder beside, for paths are relative. Raises NotStarted."""
        draft = folder / "draft"
        for name, text in texts.items():
            self._rights.write(draft / name, text)
        for shared in ("secrets",):
            link = draft / shared
            if not link.is_symlink() and (folder / shared).exists():
                link.symlink_to(folder / shared)
        await check(draft, self._program, next(iter(texts)))

    async def _remove_left(self, folder: Path) -> None:
        for each in await asyncio.to_thread(all_running, folder):
            await stop(each)
        Kept(folder).remove()

    def _files(self, kept: Kept, process: Process) -> Mapping[str, str]:
        """Raises Unwritable."""
        sockets = Sockets(control=str(kept.folder / CONTROL), peers=str(kept.folder / PEERS))
        missing = [each for each in secrets_of(kept.rows) if not (kept.folder / each.path).exists()]
        return files(process, kept.rows, sockets, missing)

    def _said(self, kept: Kept, command: Command) -> tuple[str, str, bool]:
        """Raises OSError."""
        payload = (kept.folder / command.secret.path).read_text() if command.secret is not None else ""
        return command.text, payload, command.may_fail


def _ours(rows: Rows) -> dict[Key, HAProxyRow]:
    return {key: row for key, row in rows.items() if isinstance(row, HAProxyRow)}


def secrets_of(rows: Iterable[HAProxyRow]) -> Iterator[Secret]:
    for row in rows:
        if isinstance(row, Frontend | Backend):
            yield from row.secrets
        if isinstance(row, Certificate):
            yield row.secret


def ports_of(rows: Iterable[HAProxyRow]) -> frozenset[int]:
    """At which the frontends among them take connections."""
    binds = (line[1] for row in rows if isinstance(row, Frontend) for line in row.lines if line[0] == "bind")
    return frozenset(int(place.rpartition(":")[2]) for place in binds)


def _folder_name(network_id: str) -> str:
    """Sockets have short paths (unix(7)), and others may call networks as they like."""
    return hashlib.sha256(network_id.encode()).hexdigest()[:12]


def _devices_of(process: Process) -> object:
    """What its place is made of."""
    return process.port, process.mac, process.mtu, process.addresses, process.routes


def _network_of(rows: Mapping[Key, HAProxyRow]) -> Callable[[HAProxyRow], str]:
    """The network whose process has a row, among all rows of its owner."""
    sections = {
        (type(row).__name__, row.name): row.process for row in rows.values() if isinstance(row, Frontend | Backend)
    }

    def find(row: HAProxyRow) -> str:
        match row:
            case Process():
                return row.network
            case Frontend() | Backend():
                return row.process
            case Server():
                return sections["Backend", row.backend]
            case Certificate():
                return sections["Frontend", row.frontend]

    return find

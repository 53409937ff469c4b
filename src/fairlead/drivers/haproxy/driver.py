"""The rows of HAProxy on this node: kept in a folder for each network, and told to its process.

What the runtime API can do it is told; for everything else a new process takes the place of the old one without a lost
connection. The files are written first, always. A process that ends is started again at once, and then after longer
and longer pauses; whoever asks is told at which ports connections are taken (`Serving`), and that they are not.
"""

import asyncio
import contextlib
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

from fairlead.dataplane.haproxy import Frontend, HAProxyRow, Process
from fairlead.dataplane.haproxy_commands import commands, renewal, tellable
from fairlead.dataplane.haproxy_text import Sockets, files, served
from fairlead.dataplane.haproxy_words import Unwritable
from fairlead.dataplane.rows import Diff, Key, Rows, diff
from fairlead.drivers.haproxy.answering import look_after
from fairlead.drivers.haproxy.counters import Counters
from fairlead.drivers.haproxy.kept import Kept, read_kept
from fairlead.drivers.haproxy.metrics import EXPORTER, SOCKET, Metrics
from fairlead.drivers.haproxy.network import (
    FIRST_PAUSE,
    Network,
    devices_of,
    folder_name,
    network_of,
    ours,
    ports_of,
    with_change,
)
from fairlead.drivers.haproxy.places import Places
from fairlead.drivers.haproxy.process import (
    CONTROL,
    PEERS,
    Program,
    Running,
    all_running,
    check_beside,
    ended,
    kill,
    read_running,
    retire,
    start,
    stop,
)
from fairlead.drivers.haproxy.rights import Rights
from fairlead.drivers.haproxy.runtime import CommandFailed, running_pid, tell
from fairlead.drivers.haproxy.secrets import Fetch, SecretFiles, nobody_lends, said
from fairlead.drivers.interface import DriverError, Later, Unavailable
from fairlead.model.owner import Owner
from fairlead.model.secrets import Secret

LOG = logging.getLogger(__name__)
LONGEST_PAUSE = 10.0
"""Seconds until a process that has ended is started again, at most; each pause is twice as long as the last."""
_OURS = re.compile("[0-9a-f]{12}")
"""Names of folders (`folder_name`): somebody may name one in which there are others'."""
STEADY = 30.0
"""Seconds after which a process counts as one that runs."""
Serving: TypeAlias = Callable[[str, frozenset[int] | None], None]
"""Told of a port's id, and at which ports the proxy behind it takes connections; None where it does not run."""


class HAProxy:
    """A driver (`drivers/interface.py`)."""

    def __init__(
        self,
        folder: Path,
        places: Places,
        serving: Serving,
        program: Program = Program(),  # noqa: B008 - a value
        fetch: Fetch = nobody_lends,
        counters: Counters | None = None,
    ) -> None:
        """`folder` is on a tmpfs: what is there is worth nothing after a restart of the machine."""
        self._folder = folder
        self._places = places
        self._serving = serving
        self._program = program
        self._counters = counters or Counters()
        self._rights = Rights(program.user)
        self._secrets = SecretFiles(fetch, self._rights)
        self._networks: dict[str, Network] = {}
        self._metrics = Metrics(folder, self._rights, self._network_with)

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
            network = self._networks[kept.process.network] = Network(kept, running=read_running(each))
            network.missing = self._secrets.missing(kept)
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
        await self._counters.close()
        await self._metrics.close()

    async def look(self) -> None:
        """At what each process has counted."""
        for network in tuple(self._networks.values()):
            if network.running is not None and not network.is_silent:
                await self._counters.look(network.running, network.kept.folder / CONTROL)

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

    def _network_with(self, owner: Owner) -> Network | None:
        return next((each for each in self._networks.values() if owner in each.kept.owners), None)

    async def apply(self, owner: Owner, change: Diff) -> None:
        """The rows of a load balancer are of one process. Those of a network are of one for each project that has
        proxies there: one that fails keeps no other."""
        before = self._rows_of(owner)
        after = with_change(before, change)
        was, is_now = network_of(before), network_of(after)
        involved = {*map(was, before.values()), *map(is_now, after.values())}
        self._forget_waiting(owner, involved)
        failed = list[DriverError]()
        for network_id in involved:
            rows = {key: row for key, row in after.items() if is_now(row) == network_id}
            try:
                await self._put(network_id, owner, rows)
            except DriverError as error:
                failed.append(error)
        if failed:
            raise min(failed, key=lambda each: isinstance(each, Later))

    def _forget_waiting(self, owner: Owner, involved: Container[str]) -> None:
        """What is not wanted any more must not come with the next process."""
        for network_id, network in self._networks.items():
            if network_id not in involved:
                network.waiting.pop(owner, None)

    async def _put(self, network_id: str, owner: Owner, rows: Mapping[Key, HAProxyRow]) -> None:
        """Raises Later, and DriverError; then all is as it was."""
        network = self._networks.get(network_id)
        if network is None:
            network = self._networks[network_id] = Network(Kept(self._folder / folder_name(network_id)))
        async with network.busy:
            if not network.asks_for_another(owner, rows):
                network.waiting.pop(owner, None)
                await self._change(network_id, network, {owner: rows})
            elif wait := network.pace.wait(_now()):
                network.waiting[owner] = dict(rows)
                await self._tell_part(network_id, network, owner, rows)
                raise Later(wait)
            else:
                network.waiting[owner] = dict(rows)
                await self._change_together(network_id, network, owner)

    async def _tell_part(self, network_id: str, network: Network, owner: Owner, rows: Rows) -> None:
        """Who comes, goes or is down, before the rest: that waits for no process. Raises DriverError."""
        if network.running is None or not network.kept.settled:
            return
        before = network.kept.of(owner)
        part = tellable(diff(rows, before), before)
        if part:
            await self._change(network_id, network, {owner: with_change(before, part)})

    async def _change_together(self, network_id: str, network: Network, owner: Owner) -> None:
        """With what others wait for: one process is enough. One who asks for what cannot be keeps no other: then each
        comes alone. Raises DriverError."""
        waiting, network.waiting = network.waiting, {}
        try:
            await self._change(network_id, network, waiting)
        except DriverError as error:
            if len(waiting) == 1:
                raise
            LOG.info("%s: %s; without what others wait for", network.kept.folder.name, error)
            await self._change(network_id, network, {owner: waiting[owner]})

    async def _change(self, network_id: str, network: Network, rows: Mapping[Owner, Rows]) -> None:
        """Of these owners. Raises DriverError; then all is as it was."""
        before, missing = dict(network.kept.owners), network.missing
        had = {row.key: row for row in network.kept.rows}
        network.kept.owners.update({owner: ours(its) for owner, its in rows.items()})
        for owner in [each for each in rows if not rows[each]]:
            del network.kept.owners[owner]
        try:
            await self._bring(network_id, network, had)
            self._secrets.forget(network.kept)
        except (OSError, Unwritable, DriverError) as error:
            network.kept.owners, network.missing = before, missing
            self._secrets.forget(network.kept)
            await self._hold(network)
            raise DriverError(f"the proxy of network {network_id}: {error}") from None

    async def _hold(self, network: Network) -> None:
        """What was there before a change that failed. A process that was told already to end is none."""
        kept = network.kept
        with contextlib.suppress(OSError):
            kept.write(settled=kept.settled)
        if network.running is not None and await running_pid(kept.folder / CONTROL) != network.running.pid:
            network.running = None
            self._say(network)
        if network.running is None or not kept.settled:
            self._watch_by(network, self._go_on_later(network))

    async def _bring(self, network_id: str, network: Network, had: Rows) -> None:
        """`had`: the rows of before."""
        kept = network.kept
        change = diff({row.key: row for row in kept.rows}, had)
        process = network.wanted
        if process is None:
            await self._end(network_id, network)
            return
        if not change and network.running is not None and network.running.is_there:
            return
        self._rights.make(kept.folder, (kept.folder / CONTROL).parent)
        missing = await self._bring_secrets(network, process, had)
        moved = network.placed is None or devices_of(network.placed) != devices_of(process)
        anew = moved or not kept.settled or network.running is None or missing != network.missing
        network.missing = missing
        told = None if anew else commands(change)
        texts = await asyncio.to_thread(self._files, network, process)
        if told is None:
            network.pace.spend(_now())
            await check_beside(kept.folder, texts, self._rights, self._program)
        kept.write(settled=False)
        for name, text in texts.items():
            self._rights.write(kept.folder / name, text)
        if told is not None and network.running is not None and network.running.is_there:
            try:
                await tell(kept.folder / CONTROL, (said(kept, each) for each in told))
            except (CommandFailed, Unavailable) as error:
                LOG.info("network %s: %s; a new process takes its place", network_id, error)
                if wait := network.pace.wait(_now()):
                    self._watch_by(network, self._go_on_later(network, wait))
                    return
                network.pace.spend(_now())
            else:
                kept.write(settled=True)
                return
        await self._start(network, process, moved=moved)

    async def _bring_secrets(self, network: Network, process: Process, had: Rows) -> frozenset[Secret]:
        """What cannot be had: what needs it waits. No listener that is served goes for want of a new secret: then it is
        the change that waits. Raises DriverError and OSError."""
        kept = network.kept
        try:
            self._secrets.put(kept, await self._secrets.ask(kept, again=False), {})
        except DriverError as error:
            LOG.warning("the proxy of %s has not all keys: %s", kept.folder.name, error)
        missing = self._secrets.missing(kept)
        if missing and network.running is not None:
            named = {row.name for row in kept.rows if isinstance(row, Frontend)}
            before = {each.name for each in network.served(ours(had).values())} & named
            lost = before.difference(each.name for each in served(process, kept.rows, missing))
            if lost:
                why = "; ".join(f"{each.reference!r}: {self._secrets.why(kept, each)}" for each in missing)
                raise DriverError(f"listener {min(lost)} would be served no more: {why}")
        return missing

    @property
    def lacks(self) -> bool:
        """Whether somebody waits for a key or a certificate."""
        return any(network.missing and network.wanted is not None for network in self._networks.values())

    async def renew(self) -> None:
        """Ask what has become of keys and certificates, and serve what is new. Raises DriverError."""
        failed = list[DriverError]()
        for network in [each for each in self._networks.values() if each.wanted is not None]:
            try:
                news = await self._secrets.ask(network.kept, again=True)
                async with network.busy:
                    if news or self._secrets.missing(network.kept) != network.missing:
                        await self._renew(network, news)
            except DriverError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    async def _renew(self, network: Network, news: Mapping[Secret, str]) -> None:
        """Raises DriverError; then all is as it was. The next agent begins anew if this one ends meanwhile."""
        kept, process, missing, settled = network.kept, network.wanted, network.missing, network.kept.settled
        if process is None:
            return
        before = dict[Secret, str]()
        try:
            kept.write(settled=False)
            self._secrets.put(kept, news, before)
            if not (settled and await self._told(network, before)):
                await self._replace(network, process)
        except (OSError, Unwritable, DriverError) as error:
            with contextlib.suppress(OSError):
                self._secrets.put_back(kept, before)
            network.missing, kept.settled = missing, settled
            await self._hold(network)
            raise DriverError(f"the proxy of {kept.folder.name}: {error}") from None

    async def _told(self, network: Network, renewed: Iterable[Secret]) -> bool:
        """Whether the process that runs has taken all of it."""
        kept = network.kept
        if network.running is None or self._secrets.missing(kept) != network.missing:
            return False
        try:
            told = (command for secret in renewed for command in renewal(secret))
            await tell(kept.folder / CONTROL, (said(kept, each) for each in told))
        except (CommandFailed, Unavailable) as error:
            LOG.info("%s: %s; a new process takes its place", kept.folder.name, error)
            return False
        kept.write(settled=True)
        return True

    async def _replace(self, network: Network, process: Process) -> None:
        """By a new process that reads all of it."""
        kept = network.kept
        network.pace.spend(_now())
        network.missing = self._secrets.missing(kept)
        texts = await asyncio.to_thread(self._files, network, process)
        await check_beside(kept.folder, texts, self._rights, self._program)
        for name, text in texts.items():
            self._rights.write(kept.folder / name, text)
        await self._start(network, process, moved=network.placed is None)

    async def _start(self, network: Network, process: Process, *, moved: bool) -> None:
        kept = network.kept
        if network.is_silent and network.running is not None:
            kill(network.running)  # connections would go on to be given to it
        if moved:
            if network.running is not None and network.placed is not None:
                await self._stop(network)
            await self._place(network, process)
        before = network.running if network.running is not None and network.running.is_there else None
        await self._metrics.keep(network)
        async with self._counters.carried_over(before, kept.folder / CONTROL):
            network.running = await start(kept.folder, self._program, network.inside, before)
        network.pace.came(_now())
        network.is_silent = False
        self._watch(network)
        self._say(network)
        there = await asyncio.to_thread(all_running, kept.folder)
        retire([each for each in there if each != network.running])
        kept.write(settled=True)

    async def _place(self, network: Network, process: Process) -> None:
        network.placed = None
        network.inside = await self._places.make(process)
        network.placed = process

    async def _go_on(self, network: Network) -> None:
        """What was not finished is done again, and a process started where none is. Raises DriverError."""
        async with network.busy:
            process = network.wanted
            if process is None:
                return
            try:
                if network.placed is None or devices_of(network.placed) != devices_of(process):
                    await self._place(network, process)
                if network.running is not None and network.running.is_there and network.kept.settled:
                    await self._metrics.keep(network)
                    self._watch(network)
                    self._say(network)
                    return
                network.missing = self._secrets.missing(network.kept)
                for name, text in (await asyncio.to_thread(self._files, network, process)).items():
                    self._rights.write(network.kept.folder / name, text)
                await self._start(network, process, moved=False)
            except (OSError, Unwritable) as error:
                raise DriverError(str(error)) from None

    async def _go_on_later(self, network: Network, wait: float = 0.0) -> None:
        """After a pause, and again until it is done."""
        await asyncio.sleep(wait)
        while True:
            await asyncio.sleep(network.pause)
            network.pause = min(2 * network.pause, LONGEST_PAUSE)
            try:
                await self._go_on(network)
            except DriverError as error:
                LOG.warning("the proxy of %s: %s; trying again", network.kept.folder.name, error)
            else:
                return

    async def _end(self, network_id: str, network: Network) -> None:
        """A network that has nobody to serve has no process, and without a port no place."""
        await self._stop(network)
        if network.kept.process is not None:
            self._rights.make(network.kept.folder, (network.kept.folder / CONTROL).parent)
            network.kept.write(settled=True)
            self._secrets.forget(network.kept)
            return
        await self._places.remove(network_id)
        network.kept.remove()
        if not network.kept.owners:
            self._networks.pop(network_id, None)

    async def _stop(self, network: Network) -> None:
        if network.watch is not None:
            network.watch.cancel()
            network.watch = None
        if network.running is not None:
            await self._counters.look(network.running, network.kept.folder / CONTROL)
        for each in await asyncio.to_thread(all_running, network.kept.folder):
            await stop(each)
        if network.running is not None:
            network.running = None
            self._say(network)

    def _watch(self, network: Network) -> None:
        self._watch_by(network, self._keep(network))

    def _watch_by(self, network: Network, work: Coroutine[None, None, None]) -> None:
        if network.watch is not None and network.watch is not asyncio.current_task():
            network.watch.cancel()
        network.watch = asyncio.ensure_future(work)

    async def _keep(self, network: Network) -> None:
        """Until the process is to end: it is started again whenever it has ended."""
        running = network.running
        if running is not None:
            loop = asyncio.get_running_loop()
            began, control = loop.time(), network.kept.folder / CONTROL
            looking = asyncio.ensure_future(
                look_after(running, control, network.busy.locked, partial(self._hear, network, running))
            )
            try:
                await ended(running)
            finally:
                looking.cancel()
            async with network.busy:  # one that is being replaced ends before the other one is known
                if network.running is not running:
                    return
                network.running = None
                self._say(network)
            if loop.time() - began > STEADY:
                network.pause = FIRST_PAUSE
            LOG.warning("the proxy of %s has ended; starting it again", network.kept.folder.name)
        await self._go_on_later(network)

    def _hear(self, network: Network, running: Running, answers: bool) -> None:
        if network.running is running and network.is_silent is answers:
            words = "answers again" if answers else "does not answer; its node is led to others"
            LOG.warning("the proxy of %s %s", network.kept.folder.name, words)
            network.is_silent = not answers
            self._say(network)

    def _say(self, network: Network) -> None:
        process = network.kept.process or network.placed
        serves = network.running is not None and not network.is_silent
        if process is not None:
            self._serving(process.port, ports_of(network.served(network.kept.rows)) if serves else None)

    async def _remove_left(self, folder: Path) -> None:
        for each in await asyncio.to_thread(all_running, folder):
            await stop(each)
        Kept(folder).remove()

    def _files(self, network: Network, process: Process) -> Mapping[str, str]:
        """Raises Unwritable."""
        kept = network.kept
        sockets = Sockets(
            control=str(kept.folder / CONTROL),
            peers=str(kept.folder / PEERS),
            exporter=str(kept.folder / EXPORTER),
            metrics=str(self._folder / SOCKET),
        )
        return files(process, kept.rows, sockets, network.missing)


def _now() -> float:
    return asyncio.get_running_loop().time()

"""Supervisor of a node's HAProxy processes: starts, replaces and watches them, and restarts those that end.

A process that ends is restarted immediately, then after growing pauses. The supervisor reports on which ports a proxy
accepts connections (`Serving`), and why a proxy does not come back (`Network.failure`).
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from fairlead.dataplane.haproxy import AnyProcess, HAProxyRow, Process
from fairlead.dataplane.haproxy_text import Held, Parts, Sockets, render
from fairlead.dataplane.haproxy_words import Unwritable
from fairlead.drivers.haproxy.backoff import FIRST_PAUSE, MANY, STEADY
from fairlead.drivers.haproxy.counters import Counters
from fairlead.drivers.haproxy.file_ownership import Rights
from fairlead.drivers.haproxy.liveness import look_after
from fairlead.drivers.haproxy.metrics import EXPORTER, SOCKET, Metrics
from fairlead.drivers.haproxy.namespaces import Places
from fairlead.drivers.haproxy.network import Network, counted_for, place_of, ports_of
from fairlead.drivers.haproxy.process import (
    CONTROL,
    DRAFT,
    MAX_REPLACED,
    PEERS,
    NotStarted,
    Program,
    Running,
    all_running,
    check_beside,
    ended,
    forget_files,
    kill,
    left_running,
    retire,
    start,
    stop,
    write_files,
)
from fairlead.drivers.haproxy.runtime import running_pid
from fairlead.drivers.haproxy.secrets import SecretFiles
from fairlead.drivers.haproxy.state import Kept
from fairlead.drivers.haproxy.threads import in_thread
from fairlead.drivers.haproxy.validation import find_unsound
from fairlead.drivers.interface import DriverError
from fairlead.model.documents.owner import Owner

LOG = logging.getLogger(__name__)
MAX_STARTS = 8
"""Maximum consecutive start attempts. Each attempt leaves out the owners that made the previous one fail."""
FRONTEND = re.compile(r"for frontend ([\w.:-]+): cannot bind")
"""Error of a process that cannot bind an address and port (HAProxy 2.6)."""
Serving: TypeAlias = Callable[[str, frozenset[int] | None], None]
"""Called with a port id and the ports on which its proxy accepts connections; None if the proxy does not run."""


@dataclass(slots=True, kw_only=True)
class Keeper:
    folder: Path
    places: Places
    serving: Serving
    program: Program
    rights: Rights
    secrets: SecretFiles
    counters: Counters
    metrics: Metrics
    failing: Callable[[Collection[Owner]], None] = lambda _: None
    """Called with load balancers for which `failure_of` has changed."""
    memory_limit_reached: int = 0
    """Number of times that a proxy began to reject connections at its memory limit."""

    async def resume(self, network: Network) -> None:
        """Resume a network from the state of an earlier agent, with retries until it succeeds. The pid file names the
        serving process if that agent had finished its last change."""
        if network.running is None and network.wanted is not None:
            async with network.busy:
                network.running, network.kept.settled = await left_running(network.kept.folder), False
        try:
            await self.go_on(network)
        except DriverError as error:
            self._fail(network, str(error))
            self.mend(network, network.restarts.after_failure(_now()))

    async def go_on(self, network: Network) -> None:
        """Repeat an unfinished change, and start a process if none runs. Raises DriverError."""
        async with network.busy:
            process = network.wanted
            if process is None:
                return
            try:
                await self.place(network, process)
                if network.is_there and network.kept.settled:
                    await self.metrics.keep(network)
                    self._serves(network)
                    return
                if network.is_there:
                    network.pace.spend(_now())
                network.missing = self.secrets.missing(network.kept)
                await self._start(network, process)
            except (OSError, Unwritable, DriverError) as error:
                await self._check_old(network)
                raise DriverError(str(error)) from None

    async def _start(self, network: Network, process: AnyProcess) -> None:
        """Starts a process for the stored rows. HAProxy has loaded them before, so they are not checked first. If the
        process does not start, the owners at fault are left out and the rest is started. Raises DriverError, OSError,
        Unwritable."""
        for _ in range(MAX_STARTS):
            try:
                await self.write(network, await asyncio.to_thread(self.files, network, process))
                await self.replace(network, process, moved=False)
            except NotStarted as error:
                if not await self._leave_out(network, process, error):
                    raise
            else:
                return

    async def _leave_out(self, network: Network, process: AnyProcess, error: NotStarted) -> bool:
        """Leave out the owners with sections that prevent a start. Returns False if none is found, or if no owner
        would remain. HAProxy names a frontend that it cannot bind; other faults are found by checks."""
        kept = network.kept
        found = self._named(network, error) or await self.find_unsound(network, process)
        if not found or not any(owner not in {**found, **kept.left_out} for owner in network.balancers):
            return False
        self.leave_out(network, found)
        return True

    def _named(self, network: Network, error: NotStarted) -> dict[Owner, str]:
        """Returns the owner of the frontend that HAProxy names in its error; empty if it names none."""
        named = FRONTEND.search(str(error))
        key = ("Frontend", named[1]) if named is not None else None
        return {owner: str(error) for owner in network.balancers if key in network.kept.owners[owner]}

    async def find_unsound(self, network: Network, process: AnyProcess) -> dict[Owner, str]:
        """Map each owner with sections that HAProxy does not load to the error. Raises OSError and Unwritable."""
        kept = network.kept

        async def check(owners: Sequence[Owner]) -> None:
            rows = [row for owner in owners for row in kept.owners[owner].values()]
            await self.check_part(network, process, rows)

        return await find_unsound([each for each in network.balancers if each not in kept.left_out], check)

    def leave_out(self, network: Network, found: Mapping[Owner, str]) -> None:
        """Stop serving these owners until their rows or secrets change."""
        for owner, why in found.items():
            LOG.warning("the proxy of %s serves others without %s: %s", network.kept.folder.name, owner, why)
        network.kept.left_out.update(found)
        self.failing(list(found))

    async def check(self, network: Network, process: AnyProcess, changed: Collection[Owner] = ()) -> Mapping[str, str]:
        """Return files that HAProxy loads. Owners with sections that it does not load are left out. If this change
        is theirs, it is rejected. Raises Unwritable, NotStarted, OSError."""
        try:
            return await self.check_all(network, process)
        except NotStarted as error:
            found = await self.find_unsound(network, process)
            if others := {owner: why for owner, why in found.items() if owner not in changed}:
                self.leave_out(network, others)
            if refused := [why for owner, why in found.items() if owner in changed]:
                raise NotStarted(refused[0]) from None
            if not others or network.wanted is None:
                raise error from None
            return await self.check_all(network, process)

    async def check_all(self, network: Network, process: AnyProcess) -> Mapping[str, str]:
        """Returns the files of all owners after HAProxy has loaded them. Raises Unwritable, NotStarted, OSError."""
        texts = await asyncio.to_thread(self.files, network, process)
        await check_beside(network.kept.folder, texts, self.rights, self.program)
        return texts

    async def check_part(self, network: Network, process: AnyProcess, rows: Iterable[HAProxyRow]) -> None:
        """Check these rows without the others of the process. Raises Unwritable, NotStarted, OSError."""
        texts = await asyncio.to_thread(self._files_of, network, process, rows)
        await check_beside(network.kept.folder, texts, self.rights, self.program)

    async def write(self, network: Network, texts: Mapping[str, str]) -> None:
        """Write the files of the process. Raises OSError."""
        await in_thread(write_files, network.kept.folder, texts, self.rights)

    async def replace(self, network: Network, process: AnyProcess, *, moved: bool) -> None:
        """Start a process that reads the files, and retire the old ones. Raises DriverError and OSError."""
        kept = network.kept
        if kept.settled:
            await kept.save(settled=False)  # if this agent ends now, the next one searches the serving process
        if network.is_silent and network.running is not None:
            kill(network.running)  # otherwise the kernel would still queue new connections to it
        if moved and network.running is not None and network.placed is not None:
            await self.stop(network)
        await self.place(network, process)
        before = network.running if network.is_there else None
        await self.metrics.keep(network)
        network.leaving = before
        try:
            async with self.counters.carried_over(before, kept.folder / CONTROL, network.counted_for):
                network.running = await start(kept.folder, self.program, network.inside, before)
        finally:
            network.leaving = None
        network.pace.came(_now())
        network.is_silent = False
        self._serves(network)
        there = await asyncio.to_thread(all_running, kept.folder)
        replaced = [each for each in there if each != network.running]
        since = network.changed_since
        network.changed_since = {each: since.get(each, frozenset()) | network.changing for each in replaced}
        network.changing = frozenset()
        retire(replaced, await self._expendable(network, replaced))
        await kept.save(settled=True)

    async def _expendable(self, network: Network, replaced: Sequence[Running]) -> Sequence[Running]:
        """Return the replaced processes above the limit that only have connections of load balancers changed since."""
        if len(replaced) <= MAX_REPLACED:
            return ()
        still_open = await self.counters.open_listeners(replaced)
        since = network.changed_since
        return [each for each in replaced if each in still_open and still_open[each] <= since[each]]

    async def place(self, network: Network, process: AnyProcess) -> None:
        """Create the namespace of the process, or update it in place. Raises DriverError."""
        if network.placed is not None and place_of(network.placed) == place_of(process):
            return
        network.placed = None
        network.inside = await self.places.make(process) if isinstance(process, Process) else ()
        network.placed = process

    def _serves(self, network: Network) -> None:
        """Record that the running process has loaded the stored rows."""
        network.ports = ports_of(network.served(network.kept.loaded))
        network.counted_for = counted_for(network.kept.loaded)
        self._watch(network)
        self.say(network)
        if network.restarts.ends < MANY:
            self._fail(network, "")

    async def hold(self, network: Network) -> None:
        """Return to the state before a failed change. The stored `settled` is set only after the serving process is
        known."""
        kept, settled = network.kept, network.kept.settled
        with contextlib.suppress(OSError):
            await kept.save(settled=False)
        await self._check_old(network)
        kept.settled = settled
        with contextlib.suppress(OSError):
            await kept.save(settled=settled and network.running is not None)
        kept.settled = settled
        if network.running is None or not network.kept.settled:
            self.mend(network, FIRST_PAUSE)

    async def _check_old(self, network: Network) -> None:
        """Forget a process that no longer responds because it was already signalled to end."""
        running = network.running
        if running is not None and await running_pid(network.kept.folder / CONTROL) != running.pid:
            network.running = None
            self.say(network)

    async def end(self, network: Network, network_id: str) -> None:
        """End the process of a network without a frontend; without a proxy port also remove namespace and folder."""
        await self.stop(network)
        self.metrics.forget(network)
        self._fail(network, "")
        if network.kept.process is not None:
            self.rights.make(network.kept.folder, (network.kept.folder / CONTROL).parent)
            await network.kept.save(settled=True)
            self.secrets.forget(network.kept)
            for each in (network.kept.folder, network.kept.folder / DRAFT):
                forget_files(each)
            return
        await self.places.remove(network_id)
        network.kept.remove()

    async def stop(self, network: Network) -> None:
        for task in (network.watch, network.mending):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        network.watch = network.mending = None
        if network.running is not None:
            await self.counters.look(network.running, network.kept.folder / CONTROL, network.counted_for)
        for each in await asyncio.to_thread(all_running, network.kept.folder):
            await stop(each)
        if network.running is not None:
            network.running = None
            self.say(network)

    async def remove_left(self, folder: Path) -> None:
        """End the processes of a folder with unreadable state, and remove the folder."""
        for each in await asyncio.to_thread(all_running, folder):
            await stop(each)
        Kept(folder).remove()

    async def close(self, networks: Iterable[Network]) -> None:
        """Stop all tasks. The HAProxy processes continue."""
        tasks = [task for each in networks for task in (each.watch, each.mending, each.turn.task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Background tasks

    def mend(self, network: Network, wait: float) -> None:
        """Retry `go_on` after `wait` seconds until it succeeds. A pending retry is kept."""
        mending = network.mending
        if mending is None or mending.done() or mending is asyncio.current_task():
            network.mending = asyncio.ensure_future(self._mend(network, wait))

    async def _mend(self, network: Network, wait: float) -> None:
        while True:
            await asyncio.sleep(wait)
            try:
                await self.go_on(network)
            except DriverError as error:
                self._fail(network, str(error))
                wait = network.restarts.after_failure(_now())
            else:
                return

    def _watch(self, network: Network) -> None:
        """Watch the running process, and cancel a pending start."""
        for task in (network.watch, network.mending):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        network.watch = asyncio.ensure_future(self._keep(network)) if network.running is not None else None

    async def _keep(self, network: Network) -> None:
        """Wait until the running process ends, and restart it unless it was stopped or replaced on purpose."""
        running, control, loop = network.running, network.kept.folder / CONTROL, asyncio.get_running_loop()
        if running is None:
            return
        looking = asyncio.ensure_future(
            look_after(
                running,
                control,
                network.busy.locked,
                self.program.has_filled,
                partial(self._hear, network, running),
            )
        )
        steady = loop.call_later(STEADY, self._fail, network, "")
        try:
            await ended(running)
        finally:
            looking.cancel()
            steady.cancel()
        if network.leaving is not running:
            self.say(network)  # even while a change is in progress
        async with network.busy:  # a replaced process ends before its successor is recorded
            if network.running is not running:
                return
            network.running = None
        wait = network.restarts.after_end(_now())
        LOG.warning("the proxy of %s has ended; starting it again", network.kept.folder.name)
        if network.restarts.ends >= MANY:
            self._fail(network, f"HAProxy has ended {network.restarts.ends} times, each soon after the last")
        if network.mending is not None:
            network.mending.cancel()
        network.mending = asyncio.ensure_future(self._mend(network, wait))

    def _hear(self, network: Network, running: Running, answers: bool) -> None:
        if network.running is running and network.is_silent is answers:
            words = "answers again" if answers else "does not answer; its node is led to others"
            LOG.warning("the proxy of %s %s", network.kept.folder.name, words)
            network.is_silent = not answers
            self.say(network)

    def say(self, network: Network) -> None:
        process = network.kept.process or network.placed
        serves = network.is_there and not network.is_silent
        if process is not None:
            self.serving(process.port, network.ports if serves else None)

    def _fail(self, network: Network, why: str) -> None:
        if why == network.failure:
            return
        network.failure = why
        if why:
            LOG.warning("the proxy of %s: %s; trying again", network.kept.folder.name, why)
        else:
            LOG.warning("the proxy of %s is there again", network.kept.folder.name)
        self.failing(network.balancers)

    def note_memory(self, network: Network, refused: int | None) -> None:
        """Records whether the proxy is out of memory. `refused` is the number of failed allocations since the running
        process started; None if its control socket does not answer."""
        running = network.running
        if running is None:
            return
        if refused is None:
            is_short = self.program.has_filled(running)
        else:
            # failures before this agent's first read of the counter do not count
            is_short = refused > network.refused_memory.get(str(running), refused)
            network.refused_memory = {str(running): refused}
        if is_short == bool(network.shortage):
            return
        if is_short:
            limit = self.program.memory
            self.memory_limit_reached += 1
            network.shortage = (
                f"HAProxy has all of its memory, {limit} MB (agent.haproxy_memory_limit): connections are refused"
            )
            LOG.warning("the proxy of %s: %s", network.kept.folder.name, network.shortage)
        else:
            network.shortage = ""
            LOG.warning("the proxy of %s has enough memory again", network.kept.folder.name)
        self.failing(network.balancers)

    def files(self, network: Network, process: AnyProcess) -> Mapping[str, str]:
        """Render the files of the process, as far as they have changed. Raises Unwritable."""
        texts, network.parts = self._render(network, process, network.kept.loaded)
        return texts

    def _files_of(self, network: Network, process: AnyProcess, rows: Iterable[HAProxyRow]) -> Mapping[str, str]:
        """Render the files for some rows. Raises Unwritable."""
        return self._render(network, process, rows)[0]

    def _render(
        self, network: Network, process: AnyProcess, rows: Iterable[HAProxyRow]
    ) -> tuple[Mapping[str, str], Parts]:
        kept = network.kept
        sockets = Sockets(
            control=str(kept.folder / CONTROL),
            peers=str(kept.folder / PEERS),
            exporter=str(kept.folder / EXPORTER),
            metrics=str(self.folder / SOCKET),
        )
        held = Held(missing=network.missing, slots=kept.slots, outlives=self.program.outlives)
        return render(process, rows, sockets, held, network.parts)


def _now() -> float:
    return asyncio.get_running_loop().time()

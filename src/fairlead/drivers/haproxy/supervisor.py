"""Supervisor of a node's HAProxy processes: starts, replaces and watches them, and restarts those that end.

A process that ends is restarted immediately, then after growing pauses. The supervisor reports on which ports a proxy
accepts connections (`ReportPorts`), and why a proxy does not come back (`ProxyNetwork.failure`).
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
from fairlead.dataplane.haproxy_text import Parts, ProcessState, ProxySockets, render
from fairlead.dataplane.haproxy_words import Unwritable
from fairlead.drivers.haproxy.backoff import CRASH_LOOP_ENDS, MIN_RESTART_DELAY, STABLE_SECONDS
from fairlead.drivers.haproxy.counters import ProxyCounters
from fairlead.drivers.haproxy.file_ownership import FileOwnership
from fairlead.drivers.haproxy.liveness import watch_liveness
from fairlead.drivers.haproxy.metrics import EXPORTER, SOCKET, MetricsServer
from fairlead.drivers.haproxy.namespaces import Namespaces
from fairlead.drivers.haproxy.network import ProxyNetwork, error_listeners_of, namespace_of, ports_of
from fairlead.drivers.haproxy.process import (
    CONTROL,
    DRAFT,
    MAX_REPLACED,
    PEERS,
    NotStarted,
    Program,
    RunningProcess,
    check_draft,
    find_processes,
    find_serving,
    kill,
    remove_stale_files,
    retire,
    start,
    stop,
    wait_ended,
    write_files,
)
from fairlead.drivers.haproxy.runtime import running_pid
from fairlead.drivers.haproxy.secrets import SecretFiles
from fairlead.drivers.haproxy.state import StoredState
from fairlead.drivers.haproxy.validation import find_invalid_owners
from fairlead.drivers.interface import DriverError
from fairlead.model.documents.owner import Owner
from fairlead.runtime.threads import in_thread

LOG = logging.getLogger(__name__)
MAX_STARTS = 8
"""Maximum consecutive start attempts. Each attempt leaves out the owners that made the previous one fail."""
FRONTEND = re.compile(r"for frontend ([\w.:-]+): cannot bind")
"""Error of a process that cannot bind an address and port (HAProxy 2.6)."""
ReportPorts: TypeAlias = Callable[[str, frozenset[int] | None], None]
"""Called with a port id and the ports on which its proxy accepts connections; None if the proxy does not run."""


@dataclass(slots=True, kw_only=True)
class Supervisor:
    folder: Path
    namespaces: Namespaces
    report_ports: ReportPorts
    program: Program
    rights: FileOwnership
    secrets: SecretFiles
    counters: ProxyCounters
    metrics: MetricsServer
    on_failure_changed: Callable[[Collection[Owner]], None] = lambda _: None
    """Called with load balancers for which `failure_of` has changed."""
    memory_limit_reached: int = 0
    """Number of times that a proxy began to reject connections at its memory limit."""

    async def resume(self, network: ProxyNetwork) -> None:
        """Resume a network from the state of an earlier agent, with retries until it succeeds. The pid file names the
        serving process if that agent had finished its last change."""
        if network.running is None and network.desired is not None:
            async with network.busy:
                network.running, network.state.is_applied = await find_serving(network.state.folder), False
        try:
            await self.resume_change(network)
        except DriverError as error:
            self._fail(network, str(error))
            self.schedule_retry(network, network.restarts.record_failure(_now()))

    async def resume_change(self, network: ProxyNetwork) -> None:
        """Repeat an unfinished change, and start a process if none runs. Raises DriverError."""
        async with network.busy:
            process = network.desired
            if process is None:
                return
            try:
                await self.ensure_namespace(network, process)
                if network.is_running and network.state.is_applied:
                    await self.metrics.save_counters(network)
                    self._record_serving(network)
                    return
                if network.is_running:
                    network.replacement_backoff.record_start(_now())
                network.missing = self.secrets.missing(network.state)
                await self._start(network, process)
            except (OSError, Unwritable, DriverError) as error:
                await self._forget_unresponsive(network)
                raise DriverError(str(error)) from None

    async def _start(self, network: ProxyNetwork, process: AnyProcess) -> None:
        """Starts a process for the stored rows. HAProxy has loaded them before, so they are not checked first. If the
        process does not start, the owners at fault are left out and the rest is started. Raises DriverError, OSError,
        Unwritable."""
        for _ in range(MAX_STARTS):
            try:
                await self.write(network, await asyncio.to_thread(self.files, network, process))
                await self.replace(network, process, moved=False)
            except NotStarted as error:
                if not await self._exclude_failed(network, process, error):
                    raise
            else:
                return

    async def _exclude_failed(self, network: ProxyNetwork, process: AnyProcess, error: NotStarted) -> bool:
        """Leave out the owners with sections that prevent a start. Returns False if none is found, or if no owner
        would remain. HAProxy names a frontend that it cannot bind; other faults are found by checks."""
        kept = network.state
        found = self._find_named_owner(network, error) or await self.find_invalid(network, process)
        if not found or not any(owner not in {**found, **kept.excluded} for owner in network.balancers):
            return False
        self.exclude(network, found)
        return True

    def _find_named_owner(self, network: ProxyNetwork, error: NotStarted) -> dict[Owner, str]:
        """Returns the owner of the frontend that HAProxy names in its error; empty if it names none."""
        named = FRONTEND.search(str(error))
        key = ("Frontend", named[1]) if named is not None else None
        return {owner: str(error) for owner in network.balancers if key in network.state.owners[owner]}

    async def find_invalid(self, network: ProxyNetwork, process: AnyProcess) -> dict[Owner, str]:
        """Map each owner with sections that HAProxy does not load to the error. Raises OSError and Unwritable."""
        kept = network.state

        async def check(owners: Sequence[Owner]) -> None:
            rows = [row for owner in owners for row in kept.owners[owner].values()]
            await self.check_part(network, process, rows)

        return await find_invalid_owners([each for each in network.balancers if each not in kept.excluded], check)

    def exclude(self, network: ProxyNetwork, found: Mapping[Owner, str]) -> None:
        """Stop serving these owners until their rows or secrets change."""
        for owner, why in found.items():
            LOG.warning("proxy of %s excludes %s: %s", network.state.folder.name, owner, why)
        network.state.excluded.update(found)
        self.on_failure_changed(list(found))

    async def check(
        self, network: ProxyNetwork, process: AnyProcess, changed: Collection[Owner] = ()
    ) -> Mapping[str, str]:
        """Return files that HAProxy loads. Owners with sections that it does not load are left out. If this change
        is theirs, it is rejected. Raises Unwritable, NotStarted, OSError."""
        try:
            return await self.check_all(network, process)
        except NotStarted as error:
            found = await self.find_invalid(network, process)
            if others := {owner: why for owner, why in found.items() if owner not in changed}:
                self.exclude(network, others)
            if refused := [why for owner, why in found.items() if owner in changed]:
                raise NotStarted(refused[0]) from None
            if not others or network.desired is None:
                raise error from None
            return await self.check_all(network, process)

    async def check_all(self, network: ProxyNetwork, process: AnyProcess) -> Mapping[str, str]:
        """Returns the files of all owners after HAProxy has loaded them. Raises Unwritable, NotStarted, OSError."""
        texts = await asyncio.to_thread(self.files, network, process)
        await check_draft(network.state.folder, texts, self.rights, self.program)
        return texts

    async def check_part(self, network: ProxyNetwork, process: AnyProcess, rows: Iterable[HAProxyRow]) -> None:
        """Check these rows without the others of the process. Raises Unwritable, NotStarted, OSError."""
        texts = await asyncio.to_thread(self._files_of, network, process, rows)
        await check_draft(network.state.folder, texts, self.rights, self.program)

    async def write(self, network: ProxyNetwork, texts: Mapping[str, str]) -> None:
        """Write the files of the process. Raises OSError."""
        await in_thread(write_files, network.state.folder, texts, self.rights)

    async def replace(self, network: ProxyNetwork, process: AnyProcess, *, moved: bool) -> None:
        """Start a process that reads the files, and retire the old ones. Raises DriverError and OSError."""
        kept = network.state
        if kept.is_applied:
            await kept.save(settled=False)  # if this agent ends now, the next one searches the serving process
        if network.is_unresponsive and network.running is not None:
            kill(network.running)  # otherwise the kernel would still queue new connections to it
        if moved and network.running is not None and network.namespace_process is not None:
            await self.stop(network)
        await self.ensure_namespace(network, process)
        before = network.running if network.is_running else None
        await self.metrics.save_counters(network)
        network.replacing = before
        try:
            async with self.counters.follow_replaced(before, kept.folder / CONTROL, network.error_listeners):
                network.running = await start(kept.folder, self.program, network.command_prefix, before)
        finally:
            network.replacing = None
        network.replacement_backoff.record_serving(_now())
        network.is_unresponsive = False
        self._record_serving(network)
        there = await asyncio.to_thread(find_processes, kept.folder)
        replaced = [each for each in there if each != network.running]
        since = network.changed_since_replaced
        network.changed_since_replaced = {
            each: since.get(each, frozenset()) | network.changed_listeners for each in replaced
        }
        network.changed_listeners = frozenset()
        retire(replaced, await self._expendable(network, replaced))
        await kept.save(settled=True)

    async def _expendable(self, network: ProxyNetwork, replaced: Sequence[RunningProcess]) -> Sequence[RunningProcess]:
        """Return the replaced processes above the limit that only have connections of load balancers changed since."""
        if len(replaced) <= MAX_REPLACED:
            return ()
        still_open = await self.counters.open_listeners(replaced)
        since = network.changed_since_replaced
        return [each for each in replaced if each in still_open and still_open[each] <= since[each]]

    async def ensure_namespace(self, network: ProxyNetwork, process: AnyProcess) -> None:
        """Create the namespace of the process, or update it in place. Raises DriverError."""
        if network.namespace_process is not None and namespace_of(network.namespace_process) == namespace_of(process):
            return
        network.namespace_process = None
        network.command_prefix = await self.namespaces.make(process) if isinstance(process, Process) else ()
        network.namespace_process = process

    def _record_serving(self, network: ProxyNetwork) -> None:
        """Record that the running process has loaded the stored rows."""
        network.ports = ports_of(network.servable_frontends(network.state.loaded))
        network.error_listeners = error_listeners_of(network.state.loaded)
        self._watch(network)
        self.report(network)
        if network.restarts.ends < CRASH_LOOP_ENDS:
            self._fail(network, "")

    async def roll_back(self, network: ProxyNetwork) -> None:
        """Return to the state before a failed change. The stored `settled` is set only after the serving process is
        known."""
        kept, settled = network.state, network.state.is_applied
        with contextlib.suppress(OSError):
            await kept.save(settled=False)
        await self._forget_unresponsive(network)
        kept.is_applied = settled
        with contextlib.suppress(OSError):
            await kept.save(settled=settled and network.running is not None)
        kept.is_applied = settled
        if network.running is None or not network.state.is_applied:
            self.schedule_retry(network, MIN_RESTART_DELAY)

    async def _forget_unresponsive(self, network: ProxyNetwork) -> None:
        """Forget a process that no longer responds because it was already signalled to end."""
        running = network.running
        if running is not None and await running_pid(network.state.folder / CONTROL) != running.pid:
            network.running = None
            self.report(network)

    async def end(self, network: ProxyNetwork, network_id: str) -> None:
        """End the process of a network without a frontend; without a proxy port also remove namespace and folder."""
        await self.stop(network)
        self.metrics.forget(network)
        self._fail(network, "")
        if network.state.process is not None:
            self.rights.make(network.state.folder, (network.state.folder / CONTROL).parent)
            await network.state.save(settled=True)
            self.secrets.prune(network.state)
            for each in (network.state.folder, network.state.folder / DRAFT):
                remove_stale_files(each)
            return
        await self.namespaces.remove(network_id)
        network.state.remove()

    async def stop(self, network: ProxyNetwork) -> None:
        for task in (network.watch, network.restart):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        network.watch = network.restart = None
        if network.running is not None:
            await self.counters.read(network.running, network.state.folder / CONTROL, network.error_listeners)
        for each in await asyncio.to_thread(find_processes, network.state.folder):
            await stop(each)
        if network.running is not None:
            network.running = None
            self.report(network)

    async def remove_unreadable(self, folder: Path) -> None:
        """End the processes of a folder with unreadable state, and remove the folder."""
        for each in await asyncio.to_thread(find_processes, folder):
            await stop(each)
        StoredState(folder).remove()

    async def close(self, networks: Iterable[ProxyNetwork]) -> None:
        """Stop all tasks. The HAProxy processes continue."""
        tasks = [task for each in networks for task in (each.watch, each.restart, each.queue.task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Background tasks

    def schedule_retry(self, network: ProxyNetwork, wait: float) -> None:
        """Retry `resume_change` after `wait` seconds until it succeeds. A pending retry is kept."""
        mending = network.restart
        if mending is None or mending.done() or mending is asyncio.current_task():
            network.restart = asyncio.ensure_future(self._retry(network, wait))

    async def _retry(self, network: ProxyNetwork, wait: float) -> None:
        while True:
            await asyncio.sleep(wait)
            try:
                await self.resume_change(network)
            except DriverError as error:
                self._fail(network, str(error))
                wait = network.restarts.record_failure(_now())
            else:
                return

    def _watch(self, network: ProxyNetwork) -> None:
        """Watch the running process, and cancel a pending start."""
        for task in (network.watch, network.restart):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        network.watch = (
            asyncio.ensure_future(self._restart_when_ended(network)) if network.running is not None else None
        )

    async def _restart_when_ended(self, network: ProxyNetwork) -> None:
        """Wait until the running process ends, and restart it unless it was stopped or replaced on purpose."""
        running, control, loop = network.running, network.state.folder / CONTROL, asyncio.get_running_loop()
        if running is None:
            return
        looking = asyncio.ensure_future(
            watch_liveness(
                running,
                control,
                network.busy.locked,
                self.program.is_out_of_memory,
                partial(self._report_liveness, network, running),
            )
        )
        steady = loop.call_later(STABLE_SECONDS, self._fail, network, "")
        try:
            await wait_ended(running)
        finally:
            looking.cancel()
            steady.cancel()
        if network.replacing is not running:
            self.report(network)  # even while a change is in progress
        async with network.busy:  # a replaced process ends before its successor is recorded
            if network.running is not running:
                return
            network.running = None
        wait = network.restarts.record_end(_now())
        LOG.warning("proxy of %s exited; restarting it", network.state.folder.name)
        if network.restarts.ends >= CRASH_LOOP_ENDS:
            self._fail(network, f"HAProxy exited {network.restarts.ends} times in a row, each soon after its start")
        if network.restart is not None:
            network.restart.cancel()
        network.restart = asyncio.ensure_future(self._retry(network, wait))

    def _report_liveness(self, network: ProxyNetwork, running: RunningProcess, answers: bool) -> None:
        if network.running is running and network.is_unresponsive is answers:
            words = "responds again" if answers else "is unresponsive; packets of this node go to other proxies"
            LOG.warning("proxy of %s %s", network.state.folder.name, words)
            network.is_unresponsive = not answers
            self.report(network)

    def report(self, network: ProxyNetwork) -> None:
        process = network.state.process or network.namespace_process
        serves = network.is_running and not network.is_unresponsive
        if process is not None:
            self.report_ports(process.port, network.ports if serves else None)

    def _fail(self, network: ProxyNetwork, why: str) -> None:
        if why == network.failure:
            return
        network.failure = why
        if why:
            LOG.warning("proxy of %s: %s; retrying", network.state.folder.name, why)
        else:
            LOG.warning("proxy of %s is running again", network.state.folder.name)
        self.on_failure_changed(network.balancers)

    def note_memory(self, network: ProxyNetwork, refused: int | None) -> None:
        """Records whether the proxy is out of memory. `refused` is the number of failed allocations since the running
        process started; None if its control socket does not answer."""
        running = network.running
        if running is None:
            return
        if refused is None:
            is_short = self.program.is_out_of_memory(running)
        else:
            # failures before this agent's first read of the counter do not count
            is_short = refused > network.failed_allocations.get(str(running), refused)
            network.failed_allocations = {str(running): refused}
        if is_short == bool(network.memory_error):
            return
        if is_short:
            limit = self.program.memory
            self.memory_limit_reached += 1
            network.memory_error = (
                f"HAProxy has reached its memory limit of {limit} MB, so it refuses connections:"
                " raise agent.haproxy_memory_limit"
            )
            LOG.warning("proxy of %s: %s", network.state.folder.name, network.memory_error)
        else:
            network.memory_error = ""
            LOG.warning("proxy of %s is below its memory limit again", network.state.folder.name)
        self.on_failure_changed(network.balancers)

    def files(self, network: ProxyNetwork, process: AnyProcess) -> Mapping[str, str]:
        """Render the files of the process, as far as they have changed. Raises Unwritable."""
        texts, network.parts = self._render(network, process, network.state.loaded)
        return texts

    def _files_of(self, network: ProxyNetwork, process: AnyProcess, rows: Iterable[HAProxyRow]) -> Mapping[str, str]:
        """Render the files for some rows. Raises Unwritable."""
        return self._render(network, process, rows)[0]

    def _render(
        self, network: ProxyNetwork, process: AnyProcess, rows: Iterable[HAProxyRow]
    ) -> tuple[Mapping[str, str], Parts]:
        kept = network.state
        sockets = ProxySockets(
            control=str(kept.folder / CONTROL),
            peers=str(kept.folder / PEERS),
            exporter=str(kept.folder / EXPORTER),
            metrics=str(self.folder / SOCKET),
        )
        held = ProcessState(missing=network.missing, slots=kept.slots, hard_stop_after=self.program.hard_stop_after)
        return render(process, rows, sockets, held, network.parts)


def _now() -> float:
    return asyncio.get_running_loop().time()

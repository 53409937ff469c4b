"""Driver of the HAProxy processes on this node: stores the rows of each network and applies them to its process.

The driver applies what it can with runtime API commands; for everything else a new process replaces the old one without
losing a connection (`keeping.py`). HAProxy loads each file before it is used. Sections of one owner that it does not
load do not affect other owners. Networks do not wait for each other (`turn.py`).
"""

import asyncio
import contextlib
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fairlead.dataplane.haproxy import AnyProcess, Frontend, HAProxyRow
from fairlead.dataplane.haproxy_commands import renewal_commands
from fairlead.dataplane.haproxy_text import loadable_frontends
from fairlead.dataplane.haproxy_words import Unwritable
from fairlead.dataplane.rows import Diff, Key, Rows
from fairlead.drivers.haproxy.change_queue import START_TIMEOUT
from fairlead.drivers.haproxy.counters import ProxyCounters
from fairlead.drivers.haproxy.file_ownership import FileOwnership
from fairlead.drivers.haproxy.metrics import MetricsServer
from fairlead.drivers.haproxy.namespaces import Namespaces
from fairlead.drivers.haproxy.network import (
    ChangePlan,
    ProxyNetwork,
    device_of,
    error_listeners_of,
    folder_name,
    network_of,
    ours,
    ours_of,
    with_change,
)
from fairlead.drivers.haproxy.process import CONTROL, Program, read_running
from fairlead.drivers.haproxy.program_upgrade import ProgramUpgrader
from fairlead.drivers.haproxy.runtime import CommandFailed, send_commands
from fairlead.drivers.haproxy.secrets import Fetch, SecretFiles, fetch_nothing, with_payload
from fairlead.drivers.haproxy.state import StoredState, read_state
from fairlead.drivers.haproxy.supervisor import ReportPorts, Supervisor
from fairlead.drivers.interface import DriverError, Requeue, Unavailable
from fairlead.model.documents.agent_counters import MEMORY_LIMIT_REACHED, OWNERS_LEFT_OUT, Counts
from fairlead.model.documents.owner import Owner
from fairlead.model.queries.secrets import Secret

LOG = logging.getLogger(__name__)
_FOLDER_NAME = re.compile("[0-9a-f]{12}")
"""Names of the driver's folders (`folder_name`). The operator may configure a folder that also has other files."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A change of some owners of one HAProxy."""

    owners: Collection[Owner]
    """Owners whose rows change."""
    before: Mapping[Owner, Rows]
    """Rows of all owners before the change."""
    is_new: bool
    """Whether the running process lacks sections of these owners, because they were left out."""


def listeners_of(some: Iterable[Rows]) -> frozenset[str]:
    """The names of all frontends among these rows."""
    return frozenset(row.name for rows in some for row in rows.values() if isinstance(row, Frontend))


class HAProxy:
    """A driver (`drivers/interface.py`)."""

    def __init__(
        self,
        folder: Path,
        places: Namespaces,
        serving: ReportPorts,
        program: Program = Program(),  # noqa: B008 - a value
        fetch: Fetch = fetch_nothing,
        counters: ProxyCounters | None = None,
    ) -> None:
        """`folder` is on a tmpfs, because its contents are useless after a reboot."""
        self._folder = folder
        self._rights = FileOwnership(program.user)
        self._secrets = SecretFiles(fetch, self._rights)
        self._counters = counters or ProxyCounters()
        self._networks: dict[str, ProxyNetwork] = {}
        self._metrics = MetricsServer(folder, self._rights, self._network_with)
        self._on_requeue: Callable[[Collection[Owner]], None] = lambda _: None
        self._supervisor = Supervisor(
            folder=folder,
            namespaces=places,
            report_ports=serving,
            program=program,
            rights=self._rights,
            secrets=self._secrets,
            counters=self._counters,
            metrics=self._metrics,
        )
        self._upgrader = ProgramUpgrader(self._supervisor)

    def subscribe(
        self, settled: Callable[[Collection[Owner]], None], failing: Callable[[Collection[Owner]], None]
    ) -> None:
        """Set callbacks: `settled` gets owners to requeue after Later; `failing` gets load balancers with a changed
        `failure_of`."""
        self._on_requeue, self._supervisor.on_failure_changed = settled, failing

    def failure_of(self, owner: Owner) -> str | None:
        """Return why the proxy does not serve a load balancer, or not completely; None if it serves or starts."""
        for network in self._networks.values():
            why = (
                network.failure
                or network.state.excluded.get(owner)
                or network.rejected_secrets.get(owner)
                or network.memory_error
            )
            if why and owner in network.balancers:
                return why
        return None

    def counts(self) -> Counts:
        left_out = sum(len(each.state.excluded) for each in self._networks.values())
        return {OWNERS_LEFT_OUT: left_out, MEMORY_LIMIT_REACHED: self._supervisor.memory_limit_reached}

    async def open(self) -> None:
        """Read the state of an earlier agent and resume it. A slow process does not delay the others. A node that never
        had a proxy has no folder.

        Raises OSError.
        """
        if not self._folder.exists():
            return
        for each in sorted(each for each in self._folder.iterdir() if _FOLDER_NAME.fullmatch(each.name)):
            kept = read_state(each)
            if kept.process is None:
                await self._supervisor.remove_unreadable(each)
                continue
            running = read_running(each) if kept.is_applied else None
            network = self._networks[kept.process.network] = ProxyNetwork(kept, running=running)
            network.error_listeners = error_listeners_of(kept.loaded)
            network.missing = self._secrets.missing(kept)
            network.restart = asyncio.ensure_future(self._supervisor.resume(network))
        if resuming := [each.restart for each in self._networks.values() if each.restart is not None]:
            await asyncio.wait(resuming, timeout=START_TIMEOUT)

    async def close(self) -> None:
        """Stop all tasks. The HAProxy processes continue."""
        await self._upgrader.close()
        await self._supervisor.close(self._networks.values())
        await self._counters.close()
        await self._metrics.close()

    async def remove(self) -> None:
        """Remove everything that an agent has left, and end the processes with their connections. No agent may run."""
        if self._folder.exists():
            for each in [each for each in self._folder.iterdir() if _FOLDER_NAME.fullmatch(each.name)]:
                await self._supervisor.remove_unreadable(each)

    async def poll(self) -> None:
        """Read the counters of each process, and replace processes that run an outdated program."""
        self._upgrader.start(self._networks.values())
        for network in tuple(self._networks.values()):
            if network.running is not None:
                refused = None
                if not network.is_unresponsive:
                    control = network.state.folder / CONTROL
                    refused = await self._counters.read(network.running, control, network.error_listeners)
                self._supervisor.note_memory(network, refused)

    async def read_all(self) -> Mapping[Owner, Rows]:
        found = defaultdict[Owner, dict[Key, HAProxyRow]](dict)
        for network in self._networks.values():
            for owner, rows in network.owners.items():
                found[owner].update(ours(rows))
        return {owner: rows for owner, rows in found.items() if rows}

    async def read(self, owner: Owner) -> Rows:
        return self._rows_of(owner)

    def _rows_of(self, owner: Owner) -> dict[Key, HAProxyRow]:
        found: dict[Key, HAProxyRow] = {}
        for network in self._networks.values():
            found.update(ours(network.owners.get(owner, {})))
        return found

    def _network_with(self, owner: Owner) -> ProxyNetwork | None:
        return next((each for each in self._networks.values() if owner in each.state.owners), None)

    async def apply(self, owner: Owner, change: Diff) -> None:
        """Apply the rows of an owner. A load balancer has rows in one process; a network has one process for each
        project with proxies there, and a failure in one does not affect the others."""
        before = self._rows_of(owner)
        after = with_change(before, change)
        was, is_now = network_of(before), network_of(after)
        involved = {*map(was, before.values()), *map(is_now, after.values())}
        self._drop_pending(owner, involved)
        asked = (
            self._put(network_id, owner, {key: row for key, row in after.items() if is_now(row) == network_id})
            for network_id in involved
        )
        failed = [each for each in await asyncio.gather(*asked, return_exceptions=True) if each is not None]
        if failed:
            raise min(failed, key=lambda each: isinstance(each, Requeue))

    def _drop_pending(self, owner: Owner, involved: Container[str]) -> None:
        """Drop pending rows in networks where the owner no longer has any, so that no process loads them."""
        for network_id, network in self._networks.items():
            if network_id not in involved:
                network.pending.pop(owner, None)
                network.queue.forget(owner)

    async def _put(self, network_id: str, owner: Owner, rows: Mapping[Key, HAProxyRow]) -> None:
        """Apply an owner's rows in one network. Raises Later, and DriverError after restoring the previous state."""
        network = self._networks.get(network_id)
        if network is None:
            network = self._networks[network_id] = ProxyNetwork(StoredState(self._folder / folder_name(network_id)))
        work = partial(self._put_now, network_id, network, owner, rows)
        await network.queue.run(owner, rows, work, self._on_requeue)

    async def _put_now(
        self, network_id: str, network: ProxyNetwork, owner: Owner, rows: Mapping[Key, HAProxyRow]
    ) -> None:
        """Apply rows with commands, or with a new process when the rate limit allows it. Raises Later, and DriverError
        after restoring the previous state."""
        async with network.busy:
            plan = await asyncio.to_thread(network.plan, owner, rows)
            if wait := network.wait(plan, _now()):
                network.pending[owner] = dict(rows)
                await self._apply_without_reload(network_id, network, owner, rows)
                raise Requeue(wait)
            if plan is not None:
                network.pending.pop(owner, None)
                await self._change(network_id, network, {owner: rows}, plan)
            else:
                network.pending[owner] = dict(rows)
                await self._apply_pending(network_id, network, owner)

    async def _apply_without_reload(self, network_id: str, network: ProxyNetwork, owner: Owner, rows: Rows) -> None:
        """Apply the part of a change that needs no new process, for example added, removed or failed members. Raises
        DriverError."""
        if network.running is None or not network.state.is_applied:
            return
        only_servers = bool(network.command_pace.wait(_now()))
        part = await asyncio.to_thread(network.plan_part, owner, rows, only_servers=only_servers)
        if part is not None:
            after, plan = part
            await self._change(network_id, network, {owner: after}, plan)

    async def _apply_pending(self, network_id: str, network: ProxyNetwork, owner: Owner) -> None:
        """Apply all pending changes of the network with one new process. If that fails, only this owner's change is
        applied, so an invalid change does not block others. Raises DriverError."""
        waiting, network.pending = network.pending, {}
        try:
            await self._change(network_id, network, waiting)
        except DriverError as error:
            if len(waiting) == 1:
                raise
            LOG.info(
                "proxy of %s: %s; retrying without the changes of other load balancers",
                network.state.folder.name,
                error,
            )
            await self._change(network_id, network, {owner: waiting[owner]})

    async def _change(
        self, network_id: str, network: ProxyNetwork, rows: Mapping[Owner, Rows], plan: ChangePlan | None = None
    ) -> None:
        """Apply changes of these owners: by the commands of a plan, or by a new process. Raises DriverError after
        restoring the previous state."""
        await asyncio.to_thread(network.check_patterns, rows)
        before, missing = dict(network.state.owners), network.missing
        slots, changing = network.state.slots, network.changed_listeners
        left_out = {owner: why for owner, why in network.state.excluded.items() if owner in rows}
        network.rows_before = before
        for owner in left_out:
            del network.state.excluded[owner]
        network.state.owners.update({owner: ours(its) for owner, its in rows.items()})
        for owner in [each for each in rows if not rows[each]]:
            del network.state.owners[owner]
        changed = Changed(rows.keys(), before, is_new=bool(left_out))
        try:
            await self._apply_change(network_id, network, changed, plan)
            self._secrets.prune(network.state)
        except (OSError, Unwritable, DriverError) as error:
            network.state.owners, network.missing = before, missing
            network.state.slots, network.changed_listeners = slots, changing
            network.state.excluded.update(left_out)
            self._secrets.prune(network.state)
            await self._supervisor.roll_back(network)
            raise DriverError(f"proxy of network {network_id}: {error}") from None
        finally:
            network.rows_before = None
        if left_out:
            self._supervisor.on_failure_changed(list(left_out))

    async def _apply_change(
        self, network_id: str, network: ProxyNetwork, changed: Changed, plan: ChangePlan | None
    ) -> None:
        """Applies a change. A file is written after HAProxy has loaded it, or has applied the changes of servers."""
        kept = network.state
        process = network.desired
        if process is None:
            await self._supervisor.end(network, network_id)
            if not kept.owners:
                self._networks.pop(network_id, None)
            return
        if network.is_running and not changed.is_new and not await asyncio.to_thread(_differs, kept, changed, plan):
            return
        self._rights.make(kept.folder, (kept.folder / CONTROL).parent)
        missing = await self._fetch_secrets(network, process, changed.before)
        moved = network.namespace_process is None or device_of(network.namespace_process) != device_of(process)
        anew = moved or not kept.is_applied or network.running is None or missing != network.missing or changed.is_new
        network.missing = missing
        if plan is not None and not anew and network.is_running:
            kept.slots = plan.slots
            await self._bring_by_commands(network_id, network, process, changed, plan)
            return
        await asyncio.to_thread(kept.assign_slots)
        network.replacement_backoff.record_start(_now())
        network.changed_listeners |= await asyncio.to_thread(_listeners, network, changed)
        texts = await self._supervisor.check(network, process, changed.owners)
        await kept.save(settled=False)
        await self._supervisor.write(network, texts)
        await self._supervisor.replace(network, process, moved=moved)

    async def _bring_by_commands(
        self, network_id: str, network: ProxyNetwork, process: AnyProcess, changed: Changed, plan: ChangePlan
    ) -> None:
        """Apply a change by commands after HAProxy has loaded the changed sections; if a command fails, by a new
        process."""
        kept = network.state
        texts = await asyncio.to_thread(self._supervisor.files, network, process)
        if plan.checked:
            network.command_pace.spend(_now())
            await self._supervisor.check_part(network, process, plan.checked)
        await kept.save(settled=False)
        await self._supervisor.ensure_namespace(network, process)
        try:
            await send_commands(kept.folder / CONTROL, (with_payload(kept, each) for each in plan.commands))
        except (CommandFailed, Unavailable) as error:
            LOG.info("proxy of network %s: %s; starting a new process", network_id, error)
            texts = await self._supervisor.check(network, process, changed.owners)
            network.changed_listeners |= await asyncio.to_thread(_listeners, network, changed)
            wait = network.replacement_backoff.wait(_now())
            if wait and network.is_running:
                await self._supervisor.write(network, texts)
                self._supervisor.schedule_retry(network, wait)
                return
            network.replacement_backoff.record_start(_now())
            await self._supervisor.write(network, texts)
            await self._supervisor.replace(network, process, moved=False)
        else:
            await self._supervisor.write(network, texts)
            updated = ours_of(each.after for each in plan.change.updates.values())
            # a removed backend remains in the process with its counters
            network.error_listeners = {**error_listeners_of(updated), **network.error_listeners}
            await kept.save(settled=True)

    async def _fetch_secrets(
        self, network: ProxyNetwork, process: AnyProcess, had: Mapping[Owner, Rows]
    ) -> frozenset[Secret]:
        """Fetch secrets; return those that are missing. Listeners without a secret are not started.

        Raises DriverError if a listener that is served would stop because a new secret is missing, so the whole change
        is retried later.
        Raises OSError.
        """
        kept = network.state
        try:
            self._secrets.write(kept, await self._secrets.fetch_missing(kept, again=False), {})
        except DriverError as error:
            LOG.warning("proxy of %s: keys are missing: %s", kept.folder.name, error)
        missing = self._secrets.missing(kept)
        if missing and network.running is not None:
            named = {row.name for row in kept.rows if isinstance(row, Frontend)}
            before = {
                each.name
                for each in network.servable_frontends(row for its in had.values() for row in ours(its).values())
            }
            lost = (before & named).difference(each.name for each in loadable_frontends(process, kept.rows, missing))
            if lost:
                why = "; ".join(f"{each.reference!r}: {self._secrets.reason(kept, each)}" for each in missing)
                raise DriverError(f"listener {min(lost)} would no longer be served, because secrets are missing: {why}")
        return missing

    @property
    def has_missing_secrets(self) -> bool:
        """Whether a listener waits for a key or a certificate."""
        return any(network.missing and network.desired is not None for network in self._networks.values())

    async def refresh_secrets(self) -> None:
        """Fetch all keys and certificates again, and serve the renewed ones. Raises DriverError."""
        wanted = [each for each in self._networks.values() if each.desired is not None]
        failed = await asyncio.gather(*map(self._refresh_network, wanted), return_exceptions=True)
        if failed := [each for each in failed if each is not None]:
            raise failed[0]

    async def _refresh_network(self, network: ProxyNetwork) -> None:
        """Fetch the secrets of one network and load the renewed ones. Raises DriverError."""
        news = await self._secrets.fetch_missing(network.state, again=True)
        async with network.busy:
            if not news and self._secrets.missing(network.state) == network.missing:
                return
            try:
                await self._renew(network, news)
                self._note_refused(network, {})
            except DriverError:
                if len(news) < 2:
                    raise
                await self._renew_one_by_one(network, news)

    async def _renew_one_by_one(self, network: ProxyNetwork, news: Mapping[Secret, str]) -> None:
        """Renews secrets one by one: HAProxy serves those that it loads. Raises DriverError if it rejects any."""
        refused = dict[Owner, str]()
        for secret, text in news.items():
            try:
                await self._renew(network, {secret: text})
            except DriverError as error:
                refused.update(dict.fromkeys(self._secrets.owners_of(network.state, secret), str(error)))
        self._note_refused(network, refused)
        if refused:
            raise DriverError(next(iter(refused.values())))

    def _note_refused(self, network: ProxyNetwork, refused: dict[Owner, str]) -> None:
        changed, network.rejected_secrets = network.rejected_secrets.keys() ^ refused.keys(), refused
        if changed:
            self._supervisor.on_failure_changed(list(changed))

    async def _renew(self, network: ProxyNetwork, news: Mapping[Secret, str]) -> None:
        """Load renewed secrets. Raises DriverError after restoring the previous ones. If the agent ends during the
        renewal, the next one starts a new process."""
        kept, process, missing, settled = network.state, network.desired, network.missing, network.state.is_applied
        if process is None:
            return
        before, slots = dict[Secret, str](), kept.slots
        renewed = {owner for secret in news for owner in self._secrets.owners_of(kept, secret)}
        left_out = {owner: why for owner, why in kept.excluded.items() if owner in renewed}
        try:
            await kept.save(settled=False)
            self._secrets.write(kept, news, before)
            for owner in left_out:
                del kept.excluded[owner]
            if left_out:
                await asyncio.to_thread(kept.assign_slots)
            network.missing = self._secrets.missing(kept)
            texts = await self._supervisor.check_all(network, process)
            if left_out or not (settled and await self._load_renewed(network, before, missing)):
                await self._replace(network, process, texts)
        except (OSError, Unwritable, DriverError) as error:
            with contextlib.suppress(OSError):
                self._secrets.restore(kept, before)
            kept.excluded.update(left_out)
            kept.slots, network.missing, kept.is_applied = slots, missing, settled
            await self._supervisor.roll_back(network)
            raise DriverError(f"proxy of {kept.folder.name}: {error}") from None
        if left_out:
            self._supervisor.on_failure_changed(list(left_out))

    async def _load_renewed(self, network: ProxyNetwork, renewed: Iterable[Secret], missing: frozenset[Secret]) -> bool:
        """Send renewed secrets to the running HAProxy by runtime API commands; return whether it accepted all.
        `missing` are the secrets that were missing when it started."""
        kept = network.state
        if network.running is None or network.missing != missing:
            return False
        try:
            told = (command for secret in renewed for command in renewal_commands(secret))
            await send_commands(kept.folder / CONTROL, (with_payload(kept, each) for each in told))
        except (CommandFailed, Unavailable) as error:
            LOG.info("proxy of %s: %s; starting a new process", kept.folder.name, error)
            return False
        await kept.save(settled=True)
        return True

    async def _replace(self, network: ProxyNetwork, process: AnyProcess, texts: Mapping[str, str]) -> None:
        """Start a new process that reads all files."""
        network.replacement_backoff.record_start(_now())
        await self._supervisor.write(network, texts)
        await self._supervisor.replace(network, process, moved=network.namespace_process is None)


def _differs(kept: StoredState, changed: Changed, plan: ChangePlan | None) -> bool:
    """Whether the rows of these owners are other ones than before."""
    if plan is not None:
        return bool(plan.change)
    return any(kept.rows_of(owner) != changed.before.get(owner, {}) for owner in changed.owners)


def _listeners(network: ProxyNetwork, changed: Changed) -> frozenset[str]:
    """Return the listeners of the changed owners, before and after the change."""
    after = (network.state.rows_of(owner) for owner in changed.owners)
    before = (network.owners.get(owner, {}) for owner in changed.owners)
    return listeners_of([*before, *after])


def _now() -> float:
    return asyncio.get_running_loop().time()

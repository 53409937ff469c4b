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
from fairlead.dataplane.haproxy_commands import renewal
from fairlead.dataplane.haproxy_text import served
from fairlead.dataplane.haproxy_words import Unwritable
from fairlead.dataplane.rows import Diff, Key, Rows
from fairlead.drivers.haproxy.change_queue import AT_START
from fairlead.drivers.haproxy.counters import Counters
from fairlead.drivers.haproxy.file_ownership import Rights
from fairlead.drivers.haproxy.metrics import Metrics
from fairlead.drivers.haproxy.namespaces import Places
from fairlead.drivers.haproxy.network import (
    Network,
    Plan,
    counted_for,
    device_of,
    folder_name,
    network_of,
    ours,
    ours_of,
    with_change,
)
from fairlead.drivers.haproxy.process import CONTROL, Program, read_running
from fairlead.drivers.haproxy.runtime import CommandFailed, tell
from fairlead.drivers.haproxy.secrets import Fetch, SecretFiles, nobody_lends, said
from fairlead.drivers.haproxy.state import Kept, read_kept
from fairlead.drivers.haproxy.supervisor import Keeper, Serving
from fairlead.drivers.haproxy.upgrading import Upgrading
from fairlead.drivers.interface import DriverError, Later, Unavailable
from fairlead.model.documents.agent_counters import MEMORY_LIMIT_REACHED, OWNERS_LEFT_OUT, Counts
from fairlead.model.documents.owner import Owner
from fairlead.model.queries.secrets import Secret

LOG = logging.getLogger(__name__)
_OURS = re.compile("[0-9a-f]{12}")
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
        places: Places,
        serving: Serving,
        program: Program = Program(),  # noqa: B008 - a value
        fetch: Fetch = nobody_lends,
        counters: Counters | None = None,
    ) -> None:
        """`folder` is on a tmpfs, because its contents are useless after a reboot."""
        self._folder = folder
        self._rights = Rights(program.user)
        self._secrets = SecretFiles(fetch, self._rights)
        self._counters = counters or Counters()
        self._networks: dict[str, Network] = {}
        self._metrics = Metrics(folder, self._rights, self._network_with)
        self._settled: Callable[[Collection[Owner]], None] = lambda _: None
        self._keeper = Keeper(
            folder=folder,
            places=places,
            serving=serving,
            program=program,
            rights=self._rights,
            secrets=self._secrets,
            counters=self._counters,
            metrics=self._metrics,
        )
        self._upgrading = Upgrading(self._keeper)

    def follow(
        self, settled: Callable[[Collection[Owner]], None], failing: Callable[[Collection[Owner]], None]
    ) -> None:
        """Set callbacks: `settled` gets owners to requeue after Later; `failing` gets load balancers with a changed
        `failure_of`."""
        self._settled, self._keeper.failing = settled, failing

    def failure_of(self, owner: Owner) -> str | None:
        """Return why the proxy does not serve a load balancer, or not completely; None if it serves or starts."""
        for network in self._networks.values():
            why = network.failure or network.kept.left_out.get(owner) or network.refused.get(owner) or network.shortage
            if why and owner in network.balancers:
                return why
        return None

    def counts(self) -> Counts:
        left_out = sum(len(each.kept.left_out) for each in self._networks.values())
        return {OWNERS_LEFT_OUT: left_out, MEMORY_LIMIT_REACHED: self._keeper.memory_limit_reached}

    async def open(self) -> None:
        """Read the state of an earlier agent and resume it. A slow process does not delay the others. A node that never
        had a proxy has no folder.

        Raises OSError.
        """
        if not self._folder.exists():
            return
        for each in sorted(each for each in self._folder.iterdir() if _OURS.fullmatch(each.name)):
            kept = read_kept(each)
            if kept.process is None:
                await self._keeper.remove_left(each)
                continue
            running = read_running(each) if kept.settled else None
            network = self._networks[kept.process.network] = Network(kept, running=running)
            network.counted_for = counted_for(kept.loaded)
            network.missing = self._secrets.missing(kept)
            network.mending = asyncio.ensure_future(self._keeper.resume(network))
        if resuming := [each.mending for each in self._networks.values() if each.mending is not None]:
            await asyncio.wait(resuming, timeout=AT_START)

    async def close(self) -> None:
        """Stop all tasks. The HAProxy processes continue."""
        await self._upgrading.close()
        await self._keeper.close(self._networks.values())
        await self._counters.close()
        await self._metrics.close()

    async def remove(self) -> None:
        """Remove everything that an agent has left, and end the processes with their connections. No agent may run."""
        if self._folder.exists():
            for each in [each for each in self._folder.iterdir() if _OURS.fullmatch(each.name)]:
                await self._keeper.remove_left(each)

    async def look(self) -> None:
        """Read the counters of each process, and replace processes that run an outdated program."""
        self._upgrading.look(self._networks.values())
        for network in tuple(self._networks.values()):
            if network.running is not None:
                refused = None
                if not network.is_silent:
                    control = network.kept.folder / CONTROL
                    refused = await self._counters.look(network.running, control, network.counted_for)
                self._keeper.note_memory(network, refused)

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

    def _network_with(self, owner: Owner) -> Network | None:
        return next((each for each in self._networks.values() if owner in each.kept.owners), None)

    async def apply(self, owner: Owner, change: Diff) -> None:
        """Apply the rows of an owner. A load balancer has rows in one process; a network has one process for each
        project with proxies there, and a failure in one does not affect the others."""
        before = self._rows_of(owner)
        after = with_change(before, change)
        was, is_now = network_of(before), network_of(after)
        involved = {*map(was, before.values()), *map(is_now, after.values())}
        self._forget_waiting(owner, involved)
        asked = (
            self._put(network_id, owner, {key: row for key, row in after.items() if is_now(row) == network_id})
            for network_id in involved
        )
        failed = [each for each in await asyncio.gather(*asked, return_exceptions=True) if each is not None]
        if failed:
            raise min(failed, key=lambda each: isinstance(each, Later))

    def _forget_waiting(self, owner: Owner, involved: Container[str]) -> None:
        """Drop pending rows in networks where the owner no longer has any, so that no process loads them."""
        for network_id, network in self._networks.items():
            if network_id not in involved:
                network.waiting.pop(owner, None)
                network.turn.forget(owner)

    async def _put(self, network_id: str, owner: Owner, rows: Mapping[Key, HAProxyRow]) -> None:
        """Apply an owner's rows in one network. Raises Later, and DriverError after restoring the previous state."""
        network = self._networks.get(network_id)
        if network is None:
            network = self._networks[network_id] = Network(Kept(self._folder / folder_name(network_id)))
        work = partial(self._put_now, network_id, network, owner, rows)
        await network.turn.take(owner, rows, work, self._settled)

    async def _put_now(self, network_id: str, network: Network, owner: Owner, rows: Mapping[Key, HAProxyRow]) -> None:
        """Apply rows with commands, or with a new process when the rate limit allows it. Raises Later, and DriverError
        after restoring the previous state."""
        async with network.busy:
            plan = await asyncio.to_thread(network.plan, owner, rows)
            if wait := network.wait(plan, _now()):
                network.waiting[owner] = dict(rows)
                await self._tell_part(network_id, network, owner, rows)
                raise Later(wait)
            if plan is not None:
                network.waiting.pop(owner, None)
                await self._change(network_id, network, {owner: rows}, plan)
            else:
                network.waiting[owner] = dict(rows)
                await self._change_together(network_id, network, owner)

    async def _tell_part(self, network_id: str, network: Network, owner: Owner, rows: Rows) -> None:
        """Apply the part of a change that needs no new process, for example added, removed or failed members. Raises
        DriverError."""
        if network.running is None or not network.kept.settled:
            return
        only_servers = bool(network.command_pace.wait(_now()))
        part = await asyncio.to_thread(network.plan_part, owner, rows, only_servers=only_servers)
        if part is not None:
            after, plan = part
            await self._change(network_id, network, {owner: after}, plan)

    async def _change_together(self, network_id: str, network: Network, owner: Owner) -> None:
        """Apply all pending changes of the network with one new process. If that fails, only this owner's change is
        applied, so an invalid change does not block others. Raises DriverError."""
        waiting, network.waiting = network.waiting, {}
        try:
            await self._change(network_id, network, waiting)
        except DriverError as error:
            if len(waiting) == 1:
                raise
            LOG.info("%s: %s; without what others wait for", network.kept.folder.name, error)
            await self._change(network_id, network, {owner: waiting[owner]})

    async def _change(
        self, network_id: str, network: Network, rows: Mapping[Owner, Rows], plan: Plan | None = None
    ) -> None:
        """Apply changes of these owners: by the commands of a plan, or by a new process. Raises DriverError after
        restoring the previous state."""
        await asyncio.to_thread(network.check_patterns, rows)
        before, missing = dict(network.kept.owners), network.missing
        slots, changing = network.kept.slots, network.changing
        left_out = {owner: why for owner, why in network.kept.left_out.items() if owner in rows}
        network.before = before
        for owner in left_out:
            del network.kept.left_out[owner]
        network.kept.owners.update({owner: ours(its) for owner, its in rows.items()})
        for owner in [each for each in rows if not rows[each]]:
            del network.kept.owners[owner]
        changed = Changed(rows.keys(), before, is_new=bool(left_out))
        try:
            await self._bring(network_id, network, changed, plan)
            self._secrets.forget(network.kept)
        except (OSError, Unwritable, DriverError) as error:
            network.kept.owners, network.missing = before, missing
            network.kept.slots, network.changing = slots, changing
            network.kept.left_out.update(left_out)
            self._secrets.forget(network.kept)
            await self._keeper.hold(network)
            raise DriverError(f"the proxy of network {network_id}: {error}") from None
        finally:
            network.before = None
        if left_out:
            self._keeper.failing(list(left_out))

    async def _bring(self, network_id: str, network: Network, changed: Changed, plan: Plan | None) -> None:
        """Applies a change. A file is written after HAProxy has loaded it, or has applied the changes of servers."""
        kept = network.kept
        process = network.wanted
        if process is None:
            await self._keeper.end(network, network_id)
            if not kept.owners:
                self._networks.pop(network_id, None)
            return
        if network.is_there and not changed.is_new and not await asyncio.to_thread(_differs, kept, changed, plan):
            return
        self._rights.make(kept.folder, (kept.folder / CONTROL).parent)
        missing = await self._bring_secrets(network, process, changed.before)
        moved = network.placed is None or device_of(network.placed) != device_of(process)
        anew = moved or not kept.settled or network.running is None or missing != network.missing or changed.is_new
        network.missing = missing
        if plan is not None and not anew and network.is_there:
            kept.slots = plan.slots
            await self._bring_by_commands(network_id, network, process, changed, plan)
            return
        await asyncio.to_thread(kept.arrange)
        network.pace.spend(_now())
        network.changing |= await asyncio.to_thread(_listeners, network, changed)
        texts = await self._keeper.check(network, process, changed.owners)
        await kept.save(settled=False)
        await self._keeper.write(network, texts)
        await self._keeper.replace(network, process, moved=moved)

    async def _bring_by_commands(
        self, network_id: str, network: Network, process: AnyProcess, changed: Changed, plan: Plan
    ) -> None:
        """Apply a change by commands after HAProxy has loaded the changed sections; if a command fails, by a new
        process."""
        kept = network.kept
        texts = await asyncio.to_thread(self._keeper.files, network, process)
        if plan.checked:
            network.command_pace.spend(_now())
            await self._keeper.check_part(network, process, plan.checked)
        await kept.save(settled=False)
        await self._keeper.place(network, process)
        try:
            await tell(kept.folder / CONTROL, (said(kept, each) for each in plan.commands))
        except (CommandFailed, Unavailable) as error:
            LOG.info("network %s: %s; a new process takes its place", network_id, error)
            texts = await self._keeper.check(network, process, changed.owners)
            network.changing |= await asyncio.to_thread(_listeners, network, changed)
            wait = network.pace.wait(_now())
            if wait and network.is_there:
                await self._keeper.write(network, texts)
                self._keeper.mend(network, wait)
                return
            network.pace.spend(_now())
            await self._keeper.write(network, texts)
            await self._keeper.replace(network, process, moved=False)
        else:
            await self._keeper.write(network, texts)
            updated = ours_of(each.after for each in plan.change.updates.values())
            # a removed backend remains in the process with its counters
            network.counted_for = {**counted_for(updated), **network.counted_for}
            await kept.save(settled=True)

    async def _bring_secrets(
        self, network: Network, process: AnyProcess, had: Mapping[Owner, Rows]
    ) -> frozenset[Secret]:
        """Fetch secrets; return those that are missing. Listeners that need these wait.

        Raises DriverError if a listener that is served would stop for want of a new secret: the change waits instead.
        Raises OSError.
        """
        kept = network.kept
        try:
            self._secrets.put(kept, await self._secrets.ask(kept, again=False), {})
        except DriverError as error:
            LOG.warning("the proxy of %s has not all keys: %s", kept.folder.name, error)
        missing = self._secrets.missing(kept)
        if missing and network.running is not None:
            named = {row.name for row in kept.rows if isinstance(row, Frontend)}
            before = {each.name for each in network.served(row for its in had.values() for row in ours(its).values())}
            lost = (before & named).difference(each.name for each in served(process, kept.rows, missing))
            if lost:
                why = "; ".join(f"{each.reference!r}: {self._secrets.why(kept, each)}" for each in missing)
                raise DriverError(f"listener {min(lost)} would be served no more: {why}")
        return missing

    @property
    def lacks(self) -> bool:
        """Whether a listener waits for a key or a certificate."""
        return any(network.missing and network.wanted is not None for network in self._networks.values())

    async def renew(self) -> None:
        """Fetch all keys and certificates again, and serve the renewed ones. Raises DriverError."""
        wanted = [each for each in self._networks.values() if each.wanted is not None]
        failed = await asyncio.gather(*map(self._ask_and_renew, wanted), return_exceptions=True)
        if failed := [each for each in failed if each is not None]:
            raise failed[0]

    async def _ask_and_renew(self, network: Network) -> None:
        """Fetch the secrets of one network and load the renewed ones. Raises DriverError."""
        news = await self._secrets.ask(network.kept, again=True)
        async with network.busy:
            if not news and self._secrets.missing(network.kept) == network.missing:
                return
            try:
                await self._renew(network, news)
                self._note_refused(network, {})
            except DriverError:
                if len(news) < 2:
                    raise
                await self._renew_apart(network, news)

    async def _renew_apart(self, network: Network, news: Mapping[Secret, str]) -> None:
        """Renews secrets one by one: HAProxy serves those that it loads. Raises DriverError if it rejects any."""
        refused = dict[Owner, str]()
        for secret, text in news.items():
            try:
                await self._renew(network, {secret: text})
            except DriverError as error:
                refused.update(dict.fromkeys(self._secrets.owners_of(network.kept, secret), str(error)))
        self._note_refused(network, refused)
        if refused:
            raise DriverError(next(iter(refused.values())))

    def _note_refused(self, network: Network, refused: dict[Owner, str]) -> None:
        changed, network.refused = network.refused.keys() ^ refused.keys(), refused
        if changed:
            self._keeper.failing(list(changed))

    async def _renew(self, network: Network, news: Mapping[Secret, str]) -> None:
        """Load renewed secrets. Raises DriverError after restoring the previous ones. If the agent ends during the
        renewal, the next one starts a new process."""
        kept, process, missing, settled = network.kept, network.wanted, network.missing, network.kept.settled
        if process is None:
            return
        before, slots = dict[Secret, str](), kept.slots
        renewed = {owner for secret in news for owner in self._secrets.owners_of(kept, secret)}
        left_out = {owner: why for owner, why in kept.left_out.items() if owner in renewed}
        try:
            await kept.save(settled=False)
            self._secrets.put(kept, news, before)
            for owner in left_out:
                del kept.left_out[owner]
            if left_out:
                await asyncio.to_thread(kept.arrange)
            network.missing = self._secrets.missing(kept)
            texts = await self._keeper.check_all(network, process)
            if left_out or not (settled and await self._told(network, before, missing)):
                await self._replace(network, process, texts)
        except (OSError, Unwritable, DriverError) as error:
            with contextlib.suppress(OSError):
                self._secrets.put_back(kept, before)
            kept.left_out.update(left_out)
            kept.slots, network.missing, kept.settled = slots, missing, settled
            await self._keeper.hold(network)
            raise DriverError(f"the proxy of {kept.folder.name}: {error}") from None
        if left_out:
            self._keeper.failing(list(left_out))

    async def _told(self, network: Network, renewed: Iterable[Secret], missing: frozenset[Secret]) -> bool:
        """Load renewed secrets by commands; return whether the process accepted all. `missing`: the secrets that were
        missing when it started."""
        kept = network.kept
        if network.running is None or network.missing != missing:
            return False
        try:
            told = (command for secret in renewed for command in renewal(secret))
            await tell(kept.folder / CONTROL, (said(kept, each) for each in told))
        except (CommandFailed, Unavailable) as error:
            LOG.info("%s: %s; a new process takes its place", kept.folder.name, error)
            return False
        await kept.save(settled=True)
        return True

    async def _replace(self, network: Network, process: AnyProcess, texts: Mapping[str, str]) -> None:
        """Start a new process that reads all files."""
        network.pace.spend(_now())
        await self._keeper.write(network, texts)
        await self._keeper.replace(network, process, moved=network.placed is None)


def _differs(kept: Kept, changed: Changed, plan: Plan | None) -> bool:
    """Whether the rows of these owners are other ones than before."""
    if plan is not None:
        return bool(plan.change)
    return any(kept.of(owner) != changed.before.get(owner, {}) for owner in changed.owners)


def _listeners(network: Network, changed: Changed) -> frozenset[str]:
    """Return the listeners of the changed owners, before and after the change."""
    after = (network.kept.of(owner) for owner in changed.owners)
    before = (network.owners.get(owner, {}) for owner in changed.owners)
    return listeners_of([*before, *after])


def _now() -> float:
    return asyncio.get_running_loop().time()

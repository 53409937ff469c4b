"""The whole model in memory, kept equal to the store: the only way to read it and the only way to change it.

A change is a function of a snapshot. It is decided, checked (does it compile?) and written with compare-and-swap. After
a write conflict it is decided again from the new snapshot. So no update is lost, and the store is never locked. Readers
get a frozen snapshot and never wait.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from fairlead.model.documents.owner import Kind, Owner, VipNetwork
from fairlead.model.registry.affected import find_affected_owners
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.facts import (
    ABILITIES,
    Fact,
    derive,
    derive_all,
    have_same_documents,
    with_facts,
    with_facts_of,
)
from fairlead.model.registry.kinds import claims, owner_of
from fairlead.model.snapshot import Aggregate, Snapshot
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.fair_semaphore import FairSemaphore, WaitQueueFull
from fairlead.runtime.steps import Steps, run_to_completion
from fairlead.store.codec import decode_stored, encode, owner_of_key
from fairlead.store.formats import NewerDocument
from fairlead.store.full_read import CLAIM, Stored, affected_owners, decode_batch, parts, read_changed, with_stored
from fairlead.store.interface import (
    NO_REVISION,
    Batch,
    Compacted,
    Conflict,
    RetriesExhausted,
    Store,
    StoreError,
    StoreUnavailable,
)
from fairlead.store.read_barrier import RETRY_INTERVAL, ReadBarrier
from fairlead.store.write_conflicts import backoff

LOG = logging.getLogger(__name__)
_News = TypeVar("_News")
MAX_ATTEMPTS = 20
WRITE_TIMEOUT = 10.0
"""Seconds that a change waits for its turn, so that requests do not pile up while the disk hangs; also the limit for
retries after write conflicts."""
MAX_WAITING = 1000
"""Maximum changes of one project that wait for their turn."""
REQUEST_PROJECT: ContextVar[str] = ContextVar("ASKING_PROJECT", default="")
"""Project of the current request. Projects take turns to write, however many changes each has."""
CHANGED_OWNERS: ContextVar[list[str] | None] = ContextVar("CHANGED", default=None)
"""Collects the names of the owners written for a request."""
STEPWISE_ATTEMPTS = 3
"""Attempts to merge a full read in steps while other requests are served; then it is merged without yielding."""
DERIVE_STEP, NOTIFY_STEP = 5, 200
"""Owners processed without yielding to the event loop; each load balancer may have a thousand members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted(Container[Owner]):
    """Owners that the store has deleted. The caller has checked that the model does not have them.

    Owners shared by VIPs have no document; they count as deleted if the store has, or had, their network or router.
    """

    documents: frozenset[Owner]
    networks: frozenset[str]
    routers: frozenset[str]
    """Routers that the store has, or had."""

    def __contains__(self, owner: object) -> bool:
        if isinstance(owner, Owner) and owner.kind in (Kind.VIP_NETWORK, Kind.PER_CHASSIS_NETWORK):
            return VipNetwork.of(owner).network_id in self.networks
        if isinstance(owner, Owner) and owner.kind in (Kind.VIP_GATEWAY, Kind.PER_CHASSIS_GATEWAY):
            return owner.id in self.routers
        return owner in self.documents


Change: TypeAlias = Callable[[Snapshot], Changes | Awaitable[Changes]]
"""Decides a change of a snapshot. If it is a coroutine, it may yield; other writers wait for it, readers do not."""
Check: TypeAlias = Callable[[Snapshot, Owner], object]
"""Raises if the owner cannot be compiled. A returned generator is run in steps before the write."""
Subscriber: TypeAlias = Callable[[tuple[Owner, ...]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A change of the model."""

    before: Snapshot
    after: Snapshot
    documents: tuple[Owner, ...] = ()
    """Owners with documents that were written or deleted."""
    derived: tuple[Owner, ...] = ()
    """Owners with a newly derived state, from facts and documents."""
    fact: Fact[Any] | None = None
    """The fact that changed."""
    update: Any = None


Watcher: TypeAlias = Callable[[Published], None]


class Model:
    """Model of a deployment. Use `await Model.load(store, check=...)`.

    `check` raises the error for the caller if an owner cannot be compiled. `empty` is the model without documents; it
    holds the deployment's configuration.
    """

    def __init__(self, store: Store, check: Check, empty: Snapshot = Snapshot()) -> None:  # noqa: B008 - a value
        self.snapshot = empty
        self._store = store
        self._check = check
        self._subscribers: list[Subscriber] = []
        self._watchers: list[Watcher] = []
        self._writing = FairSemaphore(at_once=1, of_one=1, waiting=MAX_WAITING)
        self._storing = asyncio.Lock()
        """Held while an own transaction is committed and published, so that no other change is applied in between."""
        self.read_barrier = ReadBarrier(self._poll)
        """Read barrier."""
        self.newer_document: NewerDocument | None = None
        """First document of a newer version that was read; this server has to exit then (`outgrown`)."""
        self.newer_format_seen = asyncio.Event()

    @classmethod
    async def load(cls, store: Store, check: Check, empty: Snapshot = Snapshot()) -> "Model":  # noqa: B008 - a value
        """Read the store and return the model. Raises StoreUnavailable."""
        model = cls(store, check, empty)
        await model.read()
        return model

    async def read(self) -> None:
        """Read all documents, once, before any other use of the model. Raises StoreUnavailable."""
        stored, revision = await read_changed(self._store, self.snapshot.generations, self._decoded)
        self.snapshot = derive_all(run_to_completion(with_stored(self.snapshot, stored, revision)))

    def subscribe(self, subscriber: Subscriber) -> None:
        """Register a callback with the affected owners after every change by any server. It must not block."""
        self._subscribers.append(subscriber)

    def watch(self, watcher: Watcher) -> None:
        """Register a callback after every change of documents or facts, also without affected rows. It must not
        block."""
        self._watchers.append(watcher)

    def observe(self, fact: Fact[_News], news: _News) -> Steps[None]:
        """Apply news of a fact. Facts are not stored, because their observer reports them again.

        News may concern ten thousand owners, so this yields between steps and derives each owner once. If the steps are
        not run to the end, the observer has to report the same news again.
        """
        old = self.snapshot
        self.snapshot = with_facts(old, fact, news)
        self._notify_watchers(Published(before=old, after=self.snapshot, fact=fact, update=news))
        concerned = tuple(fact.affected_owners(old, self.snapshot, news))
        step = fact.derive_batch_size or len(concerned) or 1
        for first in range(0, len(concerned), step):
            some, before = concerned[first : first + step], self.snapshot
            self.snapshot = fact.derive(before, some)
            self._notify_watchers(Published(before=before, after=self.snapshot, derived=some))
            owners = fact.filter_changed(before, self.snapshot, some)
            if fact.describe is not None:
                for owner in owners:
                    LOG.info("%s", fact.describe(self.snapshot, owner))
            if owners:
                self._notify_subscribers(owners)
            yield

    def set_abilities(self, abilities: frozenset[str]) -> None:
        """Record the abilities of the connected dataplane, which may have been upgraded."""
        if abilities != self.snapshot.abilities:
            LOG.info("dataplane features: %s", ", ".join(sorted(abilities)) or "none beyond the minimum version")
            run_to_completion(self.observe(ABILITIES, abilities))

    async def write(self, change: Change) -> Snapshot:
        """Write a change, and return the snapshot that has it and nothing stored later. The change is durable on
        return.

        Raises the errors of `change` and `check` (nothing is written then), Overtaken and StoreUnavailable.
        """
        return await asyncio.shield(asyncio.ensure_future(self._write(change)))

    async def dry_run(self, change: Change) -> None:
        """Dry run of `write`: raises the same errors except those of the store, and writes nothing."""
        before = self.snapshot
        await self._try(before, await resolve_changes(change(before)))

    async def follow(self) -> None:
        """Apply the changes of other servers until cancelled, also over outages of the store."""
        async with self.read_barrier.retrying():
            await self._follow()

    async def _follow(self) -> None:
        while True:
            try:
                await self.read_barrier.wait()
                async for batch in self._store.watch(self.snapshot.revision):
                    async with self._storing:
                        self._apply_batch(batch)
            except Compacted:
                with contextlib.suppress(StoreUnavailable):
                    await self.catch_up()
            except StoreUnavailable as error:
                self.read_barrier.record_failure(error)
                await asyncio.sleep(RETRY_INTERVAL)

    async def refresh(self) -> None:
        """Read barrier: wait until the model has everything acknowledged before this call. Raises NotKnown."""
        await self.read_barrier.wait_with_timeout()

    async def _poll(self) -> None:
        """Poll the store. Usually nothing is new; own transactions are published by their writers."""
        head = await self._store.head()
        if head > self.snapshot.revision:
            async with self._storing:
                if head > self.snapshot.revision:
                    await self._catch_up()

    async def deleted(self) -> Container[Owner]:
        """Return the owners that this store has deleted, as far back as its feed reaches. Raises StoreUnavailable."""
        return await run_in_steps(self._deleted(await self._store.deleted()))

    def _deleted(self, keys: Iterable[str]) -> Steps[Deleted]:
        gone = set[Owner]()
        for key in keys:
            if not key.startswith(CLAIM) and (owner := owner_of_key(key)) is not None:
                gone.add(owner)
            yield
        networks = {owner.id for owner in gone if owner.kind is Kind.NETWORK} | set(self.snapshot.networks)
        routers = {owner.id for owner in gone if owner.kind is Kind.ROUTER} | set(self.snapshot.routers)
        return Deleted(documents=frozenset(gone), networks=frozenset(networks), routers=frozenset(routers))

    async def catch_up(self) -> None:
        """Read everything that is stored now. Raises StoreUnavailable."""
        async with self._storing:
            await self._catch_up()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._writing.turn(REQUEST_PROJECT.get(), WRITE_TIMEOUT))
            except TimeoutError:
                raise StoreUnavailable(f"earlier changes have waited for the store for {WRITE_TIMEOUT:g} s") from None
            except WaitQueueFull:
                raise StoreUnavailable(f"{MAX_WAITING} changes of this project are waiting for the store") from None
            yield

    async def _write(self, change: Change) -> Snapshot:
        async with self._turn():
            return await self._write_in_turn(change)

    async def _write_in_turn(self, change: Change) -> Snapshot:
        until = time.monotonic() + WRITE_TIMEOUT
        for lost in range(MAX_ATTEMPTS):
            if self.newer_document is not None:
                raise self.newer_document
            before = self.snapshot
            changes = await resolve_changes(change(before))
            if not changes.puts and not changes.deletes:
                return before
            await self._try(before, changes)
            if (written := await self._store_and_publish(before, changes)) is not None:
                return written
            await asyncio.sleep(backoff(lost))
            await self.catch_up()
            if time.monotonic() > until:
                break
        raise RetriesExhausted(f"{lost + 1} write conflicts in a row; retry")

    async def _store_and_publish(self, before: Snapshot, changes: Changes) -> Snapshot | None:
        """Commit and publish; None after a write conflict. Raises StoreError."""
        async with self._storing:
            try:
                revision = await self._commit(before, changes)
            except Conflict:
                return None
            if (changed := CHANGED_OWNERS.get()) is not None:
                changed.extend(map(str, changes.owners))
            return await self._publish_own(changes, revision)

    async def _try(self, before: Snapshot, changes: Changes) -> None:
        """Check that every changed owner compiles. Raises the errors of `check`."""
        candidate = apply_changes(before, changes, before.revision + 1)
        for owner in changes.owners:
            await asyncio.sleep(0)  # a large owner takes long to compile
            work = self._check(candidate, owner)
            if isinstance(work, Generator):
                await run_in_steps(work)

    async def _commit(self, before: Snapshot, changes: Changes) -> int:
        old = [found for owner in changes.owners if (found := before.find(owner)) is not None]
        had, wanted = _claims(old), _claims(changes.puts)
        guards = {str(owner): before.generations.get(owner, NO_REVISION) for owner in (*changes.owners, *changes.reads)}
        return await self._store.transact(
            guards={**guards, **dict.fromkeys(wanted.keys() - had.keys(), NO_REVISION)},
            puts={str(owner_of(aggregate)): encode(aggregate) for aggregate in changes.puts}
            | {claim: wanted[claim] for claim in wanted.keys() - had.keys()},
            deletes=[*map(str, changes.deletes), *(had.keys() - wanted.keys())],
            head=before.revision if changes.requires_unchanged_model else None,
        )

    async def _publish_own(self, changes: Changes, revision: int) -> Snapshot:
        """Publish a committed transaction. The change is durable, so later errors must not be reported to the
        caller."""
        if revision == self.snapshot.revision + 1:
            self._publish(changes, revision)
            return self.snapshot
        try:  # other servers wrote in between: apply theirs first, in the order of the feed
            written = await self._catch_up(revision)
        except StoreError as error:
            LOG.warning("cannot read the changes of other servers: %s", error)
            self._publish_late(changes, revision)
            return self.snapshot
        # the result shows what the caller wrote, even if another server has changed or deleted it since
        return written if written is not None else apply_changes(self.snapshot, changes, revision)

    async def _catch_up(self, own: int = 0) -> Snapshot | None:
        """Read the feed. Returns the snapshot at revision `own`; None if a full read skipped it."""
        at_own = None
        try:
            for batch in await self._store.changes(self.snapshot.revision):
                self._apply_batch(batch)
                at_own = self.snapshot if batch.revision == own else at_own
        except Compacted:
            await self._reload()
        return at_own

    async def _reload(self) -> None:
        """Read the whole store and compare, because the feed does not reach back far enough.

        The snapshot changes only after everything is read, so an interrupted read can be repeated.
        """
        LOG.warning("the store's feed no longer reaches back far enough; reading the whole store")
        stored, revision = await read_changed(self._store, self.snapshot.generations, self._decoded)
        for _ in range(STEPWISE_ATTEMPTS):
            old = self.snapshot
            new, owners = await run_in_steps(_merge_stored(old, stored, revision))
            if have_same_documents(old, self.snapshot):
                break
        else:
            old = self.snapshot
            new, owners = run_to_completion(_merge_stored(old, stored, revision))
        self.snapshot = with_facts_of(new, self.snapshot)
        telling = self._publish_all(old, tuple(stored), owners)
        try:
            await run_in_steps(telling)
        finally:  # even when cancelled: the snapshot is complete, and no later event would report these changes
            run_to_completion(telling)

    def _publish_all(self, old: Snapshot, documents: Sequence[Owner], owners: Sequence[Owner]) -> Steps[None]:
        """Publish a full read that is in the snapshot already."""
        for some in parts(documents, DERIVE_STEP):
            self.snapshot = derive(self.snapshot, some)
            self._notify_watchers(
                Published(before=old, after=self.snapshot, documents=tuple(some), derived=tuple(some))
            )
            yield
        read = frozenset(documents)
        for some in parts([owner for owner in owners if owner not in read], DERIVE_STEP):
            before = self.snapshot
            self.snapshot = derive(before, some)
            self._notify_watchers(Published(before=before, after=self.snapshot, derived=tuple(some)))
            yield
        for some in parts(owners, NOTIFY_STEP):
            self._notify_subscribers(tuple(some))
            yield

    def _publish_late(self, changes: Changes, revision: int) -> None:
        """Publish an own transaction before the ones of other servers that precede it. The revision stays, so the feed
        is read from there."""
        behind = self.snapshot.revision
        self._publish(changes, revision)
        self.snapshot = replace(self.snapshot, revision=behind)

    def _apply_batch(self, batch: Batch) -> None:
        if batch.revision <= self.snapshot.revision:
            return
        found = dict(decode_batch(batch, self._decoded))
        puts = tuple(document for document in found.values() if document is not None)
        deletes = tuple(owner for owner, document in found.items() if document is None)
        self._publish(Changes(puts=puts, deletes=deletes), batch.revision)

    def _decoded(self, key: str, value: bytes) -> Aggregate:
        """Decode a stored document. Raises BadDocument and NewerDocument."""
        try:
            return decode_stored(key, value)
        except NewerDocument as error:
            self.newer_document = error
            self.newer_format_seen.set()
            raise

    def _publish(self, changes: Changes, revision: int) -> None:
        old = self.snapshot
        new = apply_changes(old, changes, revision)
        owners = find_affected_owners(old, new, changes.owners)
        self.snapshot = derive(new, owners)
        self._notify_watchers(Published(before=old, after=self.snapshot, documents=changes.owners, derived=owners))
        self._notify_subscribers(owners)

    def _notify_watchers(self, published: Published) -> None:
        for watcher in self._watchers:
            watcher(published)

    def _notify_subscribers(self, owners: tuple[Owner, ...]) -> None:
        for subscriber in self._subscribers:
            subscriber(owners)


def _merge_stored(old: Snapshot, stored: Stored, revision: int) -> Steps[tuple[Snapshot, Sequence[Owner]]]:
    """Return the snapshot with the newly read documents, and the owners they affect."""
    new = yield from with_stored(old, stored, revision)
    return new, (yield from affected_owners(old, new, tuple(stored)))


async def resolve_changes(changes: Changes | Awaitable[Changes]) -> Changes:
    return changes if isinstance(changes, Changes) else await changes


def _claims(aggregates: Iterable[Aggregate]) -> Mapping[str, bytes]:
    return {CLAIM + claim: str(owner_of(aggregate)).encode() for aggregate in aggregates for claim in claims(aggregate)}

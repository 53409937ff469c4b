"""The whole model in memory, kept equal to the store: the one way to read it, and the one way to change it.

A change is a function of a snapshot. It is decided, checked (does it compile?) and written under compare-and-swap. If
somebody else wrote first it is decided again from what is true now. So no update is lost, and no lock is ever held in
the store. Readers get a frozen snapshot and never wait.
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

from fairlead.model.affected import affected
from fairlead.model.facts import (
    ABILITIES,
    Fact,
    derive,
    derive_all,
    have_same_documents,
    with_facts,
    with_facts_of,
)
from fairlead.model.kinds import claims, owner_of
from fairlead.model.owner import Kind, Owner, VipNetwork
from fairlead.model.snapshot import Aggregate, Snapshot
from fairlead.model.steps import Steps, at_once
from fairlead.model.writing import Changes, apply_changes
from fairlead.resting import in_steps
from fairlead.store.codec import decode_stored, encode, owner_stored
from fairlead.store.fair_semaphore import FairSemaphore, TooMany
from fairlead.store.formats import NewerDocument
from fairlead.store.interface import (
    ABSENT,
    Batch,
    Compacted,
    Conflict,
    Overtaken,
    Store,
    StoreError,
    StoreUnavailable,
)
from fairlead.store.looks import AGAIN, Looks
from fairlead.store.races import pause
from fairlead.store.rereading import CLAIM, Stored, concerned, parts, read_stored, with_stored, written

LOG = logging.getLogger(__name__)
_News = TypeVar("_News")
ATTEMPTS = 20
PATIENCE = 10.0
"""Seconds that a change waits for its turn: with a disk that stands still the callers must not pile up. And after which
one that others overtake is not tried again."""
WAITING = 1000
"""Changes that wait for their turn, of one project."""
ASKING_PROJECT: ContextVar[str] = ContextVar("ASKING_PROJECT", default="")
"""The project that asks: each has its turn to write, however much the others have to be written."""
CHANGED: ContextVar[list[str] | None] = ContextVar("CHANGED", default=None)
"""Takes the names of the owners that were written for a request."""
UNDISTURBED = 3
"""Times that a model is made of what was read anew while others are served; then it is made without a rest."""
DERIVED, TOLD = 5, 200
"""Owners without a rest: each load balancer may have a thousand members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted(Container[Owner]):
    """Owners that a store had and has no more. What VIPs share is no document: a store had it if it had the network, or
    the router. Who asks has seen that the model has none of it."""

    documents: frozenset[Owner]
    networks: frozenset[str]
    routers: frozenset[str]
    """That the store has, or had."""

    def __contains__(self, owner: object) -> bool:
        if isinstance(owner, Owner) and owner.kind in (Kind.VIP_NETWORK, Kind.NEAR_NETWORK):
            return VipNetwork.of(owner).network_id in self.networks
        if isinstance(owner, Owner) and owner.kind in (Kind.VIP_GATEWAY, Kind.NEAR_GATEWAY):
            return owner.id in self.routers
        return owner in self.documents


Change: TypeAlias = Callable[[Snapshot], Changes | Awaitable[Changes]]
"""One that takes long may rest; others who want to write wait for it, and those who read do not."""
Check: TypeAlias = Callable[[Snapshot, Owner], object]
"""It may answer with work in steps, which is done before anything is written."""
Subscriber: TypeAlias = Callable[[tuple[Owner, ...]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """How the model has changed."""

    before: Snapshot
    after: Snapshot
    documents: tuple[Owner, ...] = ()
    """Whose documents were put or deleted."""
    derived: tuple[Owner, ...] = ()
    """Of which it was looked at again what follows from facts and documents together."""
    fact: Fact[Any] | None = None
    """Of which there was news."""
    news: Any = None


Watcher: TypeAlias = Callable[[Published], None]


class Model:
    """Use `await Model.load(store, check=...)`. `check` raises what the caller should see if an owner cannot be had.

    `empty` is the model before the first document: it has what the deployment says, and no document does.
    """

    def __init__(self, store: Store, check: Check, empty: Snapshot = Snapshot()) -> None:  # noqa: B008 - a value
        self.snapshot = empty
        self._store = store
        self._check = check
        self._subscribers: list[Subscriber] = []
        self._watchers: list[Watcher] = []
        self._writing = FairSemaphore(at_once=1, of_one=1, waiting=WAITING)
        self._storing = asyncio.Lock()
        """Nothing of others is taken in between a transaction of ours and its place in the snapshot."""
        self.looks = Looks(self._look)
        """At the store, for those who read."""
        self.newer: NewerDocument | None = None
        """What a newer version wrote, once it was met: this server is to end its work then (`outgrown`)."""
        self.outgrown = asyncio.Event()

    @classmethod
    async def load(cls, store: Store, check: Check, empty: Snapshot = Snapshot()) -> "Model":  # noqa: B008 - a value
        """Raises StoreUnavailable."""
        model = cls(store, check, empty)
        await model.read()
        return model

    async def read(self) -> None:
        """All that is stored, once, before anything else is asked of the model. Raises StoreUnavailable."""
        stored, revision = await read_stored(self._store, self.snapshot.generations, self._decoded)
        self.snapshot = derive_all(at_once(with_stored(self.snapshot, stored, revision)))

    def subscribe(self, subscriber: Subscriber) -> None:
        """`subscriber` is called with the affected owners after every change by anybody, and must not wait."""
        self._subscribers.append(subscriber)

    def watch(self, watcher: Watcher) -> None:
        """`watcher` is called after every change of documents and facts, those too that no rows depend on, and must not
        wait."""
        self._watchers.append(watcher)

    def observe(self, fact: Fact[_News], news: _News) -> Steps[None]:
        """Take in what an observer says. It is not stored: the observer will say it again.

        News may concern ten thousand owners: it yields wherever it can rest, and looks at each owner once. If that ends
        before all were looked at, the observer has to say the same news again.
        """
        old = self.snapshot
        self.snapshot = with_facts(old, fact, news)
        self._show(Published(before=old, after=self.snapshot, fact=fact, news=news))
        concerned = tuple(fact.concerns(old, self.snapshot, news))
        step = fact.step or len(concerned) or 1
        for first in range(0, len(concerned), step):
            some, before = concerned[first : first + step], self.snapshot
            self.snapshot = fact.derive(before, some)
            self._show(Published(before=before, after=self.snapshot, derived=some))
            owners = fact.differing(before, self.snapshot, some)
            if fact.describe is not None:
                for owner in owners:
                    LOG.info("%s", fact.describe(self.snapshot, owner))
            if owners:
                self._tell(owners)
            yield

    def equip(self, abilities: frozenset[str]) -> None:
        """The dataplane that is there can do this: it may be a newer one than before."""
        if abilities != self.snapshot.abilities:
            LOG.info("the dataplane can do: %s", ", ".join(sorted(abilities)) or "what every one can")
            at_once(self.observe(ABILITIES, abilities))

    async def write(self, change: Change) -> Snapshot:
        """Do the change; answers the snapshot that has it, and nothing that others stored later. What it answers is
        stored.

        Raises what `change` and `check` raise (then nothing was written), Overtaken and StoreUnavailable.
        """
        return await asyncio.shield(asyncio.ensure_future(self._write(change)))

    async def try_out(self, change: Change) -> None:
        """What `write` would raise that is no matter of the store; nothing is written."""
        before = self.snapshot
        await self._try(before, await decided(change(before)))

    async def follow(self) -> None:
        """Take in what other servers write, until cancelled, however long the store is away."""
        async with self.looks.made_again():
            await self._follow()

    async def _follow(self) -> None:
        while True:
            try:
                await self.looks.newest()
                async for batch in self._store.watch(self.snapshot.revision):
                    async with self._storing:
                        self._take_in(batch)
            except Compacted:
                with contextlib.suppress(StoreUnavailable):
                    await self.catch_up()
            except StoreUnavailable as error:
                self.looks.failed(error)
                await asyncio.sleep(AGAIN)

    async def refresh(self) -> None:
        """Know all that anybody was told to be stored before this was asked. Raises NotKnown."""
        await self.looks.newest_in_time()

    async def _look(self) -> None:
        """Most often nothing is new. Own transactions are taken in by whoever makes them."""
        head = await self._store.head()
        if head > self.snapshot.revision:
            async with self._storing:
                if head > self.snapshot.revision:
                    await self._catch_up()

    async def deleted(self) -> Container[Owner]:
        """Owners that are gone and that this store had, as far back as it knows. Raises StoreUnavailable."""
        return await in_steps(self._deleted(await self._store.deleted()))

    def _deleted(self, keys: Iterable[str]) -> Steps[Deleted]:
        gone = set[Owner]()
        for key in keys:
            if not key.startswith(CLAIM) and (owner := owner_stored(key)) is not None:
                gone.add(owner)
            yield
        networks = {owner.id for owner in gone if owner.kind is Kind.NETWORK} | set(self.snapshot.networks)
        routers = {owner.id for owner in gone if owner.kind is Kind.ROUTER} | set(self.snapshot.routers)
        return Deleted(documents=frozenset(gone), networks=frozenset(networks), routers=frozenset(routers))

    async def catch_up(self) -> None:
        """Know all that is stored by now. Raises StoreUnavailable."""
        async with self._storing:
            await self._catch_up()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._writing.turn(ASKING_PROJECT.get(), PATIENCE))
            except TimeoutError:
                raise StoreUnavailable(f"earlier changes have been waiting for the store for {PATIENCE:g} s") from None
            except TooMany:
                raise StoreUnavailable(f"{WAITING} changes of this project are waiting for the store") from None
            yield

    async def _write(self, change: Change) -> Snapshot:
        async with self._turn():
            return await self._write_in_turn(change)

    async def _write_in_turn(self, change: Change) -> Snapshot:
        until = time.monotonic() + PATIENCE
        for lost in range(ATTEMPTS):
            if self.newer is not None:
                raise self.newer
            before = self.snapshot
            changes = await decided(change(before))
            if not changes.puts and not changes.deletes:
                return before
            await self._try(before, changes)
            if (written := await self._store_and_publish(before, changes)) is not None:
                return written
            await asyncio.sleep(pause(lost))
            await self.catch_up()
            if time.monotonic() > until:
                break
        raise Overtaken(f"others wrote first {lost + 1} times in a row; try again")

    async def _store_and_publish(self, before: Snapshot, changes: Changes) -> Snapshot | None:
        """None if somebody wrote first. Raises StoreError."""
        async with self._storing:
            try:
                revision = await self._commit(before, changes)
            except Conflict:
                return None
            if (changed := CHANGED.get()) is not None:
                changed.extend(map(str, changes.owners))
            return await self._publish_own(changes, revision)

    async def _try(self, before: Snapshot, changes: Changes) -> None:
        """Raises what `check` raises."""
        candidate = apply_changes(before, changes, before.revision + 1)
        for owner in changes.owners:
            await asyncio.sleep(0)  # a large one takes long to compile: others are served between
            work = self._check(candidate, owner)
            if isinstance(work, Generator):
                await in_steps(work)

    async def _commit(self, before: Snapshot, changes: Changes) -> int:
        old = [found for owner in changes.owners if (found := before.find(owner)) is not None]
        had, wanted = _claims(old), _claims(changes.puts)
        guards = {str(owner): before.generations.get(owner, ABSENT) for owner in (*changes.owners, *changes.reads)}
        return await self._store.transact(
            guards={**guards, **dict.fromkeys(wanted.keys() - had.keys(), ABSENT)},
            puts={str(owner_of(aggregate)): encode(aggregate) for aggregate in changes.puts}
            | {claim: wanted[claim] for claim in wanted.keys() - had.keys()},
            deletes=[*map(str, changes.deletes), *(had.keys() - wanted.keys())],
            head=before.revision if changes.rests_on_absence else None,
        )

    async def _publish_own(self, changes: Changes, revision: int) -> Snapshot:
        """What is stored is stored: nothing that fails from here on may be told as a failure."""
        if revision == self.snapshot.revision + 1:
            self._publish(changes, revision)
            return self.snapshot
        try:  # others wrote between: theirs first, in the order of the feed
            written = await self._catch_up(revision)
        except StoreError as error:
            LOG.warning("cannot read what others wrote: %s", error)
            self._publish_late(changes, revision)
            return self.snapshot
        # others may have changed, or deleted, by now what was just written: whoever wrote it is told what they wrote
        return written if written is not None else apply_changes(self.snapshot, changes, revision)

    async def _catch_up(self, own: int = 0) -> Snapshot | None:
        """Answers what was known at the revision `own`; None if it was passed over, because all had to be read."""
        at_own = None
        try:
            for batch in await self._store.changes(self.snapshot.revision):
                self._take_in(batch)
                at_own = self.snapshot if batch.revision == own else at_own
        except Compacted:
            await self._reload()
        return at_own

    async def _reload(self) -> None:
        """The feed no longer tells what happened: compare with everything that is stored.

        Until all was read nothing is changed: who is cut off in between begins again.
        """
        LOG.warning("too far behind the store: read all of it again")
        stored, revision = await read_stored(self._store, self.snapshot.generations, self._decoded)
        for _ in range(UNDISTURBED):
            old = self.snapshot
            new, owners = await in_steps(_made_of(old, stored, revision))
            if have_same_documents(old, self.snapshot):
                break
        else:
            old = self.snapshot
            new, owners = at_once(_made_of(old, stored, revision))
        self.snapshot = with_facts_of(new, self.snapshot)
        telling = self._publish_all(old, tuple(stored), owners)
        try:
            await in_steps(telling)
        finally:  # whoever waits no longer: all of it is known by now, and nobody tells it again
            at_once(telling)

    def _publish_all(self, old: Snapshot, documents: Sequence[Owner], owners: Sequence[Owner]) -> Steps[None]:
        """What was read anew, when it is in the snapshot."""
        for some in parts(documents, DERIVED):
            self.snapshot = derive(self.snapshot, some)
            self._show(Published(before=old, after=self.snapshot, documents=tuple(some), derived=tuple(some)))
            yield
        read = frozenset(documents)
        for some in parts([owner for owner in owners if owner not in read], DERIVED):
            before = self.snapshot
            self.snapshot = derive(before, some)
            self._show(Published(before=before, after=self.snapshot, derived=tuple(some)))
            yield
        for some in parts(owners, TOLD):
            self._tell(tuple(some))
            yield

    def _publish_late(self, changes: Changes, revision: int) -> None:
        """What was written at this revision, before all that came until then is known: the feed is read on from where
        it was."""
        behind = self.snapshot.revision
        self._publish(changes, revision)
        self.snapshot = replace(self.snapshot, revision=behind)

    def _take_in(self, batch: Batch) -> None:
        if batch.revision <= self.snapshot.revision:
            return
        found = dict(written(batch, self._decoded))
        puts = tuple(document for document in found.values() if document is not None)
        deletes = tuple(owner for owner, document in found.items() if document is None)
        self._publish(Changes(puts=puts, deletes=deletes), batch.revision)

    def _decoded(self, key: str, value: bytes) -> Aggregate:
        """Raises BadDocument and NewerDocument."""
        try:
            return decode_stored(key, value)
        except NewerDocument as error:
            self.newer = error
            self.outgrown.set()
            raise

    def _publish(self, changes: Changes, revision: int) -> None:
        old = self.snapshot
        new = apply_changes(old, changes, revision)
        owners = affected(old, new, changes.owners)
        self.snapshot = derive(new, owners)
        self._show(Published(before=old, after=self.snapshot, documents=changes.owners, derived=owners))
        self._tell(owners)

    def _show(self, published: Published) -> None:
        for watcher in self._watchers:
            watcher(published)

    def _tell(self, owners: tuple[Owner, ...]) -> None:
        for subscriber in self._subscribers:
            subscriber(owners)


def _made_of(old: Snapshot, stored: Stored, revision: int) -> Steps[tuple[Snapshot, Sequence[Owner]]]:
    """The snapshot with what was read anew, and the owners that this concerns."""
    new = yield from with_stored(old, stored, revision)
    return new, (yield from concerned(old, new, tuple(stored)))


async def decided(changes: Changes | Awaitable[Changes]) -> Changes:
    return changes if isinstance(changes, Changes) else await changes


def _claims(aggregates: Iterable[Aggregate]) -> Mapping[str, bytes]:
    return {CLAIM + claim: str(owner_of(aggregate)).encode() for aggregate in aggregates for claim in claims(aggregate)}

"""The store in an etcd: several servers on several hosts, over the members of one cluster.

A transaction is one of etcd's, whose revision is ours. Each writes the head, so the head's revision is the store's and
everybody else may use the same etcd. Each writes a key of its server's session too, and expects there what it wrote
last. So one whose answer was lost is found out: whoever writes the session next learns whether it was done, and it can
not be done any more afterwards.

Nothing here compacts: that is the operator's. The feed goes back as far as etcd's history.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Self

import msgspec

from fairlead.store import etcd_pb2 as pb
from fairlead.store.etcd_access import Access, Location
from fairlead.store.etcd_calls import DEADLINE, PATIENCE, PAUSE, RANGE, TXN, Members, NotSent, Refused, Unreached
from fairlead.store.etcd_feed import Feed, size_of, transactions
from fairlead.store.etcd_requests import (
    LOOKS,
    OWN,
    Keys,
    after_all,
    delete,
    has_room,
    holds,
    look,
    nested,
    put,
    ranges,
    read,
    writes,
)
from fairlead.store.interface import (
    ABSENT,
    Batch,
    Compacted,
    Conflict,
    Document,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    TooLarge,
)
from fairlead.store.races import pause
from fairlead.store.seal import State, decode_seal, sealed

VERSION = b"1"
"""Of how documents are laid out; the head has it."""
PAGE = 500
POLL = 2.0
"""Seconds between two looks at the head by who follows: the stream may be at a member that stands still."""
ATTEMPTS = 5
"""To read what is compacted meanwhile."""
CONTENDED = 3.0
"""Seconds for which a change is tried that others overtake: one with more guards than etcd compares is done if nothing
at all was written since they were looked at."""
FEED = 10_000
FEED_BYTES = 32 * 2**20
"""Who is further behind reads everything again."""
FULL = (
    ". It takes no writes until an operator has compacted its history (etcdctl compact), made members smaller (etcdctl"
    " defrag) or raised --quota-backend-bytes, and then: etcdctl alarm disarm"
)
PRECEDENCE = 1.0
"""Seconds for which others wait for who was overtaken; who had it may have been killed."""
WAITING = 4
"""Lost races after which one would pause as long as who waits pauses between two looks."""
SESSIONS = 1000
"""Sessions of servers that were killed, which a start leaves."""
TRIMMED = 100
"""Transactions of a server that deleted, after which it is looked whether there are more than are kept."""
TRIMMED_AT_ONCE = 1000
"""Keys that are taken away in one request."""


class EtcdStore:
    """Use `await EtcdStore.open(location, access)`."""

    def __init__(self, location: Location, access: Access) -> None:
        self._where = str(location)
        self._session = uuid.uuid4().hex
        self._keys = Keys(location.prefix, self._session)
        self._members = Members(location, access)
        self._feed = Feed(self._members, self._keys)
        self._turn = asyncio.Lock()
        self._seen = ABSENT
        """The revision at which our session was written last, as far as is known."""
        self.more = 0
        """Than etcd's own are the store's revisions (`shifted`)."""
        self._offset = ABSENT
        """The revision at which somebody said so."""
        self._precedence = ABSENT
        """The revision of the one that we have, or have waited for."""
        self._goes_first = False
        self._open = ""
        """The transaction of ours of which it is not known yet whether it was done."""
        self._count = 0
        self._deletions = 0
        """Transactions that deleted, since what is too old of these was taken away."""
        self._page = PAGE

    @classmethod
    async def open(cls, location: Location, access: Access) -> Self:
        """Raises StoreUnavailable."""
        try:
            store = cls(location, access)
        except (OSError, ValueError) as error:
            raise StoreUnavailable(f"{location}: {error}") from error
        try:
            await store._check_version()
            await store.head()
            store._refuse_sealed((await store._ask(RANGE, pb.RangeRequest(key=store._keys.seal))).kvs)
            await store._tidy()
        except BaseException:
            await store.close()
            raise
        return store

    async def get(self, key: str) -> Document | None:
        looks = [read(self._keys.document(key)), read(self._keys.offset)]
        document, offset = ranges((await self._ask(TXN, pb.TxnRequest(success=looks))).responses)
        self._learn(offset)
        return next((Document(key=key, revision=each.mod_revision, value=each.value) for each in document.kvs), None)

    async def range(self, prefix: str, *, after: str = "", limit: int | None = None) -> tuple[list[Document], int]:
        begin = self._keys.document(after) + b"\0" if after and after >= prefix else self._keys.document(prefix)
        end = after_all(self._keys.document(prefix))
        for _ in range(ATTEMPTS):
            try:
                found, revision = await self._read(begin, end, limit)
            except Compacted:  # while it was read
                continue
            name = self._keys.name
            return [
                Document(key=name(each.key), revision=each.mod_revision, value=each.value) for each in found
            ], revision
        raise StoreUnavailable(f"{self._where} is compacted faster than it can be read")

    async def transact(
        self, *, guards: Mapping[str, int], puts: Mapping[str, bytes], deletes: Iterable[str], head: int | None = None
    ) -> int:
        gone = dict.fromkeys(deletes)
        puts = {key: value for key, value in puts.items() if key not in gone}
        async with self._turn:
            revision = await self._write(guards, puts, list(gone), head)
            self._deletions += bool(gone)
            if self._deletions >= TRIMMED:
                with contextlib.suppress(StoreError):
                    await self._trim(self._keys.gone, FEED)
                    self._deletions = 0
        return revision

    async def _write(
        self, guards: Mapping[str, int], puts: Mapping[str, bytes], gone: list[str], head: int | None
    ) -> int:
        await self._settle_earlier()
        until = _now() + CONTENDED
        try:
            for lost in count():
                if has_room(len(guards) + OWN, len(puts) + len(gone) + OWN):
                    revision = await self._try(guards, puts, gone, head)
                else:
                    revision = await self._try_at(await self._look(guards, head), puts, gone, until)
                if revision is not None:
                    return revision
                if _now() > until:
                    break
                await asyncio.sleep(pause(lost))
        finally:
            await self._give_way()
        raise StoreUnavailable(f"{self._where}: not done in {CONTENDED:g} s; try again")

    async def _try_at(self, head: int, puts: Mapping[str, bytes], gone: list[str], until: float) -> int | None:
        """If nothing was written since the guards were looked at; whatever was, they are looked at again. Raises
        Conflict when others have written each time: whoever asks decides again."""
        try:
            return await self._try({}, puts, gone, head)
        except Conflict:
            if _now() > until:
                raise
            await self._go_first()
            return None

    async def _go_first(self) -> None:
        """Everybody else waits for the next transaction of ours, for a moment. Unless somebody else goes first."""
        if self._goes_first:
            return
        there = holds(self._keys.precedence, self._precedence)
        mine = put(self._keys.precedence, self._session.encode())
        answer = await self._ask(TXN, pb.TxnRequest(compare=[there], success=[mine]))
        if answer.succeeded:
            self._precedence, self._goes_first = answer.header.revision, True

    async def _give_way(self) -> None:
        """If it could not be done though we went first; who is not told waits it out."""
        if not self._goes_first:
            return
        self._goes_first = False
        there = holds(self._keys.precedence, self._precedence)
        with contextlib.suppress(StoreError):
            await self._ask(TXN, pb.TxnRequest(compare=[there], success=[delete(self._keys.precedence)]))

    async def _wait_for(self, precedence: int) -> None:
        """That of somebody else, who may have been killed: the next transaction of ours takes it away then."""
        until = _now() + PRECEDENCE
        key = pb.RangeRequest(key=self._keys.precedence, keys_only=True)
        found = precedence
        while precedence and (found := _revision(await self._ask(RANGE, key))) == precedence:
            if _now() > until:
                break
            await asyncio.sleep(pause(WAITING))
        self._precedence = precedence if found == precedence else ABSENT

    async def deleted(self) -> set[str]:
        gone = set[str]()
        async for values, _ in self._by_page(self._keys.gone, after_all(self._keys.gone)):
            gone.update(key for each in values for key in msgspec.json.decode(each.value, type=list[str]))
        if gone:
            everything = self._by_page(self._keys.documents, after_all(self._keys.documents), keys_only=True)
            async for there, _ in everything:  # a page at a time: the names of all of them at once hold the loop
                gone.difference_update(self._keys.name(each.key) for each in there)
        return gone

    async def head(self) -> int:
        looks = [look(self._keys.head), read(self._keys.offset)]
        head, offset = ranges((await self._ask(TXN, pb.TxnRequest(success=looks))).responses)
        self._learn(offset)
        return _revision(head)

    def _learn(self, offset: Any) -> None:
        """It is another one once the store was replaced while we run."""
        self.more, self._offset = int(offset.kvs[0].value) if offset.kvs else 0, _revision(offset)

    async def changes(self, after: int) -> list[Batch]:
        heard = self._feed.newest
        head = await self.head()
        if head < max(after, heard):
            await self._feed.lose()
            raise Compacted(f"{self._where} is older than what was read of it: it was restored, or is another")
        if head == after:
            return []
        told = await self._feed.up_to(after, head)
        if told is not None:
            return told
        batches: list[Batch] = []
        until = _now() + PATIENCE
        while not batches or batches[-1].revision < head:
            try:
                await self._collect(batches, after, head)
            except Unreached as error:
                if _now() > until:
                    raise StoreUnavailable(f"{self._where}: {error}") from None
        # A watch that begins where history does may have begun too late, and says nothing.
        await self._ask(RANGE, pb.RangeRequest(key=self._keys.head, keys_only=True, revision=max(after, 1)))
        return batches

    async def watch(self, after: int) -> AsyncIterator[Batch]:
        self._feed.start()
        while True:
            for batch in await self.changes(after):  # whatever became of the stream
                yield batch
                after = batch.revision
            while (heard := self._feed.since(after)) is not None:
                for batch in heard:
                    yield batch
                    after = batch.revision
                try:
                    async with asyncio.timeout(POLL):
                        await self._feed.news(after)
                except TimeoutError:
                    break
            else:
                await asyncio.sleep(PAUSE)

    async def renew(self) -> None:
        """Raises StoreUnavailable: what was read before goes on then."""
        try:
            await self._members.renew()
        except (OSError, ValueError) as error:
            raise StoreUnavailable(f"{self._where}: {error}") from error
        except Refused as refused:
            raise self._worded(refused) from None

    async def close(self) -> None:
        await self._feed.close()
        if self._seen and not self._open:
            with contextlib.suppress(Refused, Unreached):
                await self._members.ask_once(TXN, pb.TxnRequest(success=[delete(self._keys.session)]))
        await self._members.close()

    async def _ask(self, method: Any, request: Any) -> Any:
        """Raises StoreUnavailable, Compacted and TooLarge."""
        try:
            return await self._members.ask(method, request)
        except Refused as refused:
            raise self._worded(refused) from None
        except StoreUnavailable as error:
            raise StoreUnavailable(f"{self._where}: {error}") from None

    def _worded(self, refused: Refused) -> StoreError:
        if refused.compacted:
            return Compacted(f"{self._where}: {refused}")
        if refused.too_large:
            return TooLarge(
                f"{self._where}: {refused} (its --max-request-bytes and --max-txn-ops say how much it takes)"
            )
        return StoreUnavailable(f"{self._where}: {refused}{FULL if refused.no_space else ''}")

    async def _check_version(self) -> None:
        found = (await self._ask(RANGE, pb.RangeRequest(key=self._keys.head))).kvs
        if found and found[0].value != VERSION:
            raise StoreUnavailable(f"{self._where} was written by a newer version of Fairlead")

    def _refuse_sealed(self, found: Sequence[Any]) -> None:
        if found:
            raise sealed(self._where, found[0].value)

    def _refuse_half(self, found: Sequence[Any]) -> None:
        """What somebody else is filling; whoever runs goes on with what they have read before."""
        if found and decode_seal(found[0].value).state is State.FILLING:
            self._refuse_sealed(found)

    async def _read(
        self, begin: bytes, end: bytes, limit: int | None, *, keys_only: bool = False, moment: int = 0
    ) -> tuple[list[Any], int]:
        """As of one moment, and the revision of the store then. Raises Compacted."""
        found: list[Any] = []
        revision = 0
        async for page, at in self._by_page(begin, end, limit, keys_only=keys_only, moment=moment):
            found += page
            revision = at
        return found, revision

    async def _by_page(
        self, begin: bytes, end: bytes, limit: int | None = None, *, keys_only: bool = False, moment: int = 0
    ) -> AsyncIterator[tuple[Sequence[Any], int]]:
        """As of one moment, and the revision of the store then. Raises Compacted."""
        count = 0
        while True:
            size = self._page if limit is None else min(self._page, limit - count)
            if size < 1:
                return
            request = pb.RangeRequest(key=begin, range_end=end, limit=size, revision=moment, keys_only=keys_only)
            looks = [read(each, moment) for each in (self._keys.seal, self._keys.offset)]
            operations = [look(self._keys.head, moment), pb.Operation(range=request), *looks]
            try:
                answer = await self._members.ask(TXN, pb.TxnRequest(success=operations))
            except Refused as refused:
                if refused.too_large_an_answer and size > 1:
                    self._page = max(1, size // 2)
                    continue
                raise self._worded(refused) from None
            head, page, seal, offset = ranges(answer.responses)
            self._refuse_half(seal.kvs)
            if not moment:
                moment = answer.header.revision
                self._learn(offset)
            yield page.kvs, _revision(head)
            count += len(page.kvs)
            if not page.more:
                return
            begin = page.kvs[-1].key + b"\0"

    async def _look(self, guards: Mapping[str, int], head: int | None) -> int:
        """The head at which all of these hold. Raises Conflict."""
        names = list(guards)
        moment = found_head = 0
        for first in range(0, len(names), LOOKS):
            some = names[first : first + LOOKS]
            looks = [look(each, moment) for each in (self._keys.head, *map(self._keys.document, some))]
            answer = await self._ask(TXN, pb.TxnRequest(success=nested(looks)))
            moment = moment or answer.header.revision
            found_head, *revisions = map(_revision, ranges(answer.responses))
            _compare({name: guards[name] for name in some}, revisions)
        if head is not None and head != found_head:
            raise Conflict("the store")
        return found_head

    async def _try(
        self, guards: Mapping[str, int], puts: Mapping[str, bytes], gone: list[str], head: int | None
    ) -> int | None:
        """The revision; None when it was not done and may be tried again. Raises Conflict, OutcomeUnknown."""
        self._count += 1
        token = f"{self._session}-{self._count}"
        own = (self._keys.session, self._keys.head, self._keys.precedence, self._keys.offset)
        keys = [*own, *map(self._keys.document, guards)]
        compare = [holds(self._keys.session, self._seen), holds(self._keys.seal, ABSENT)]
        compare += [holds(self._keys.precedence, self._precedence), holds(self._keys.offset, self._offset)]
        compare += [holds(self._keys.document(key), wanted) for key, wanted in guards.items()]
        if head is not None:
            compare.append(holds(self._keys.head, head))
        success = writes(self._keys, puts, gone, token, VERSION)
        if self._precedence:
            success.insert(0, delete(self._keys.precedence))
        failure = [read(self._keys.seal), *map(look, keys)]
        request = pb.TxnRequest(compare=compare, success=nested(success, len(guards) + OWN), failure=failure)
        self._open = token
        try:
            answer = await self._members.ask_once(TXN, request)
        except Refused as refused:
            self._open = ""
            raise self._worded(refused) from None
        except NotSent:
            self._open = ""
            await self.head()  # another member may let us in
            return None
        except Unreached:
            return await self._settle()
        self._open = ""
        if answer.succeeded:
            self._precedence, self._goes_first = ABSENT, False
            self._seen = answer.header.revision
            return self._seen
        seal, *looks = (each.range for each in answer.responses)
        self._seen, found_head, precedence, offset, *revisions = map(_revision, looks)
        self._refuse_sealed(seal.kvs)
        if offset != self._offset:
            await self.head()
            raise Conflict("the store")
        if head is not None and head != found_head:
            raise Conflict("the store")
        _compare(guards, revisions)
        if precedence != self._precedence:
            await self._wait_for(precedence)
        return None

    async def _settle_earlier(self) -> None:
        """Whoever made the open transaction was told already that nobody knows; it will not be done any more."""
        try:
            await self._settle()
        except OutcomeUnknown as error:
            if not self._open:
                return
            raise StoreUnavailable(
                f"{error.__cause__}; what became of an earlier change is to be found out first"
            ) from None

    async def _settle(self) -> int | None:
        """Find out what became of the open transaction: its revision, or None, and then it never will be done."""
        if not self._open:
            return None
        token, fence = self._open.encode(), f"{self._open}-not".encode()
        session = self._keys.session
        request = pb.TxnRequest(
            compare=[holds(session, self._seen)],
            success=[put(session, fence)],
            failure=[read(session)],
        )
        try:
            answer = await self._ask(TXN, request)
        except StoreError as error:
            raise OutcomeUnknown(f"{error}; whether the change was written is not known yet") from error
        self._open = ""
        if answer.succeeded:
            self._seen = answer.header.revision
            return None
        found = answer.responses[0].range.kvs
        self._seen = found[0].mod_revision if found else ABSENT
        if found and found[0].value == token:
            return self._seen
        if found and found[0].value == fence:  # the answer to an earlier fence was lost
            return None
        raise OutcomeUnknown(
            f"{self._where}: somebody took our session away; whether the change was written is not known"
        )

    async def _collect(self, batches: list[Batch], after: int, head: int) -> None:
        """Until the head's. Raises Compacted, StoreUnavailable and Unreached, and what came until then is kept."""
        start = batches[-1].revision if batches else after
        size = sum(map(size_of, batches))
        too_much = Compacted(f"{self._where}: too much was written after revision {after}")
        try:
            async with contextlib.aclosing(transactions(self._members, self._keys, start, DEADLINE)) as found:
                async for batch in found:
                    batches.append(batch)
                    size += size_of(batch)
                    if size > FEED_BYTES or len(batches) > FEED:
                        raise too_much
                    if batch.revision >= head:
                        return
        except Refused as refused:
            raise too_much if refused.too_large_an_answer else self._worded(refused) from None

    async def _tidy(self) -> None:
        """Of what servers leave that are killed, or started again before they have deleted much."""
        for prefix, kept in ((self._keys.sessions, SESSIONS), (self._keys.gone, FEED)):
            while await self._trim(prefix, kept):
                pass

    async def _trim(self, prefix: bytes, kept: int) -> bool:
        """Of these the oldest, when there are more; whether there may still be."""
        oldest = pb.RangeRequest(
            key=prefix,
            range_end=after_all(prefix),
            keys_only=True,
            limit=TRIMMED_AT_ONCE,
            sort_order=pb.RangeRequest.ASCEND,
            sort_target=pb.RangeRequest.MOD,
        )
        found = await self._ask(RANGE, oldest)
        out = [delete(each.key) for each in found.kvs[: max(0, found.count - kept)]]
        if out:
            await self._ask(TXN, pb.TxnRequest(success=nested(out)))
        return len(out) == TRIMMED_AT_ONCE


def _now() -> float:
    return asyncio.get_running_loop().time()


def _revision(found: Any) -> int:
    """Of the one key that was looked for."""
    return int(found.kvs[0].mod_revision) if found.kvs else ABSENT


def _compare(guards: Mapping[str, int], revisions: Iterable[int]) -> None:
    for (key, wanted), found in zip(guards.items(), revisions, strict=True):
        if found != wanted:
            raise Conflict(key)

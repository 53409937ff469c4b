"""Store in an etcd cluster, shared by servers on several hosts.

- Each transaction is one etcd transaction, and its revision is etcd's.
- Each transaction writes the head key, so the head's modification revision is the store's revision, and other
  applications may use the same etcd cluster.
- Each transaction also writes the session key of its server, guarded by the value written last. If the answer of a
  transaction is lost, the next write to the session key finds out whether it was committed, and prevents a later
  commit.
- Compaction is left to the operator. The change feed reaches back as far as etcd's history.
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
from fairlead.store.etcd_calls import (
    CALL_TIMEOUT,
    RANGE,
    RETRY_INTERVAL,
    TOTAL_TIMEOUT,
    TXN,
    EtcdError,
    EtcdMembers,
    EtcdUnreachable,
    NotSent,
)
from fairlead.store.etcd_feed import Feed, size_of, stream_transactions
from fairlead.store.etcd_requests import (
    MAX_KEYS_PER_REQUEST,
    OWN_COMPARISONS,
    EtcdKeys,
    after_all,
    delete,
    has_room,
    nest,
    put,
    range_responses,
    read,
    read_revision,
    revision_is,
    write_operations,
)
from fairlead.store.interface import (
    NO_REVISION,
    Batch,
    Compacted,
    Conflict,
    Document,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    TooLarge,
)
from fairlead.store.migration_fence import FenceState, decode_fence, fenced_error
from fairlead.store.write_conflicts import backoff

VERSION = b"1"
"""Version of the key layout, stored as the value of the head."""
PAGE_SIZE = 500
POLL_INTERVAL = 2.0
"""Seconds between polls of the head by a watcher, because the stream's member may hang."""
MAX_ATTEMPTS = 5
"""Maximum restarts of a read because etcd compacted its revision during the read."""
CONFLICT_TIMEOUT = 3.0
"""Seconds for retries of a transaction that loses write conflicts.

A transaction with more guards than etcd can compare commits only if nothing was written since its guards were read.
"""
MAX_FEED_TRANSACTIONS = 10_000
MAX_FEED_BYTES = 32 * 2**20
"""Maximum bytes of one feed read. A reader that is further behind reads the whole store again."""
NO_SPACE_ADVICE = (
    ". etcd rejects writes until an operator compacts its history (etcdctl compact), defragments its members (etcdctl"
    " defrag) or raises --quota-backend-bytes, and then runs: etcdctl alarm disarm"
)
PRECEDENCE_TIMEOUT = 1.0
"""Maximum seconds that other servers yield to one that lost a write conflict; that server may have been killed."""
WAIT_BACKOFF = 4
"""Number of lost races that gives the back-off between two polls of a waiting server."""
MAX_SESSIONS = 1000
"""Sessions of killed servers that are kept at a start; older ones are deleted."""
DELETIONS_PER_TRIM = 100
"""Deleting transactions of one server after which it trims the keys of deleted documents."""
MAX_TRIMMED_KEYS = 1000
"""Maximum keys removed in one request."""


class EtcdStore:
    """Store in etcd. Use `await EtcdStore.open(location, access)`."""

    def __init__(self, location: Location, access: Access) -> None:
        self._where = str(location)
        self._session = uuid.uuid4().hex
        self._keys = EtcdKeys(location.prefix, self._session)
        self._members = EtcdMembers(location, access)
        self._feed = Feed(self._members, self._keys)
        self._turn = asyncio.Lock()
        self._session_revision = NO_REVISION
        """Last known modification revision of the session key."""
        self.revision_offset = 0
        """Number added to etcd's revisions to get the store's (`shifted`)."""
        self._offset = NO_REVISION
        """Modification revision of the offset key."""
        self._precedence = NO_REVISION
        """Modification revision of the precedence key that this server holds or has waited for."""
        self._has_precedence = False
        self._unresolved_token = ""
        """Token of the transaction with unknown outcome; "" if there is none."""
        self._count = 0
        self._deletions = 0
        """Number of deleting transactions since the last trim."""
        self._page = PAGE_SIZE

    @classmethod
    async def open(cls, location: Location, access: Access) -> Self:
        """Connect to the cluster. Raises StoreUnavailable."""
        try:
            store = cls(location, access)
        except (OSError, ValueError) as error:
            raise StoreUnavailable(f"{location}: {error}") from error
        try:
            await store._check_version()
            await store.head()
            store._check_not_fenced((await store._ask(RANGE, pb.RangeRequest(key=store._keys.fence))).kvs)
            await store._tidy()
        except BaseException:
            await store.close()
            raise
        return store

    async def get(self, key: str) -> Document | None:
        looks = [read(self._keys.document(key)), read(self._keys.offset)]
        document, offset = range_responses((await self._ask(TXN, pb.TxnRequest(success=looks))).responses)
        self._update_offset(offset)
        return next((Document(key=key, revision=each.mod_revision, value=each.value) for each in document.kvs), None)

    async def range(self, prefix: str, *, after: str = "", limit: int | None = None) -> tuple[list[Document], int]:
        begin = self._keys.document(after) + b"\0" if after and after >= prefix else self._keys.document(prefix)
        end = after_all(self._keys.document(prefix))
        for _ in range(MAX_ATTEMPTS):
            try:
                found, revision = await self._read(begin, end, limit)
            except Compacted:  # compacted during the read
                continue
            name = self._keys.name
            return [
                Document(key=name(each.key), revision=each.mod_revision, value=each.value) for each in found
            ], revision
        raise StoreUnavailable(f"{self._where}: etcd compacts its history faster than Fairlead reads it")

    async def transact(
        self, *, guards: Mapping[str, int], puts: Mapping[str, bytes], deletes: Iterable[str], head: int | None = None
    ) -> int:
        gone = dict.fromkeys(deletes)
        puts = {key: value for key, value in puts.items() if key not in gone}
        async with self._turn:
            revision = await self._write(guards, puts, list(gone), head)
            self._deletions += bool(gone)
            if self._deletions >= DELETIONS_PER_TRIM:
                with contextlib.suppress(StoreError):
                    await self._trim(self._keys.gone, MAX_FEED_TRANSACTIONS)
                    self._deletions = 0
        return revision

    async def _write(
        self, guards: Mapping[str, int], puts: Mapping[str, bytes], gone: list[str], head: int | None
    ) -> int:
        await self._resolve_previous()
        until = _now() + CONFLICT_TIMEOUT
        try:
            for lost in count():
                if has_room(len(guards) + OWN_COMPARISONS, len(puts) + len(gone) + OWN_COMPARISONS):
                    revision = await self._try(guards, puts, gone, head)
                else:
                    revision = await self._try_at(await self._check_guards(guards, head), puts, gone, until)
                if revision is not None:
                    return revision
                if _now() > until:
                    break
                await asyncio.sleep(backoff(lost))
        finally:
            await self._release_precedence()
        raise StoreUnavailable(f"{self._where}: write conflicts for {CONFLICT_TIMEOUT:g} s; retry")

    async def _try_at(self, head: int, puts: Mapping[str, bytes], gone: list[str], until: float) -> int | None:
        """Write if nothing was written since the guards were read. Returns None to have them read again.

        Raises Conflict after `until`; the caller decides again.
        """
        try:
            return await self._try({}, puts, gone, head)
        except Conflict:
            if _now() > until:
                raise
            await self._claim_precedence()
            return None

    async def _claim_precedence(self) -> None:
        """Claim precedence: all other servers yield to the next transaction of this one, for up to `PRECEDENCE_TIMEOUT`
        seconds.

        No effect if another server holds precedence.
        """
        if self._has_precedence:
            return
        there = revision_is(self._keys.precedence, self._precedence)
        mine = put(self._keys.precedence, self._session.encode())
        answer = await self._ask(TXN, pb.TxnRequest(compare=[there], success=[mine]))
        if answer.succeeded:
            self._precedence, self._has_precedence = answer.header.revision, True

    async def _release_precedence(self) -> None:
        """Release precedence if the transaction failed. Servers that do not notice wait until it times out."""
        if not self._has_precedence:
            return
        self._has_precedence = False
        there = revision_is(self._keys.precedence, self._precedence)
        with contextlib.suppress(StoreError):
            await self._ask(TXN, pb.TxnRequest(compare=[there], success=[delete(self._keys.precedence)]))

    async def _wait_for(self, precedence: int) -> None:
        """Wait while another server holds precedence.

        That server may have been killed, so the next transaction here deletes the key after `PRECEDENCE_TIMEOUT`
        seconds.
        """
        until = _now() + PRECEDENCE_TIMEOUT
        key = pb.RangeRequest(key=self._keys.precedence, keys_only=True)
        found = precedence
        while precedence and (found := _revision(await self._ask(RANGE, key))) == precedence:
            if _now() > until:
                break
            await asyncio.sleep(backoff(WAIT_BACKOFF))
        self._precedence = precedence if found == precedence else NO_REVISION

    async def deleted(self) -> set[str]:
        gone = set[str]()
        async for values, _ in self._by_page(self._keys.gone, after_all(self._keys.gone)):
            gone.update(key for each in values for key in msgspec.json.decode(each.value, type=list[str]))
        if gone:
            everything = self._by_page(self._keys.documents, after_all(self._keys.documents), keys_only=True)
            async for there, _ in everything:  # page by page, because listing all keys would block the loop
                gone.difference_update(self._keys.name(each.key) for each in there)
        return gone

    async def head(self) -> int:
        looks = [read_revision(self._keys.head), read(self._keys.offset)]
        head, offset = range_responses((await self._ask(TXN, pb.TxnRequest(success=looks))).responses)
        self._update_offset(offset)
        return _revision(head)

    def _update_offset(self, offset: Any) -> None:
        """Update the offset, which changes when the store is replaced while the server runs."""
        self.revision_offset, self._offset = int(offset.kvs[0].value) if offset.kvs else 0, _revision(offset)

    async def changes(self, after: int) -> list[Batch]:
        heard = self._feed.newest
        head = await self.head()
        if head < max(after, heard):
            await self._feed.reset()
            raise Compacted(
                f"{self._where}: the revision is older than the last one read: the store was restored or replaced"
            )
        if head == after:
            return []
        told = await self._feed.read_up_to(after, head)
        if told is not None:
            return told
        batches: list[Batch] = []
        until = _now() + TOTAL_TIMEOUT
        while not batches or batches[-1].revision < head:
            try:
                await self._collect(batches, after, head)
            except EtcdUnreachable as error:
                if _now() > until:
                    raise StoreUnavailable(f"{self._where}: {error}") from None
        # A watch from the first revision in history may have started too late without an error; this read detects it.
        await self._ask(RANGE, pb.RangeRequest(key=self._keys.head, keys_only=True, revision=max(after, 1)))
        return batches

    async def watch(self, after: int) -> AsyncIterator[Batch]:
        self._feed.start()
        while True:
            for batch in await self.changes(after):  # independent of the state of the stream
                yield batch
                after = batch.revision
            while (heard := self._feed.since(after)) is not None:
                for batch in heard:
                    yield batch
                    after = batch.revision
                try:
                    async with asyncio.timeout(POLL_INTERVAL):
                        await self._feed.wait_after(after)
                except TimeoutError:
                    break
            else:
                await asyncio.sleep(RETRY_INTERVAL)

    async def renew(self) -> None:
        """Reload certificates and password. Raises StoreUnavailable, and then keeps the previous ones."""
        try:
            await self._members.renew()
        except (OSError, ValueError) as error:
            raise StoreUnavailable(f"{self._where}: {error}") from error
        except EtcdError as refused:
            raise self._to_store_error(refused) from None

    async def close(self) -> None:
        await self._feed.close()
        if self._session_revision and not self._unresolved_token:
            with contextlib.suppress(EtcdError, EtcdUnreachable):
                await self._members.call_once(TXN, pb.TxnRequest(success=[delete(self._keys.session)]))
        await self._members.close()

    async def _ask(self, method: Any, request: Any) -> Any:
        """Send a request that can be repeated. Raises StoreUnavailable, Compacted and TooLarge."""
        try:
            return await self._members.call(method, request)
        except EtcdError as refused:
            raise self._to_store_error(refused) from None
        except StoreUnavailable as error:
            raise StoreUnavailable(f"{self._where}: {error}") from None

    def _to_store_error(self, refused: EtcdError) -> StoreError:
        if refused.compacted:
            return Compacted(f"{self._where}: {refused}")
        if refused.too_large:
            return TooLarge(f"{self._where}: {refused} (etcd limits: --max-request-bytes and --max-txn-ops)")
        return StoreUnavailable(f"{self._where}: {refused}{NO_SPACE_ADVICE if refused.no_space else ''}")

    async def _check_version(self) -> None:
        found = (await self._ask(RANGE, pb.RangeRequest(key=self._keys.head))).kvs
        if found and found[0].value != VERSION:
            raise StoreUnavailable(f"{self._where} was written by a newer version of Fairlead")

    def _check_not_fenced(self, found: Sequence[Any]) -> None:
        if found:
            raise fenced_error(self._where, found[0].value)

    def _refuse_half(self, found: Sequence[Any]) -> None:
        """Raise for a store that another process is filling. A running server keeps its last known model."""
        if found and decode_fence(found[0].value).state is FenceState.FILLING:
            self._check_not_fenced(found)

    async def _read(
        self, begin: bytes, end: bytes, limit: int | None, *, keys_only: bool = False, moment: int = 0
    ) -> tuple[list[Any], int]:
        """Read a key range at one revision, and return it with the store's revision. Raises Compacted."""
        found: list[Any] = []
        revision = 0
        async for page, at in self._by_page(begin, end, limit, keys_only=keys_only, moment=moment):
            found += page
            revision = at
        return found, revision

    async def _by_page(
        self, begin: bytes, end: bytes, limit: int | None = None, *, keys_only: bool = False, moment: int = 0
    ) -> AsyncIterator[tuple[Sequence[Any], int]]:
        """Yield pages of a key range at one revision, each with the store's revision. Raises Compacted."""
        count = 0
        while True:
            size = self._page if limit is None else min(self._page, limit - count)
            if size < 1:
                return
            request = pb.RangeRequest(key=begin, range_end=end, limit=size, revision=moment, keys_only=keys_only)
            looks = [read(each, moment) for each in (self._keys.fence, self._keys.offset)]
            operations = [read_revision(self._keys.head, moment), pb.Operation(range=request), *looks]
            try:
                answer = await self._members.call(TXN, pb.TxnRequest(success=operations))
            except EtcdError as refused:
                if refused.too_large_an_answer and size > 1:
                    self._page = max(1, size // 2)
                    continue
                raise self._to_store_error(refused) from None
            head, page, seal, offset = range_responses(answer.responses)
            self._refuse_half(seal.kvs)
            if not moment:
                moment = answer.header.revision
                self._update_offset(offset)
            yield page.kvs, _revision(head)
            count += len(page.kvs)
            if not page.more:
                return
            begin = page.kvs[-1].key + b"\0"

    async def _check_guards(self, guards: Mapping[str, int], head: int | None) -> int:
        """Return the head revision if all guards hold. Raises Conflict."""
        names = list(guards)
        moment = found_head = 0
        for first in range(0, len(names), MAX_KEYS_PER_REQUEST):
            some = names[first : first + MAX_KEYS_PER_REQUEST]
            looks = [read_revision(each, moment) for each in (self._keys.head, *map(self._keys.document, some))]
            answer = await self._ask(TXN, pb.TxnRequest(success=nest(looks)))
            moment = moment or answer.header.revision
            found_head, *revisions = map(_revision, range_responses(answer.responses))
            _compare({name: guards[name] for name in some}, revisions)
        if head is not None and head != found_head:
            raise Conflict("the store")
        return found_head

    async def _try(
        self, guards: Mapping[str, int], puts: Mapping[str, bytes], gone: list[str], head: int | None
    ) -> int | None:
        """Run the transaction and return its revision.

        None if it was not committed and may be retried. Raises Conflict and OutcomeUnknown.
        """
        self._count += 1
        token = f"{self._session}-{self._count}"
        own = (self._keys.session, self._keys.head, self._keys.precedence, self._keys.offset)
        keys = [*own, *map(self._keys.document, guards)]
        compare = [revision_is(self._keys.session, self._session_revision), revision_is(self._keys.fence, NO_REVISION)]
        compare += [revision_is(self._keys.precedence, self._precedence), revision_is(self._keys.offset, self._offset)]
        compare += [revision_is(self._keys.document(key), wanted) for key, wanted in guards.items()]
        if head is not None:
            compare.append(revision_is(self._keys.head, head))
        success = write_operations(self._keys, puts, gone, token, VERSION)
        if self._precedence:
            success.insert(0, delete(self._keys.precedence))
        failure = [read(self._keys.fence), *map(read_revision, keys)]
        request = pb.TxnRequest(compare=compare, success=nest(success, len(guards) + OWN_COMPARISONS), failure=failure)
        self._unresolved_token = token
        try:
            answer = await self._members.call_once(TXN, request)
        except EtcdError as refused:
            self._unresolved_token = ""
            raise self._to_store_error(refused) from None
        except NotSent:
            self._unresolved_token = ""
            await self.head()  # try another member
            return None
        except EtcdUnreachable:
            return await self._resolve_outcome()
        self._unresolved_token = ""
        if answer.succeeded:
            self._precedence, self._has_precedence = NO_REVISION, False
            self._session_revision = answer.header.revision
            return self._session_revision
        seal, *looks = (each.range for each in answer.responses)
        self._session_revision, found_head, precedence, offset, *revisions = map(_revision, looks)
        self._check_not_fenced(seal.kvs)
        if offset != self._offset:
            await self.head()
            raise Conflict("the store")
        if head is not None and head != found_head:
            raise Conflict("the store")
        _compare(guards, revisions)
        if precedence != self._precedence:
            await self._wait_for(precedence)
        return None

    async def _resolve_previous(self) -> None:
        """Settle the previous transaction with unknown outcome before the next write. Its caller got OutcomeUnknown."""
        try:
            await self._resolve_outcome()
        except OutcomeUnknown as error:
            if not self._unresolved_token:
                return
            raise StoreUnavailable(
                f"{error.__cause__}; the outcome of an earlier change must be determined first"
            ) from None

    async def _resolve_outcome(self) -> int | None:
        """Settle the open transaction: return its revision, or None if it was not committed and never will be."""
        if not self._unresolved_token:
            return None
        token, fence = self._unresolved_token.encode(), f"{self._unresolved_token}-not".encode()
        session = self._keys.session
        request = pb.TxnRequest(
            compare=[revision_is(session, self._session_revision)],
            success=[put(session, fence)],
            failure=[read(session)],
        )
        try:
            answer = await self._ask(TXN, request)
        except StoreError as error:
            raise OutcomeUnknown(f"{error}; the outcome of the change is unknown") from error
        self._unresolved_token = ""
        if answer.succeeded:
            self._session_revision = answer.header.revision
            return None
        found = answer.responses[0].range.kvs
        self._session_revision = found[0].mod_revision if found else NO_REVISION
        if found and found[0].value == token:
            return self._session_revision
        if found and found[0].value == fence:  # the answer to an earlier fence was lost
            return None
        raise OutcomeUnknown(
            f"{self._where}: another program deleted this server's session; the outcome of the change is unknown"
        )

    async def _collect(self, batches: list[Batch], after: int, head: int) -> None:
        """Append batches until the head's revision. Raises Compacted, StoreUnavailable and Unreached; batches received
        before an error are kept."""
        start = batches[-1].revision if batches else after
        size = sum(map(size_of, batches))
        too_much = Compacted(f"{self._where}: too many changes after revision {after}")
        try:
            async with contextlib.aclosing(
                stream_transactions(self._members, self._keys, start, CALL_TIMEOUT)
            ) as found:
                async for batch in found:
                    batches.append(batch)
                    size += size_of(batch)
                    if size > MAX_FEED_BYTES or len(batches) > MAX_FEED_TRANSACTIONS:
                        raise too_much
                    if batch.revision >= head:
                        return
        except EtcdError as refused:
            raise too_much if refused.too_large_an_answer else self._to_store_error(refused) from None

    async def _tidy(self) -> None:
        """Delete session keys of killed servers, and old keys of deleted documents."""
        for prefix, kept in ((self._keys.sessions, MAX_SESSIONS), (self._keys.gone, MAX_FEED_TRANSACTIONS)):
            while await self._trim(prefix, kept):
                pass

    async def _trim(self, prefix: bytes, kept: int) -> bool:
        """Delete the oldest of these keys above `kept`. Returns whether there may be more."""
        oldest = pb.RangeRequest(
            key=prefix,
            range_end=after_all(prefix),
            keys_only=True,
            limit=MAX_TRIMMED_KEYS,
            sort_order=pb.RangeRequest.ASCEND,
            sort_target=pb.RangeRequest.MOD,
        )
        found = await self._ask(RANGE, oldest)
        out = [delete(each.key) for each in found.kvs[: max(0, found.count - kept)]]
        if out:
            await self._ask(TXN, pb.TxnRequest(success=nest(out)))
        return len(out) == MAX_TRIMMED_KEYS


def _now() -> float:
    return asyncio.get_running_loop().time()


def _revision(found: Any) -> int:
    """Modification revision of the single key in a range response."""
    return int(found.kvs[0].mod_revision) if found.kvs else NO_REVISION


def _compare(guards: Mapping[str, int], revisions: Iterable[int]) -> None:
    for (key, wanted), found in zip(guards.items(), revisions, strict=True):
        if found != wanted:
            raise Conflict(key)

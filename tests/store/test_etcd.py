"""The store in an etcd whose members crash, pause, lose data, and reject requests."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest

from fairlead.store import etcd_calls
from fairlead.store import etcd_pb2 as pb
from fairlead.store.etcd import CONFLICT_TIMEOUT, PRECEDENCE_TIMEOUT, VERSION, EtcdStore
from fairlead.store.etcd_access import Access, parse_location
from fairlead.store.etcd_bulk import EtcdBulkStore
from fairlead.store.etcd_calls import MAX_CALL_SECONDS, RANGE, RETRY_INTERVAL, TXN, EtcdMembers, EtcdUnreachable
from fairlead.store.etcd_feed import Feed, stream_transactions
from fairlead.store.etcd_requests import EtcdKeys, put
from fairlead.store.interface import (
    NO_REVISION,
    Compacted,
    Conflict,
    Document,
    OutcomeUnknown,
    StoreUnavailable,
    TooLarge,
)
from fairlead.store.migration_fence import Fence, FenceState
from harness.certificates import Authority, key_pem
from harness.etcd import EtcdCluster, etcd_cluster
from harness.waiting import DEADLINE, assert_holds_on_loop, eventually, eventually_equal, run_ready_tasks

pytestmark = pytest.mark.slow

_NUMBERS = count()
SEAL = Fence(state=FenceState.FILLING, other="sqlite:///x", since="now", id="1")


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with etcd_cluster() as cluster:
        yield cluster


@pytest.fixture
def opened(etcd: EtcdCluster) -> Callable[[], Awaitable[EtcdStore]]:
    location = parse_location(f"{','.join(etcd.hosts)}/faults{next(_NUMBERS)}")
    return lambda: EtcdStore.open(location, Access())


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """Return a context in which all members are down, and calls to them time out soon."""

    async def lose(*_: object) -> None:
        raise EtcdUnreachable("away")

    @contextmanager
    def within() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(etcd_calls, "TOTAL_TIMEOUT", 0.1)
            patch.setattr(EtcdMembers, "call_once", lose)
            yield

    return within


class Writer:
    """Writer of consecutive numbers without guards: a repeated write would be visible in the feed."""

    def __init__(self, store: EtcdStore) -> None:
        self._store = store
        self._written = asyncio.Condition()
        self.acknowledged: list[int] = []
        self.tried = 0

    async def write(self) -> None:
        while True:
            self.tried += 1
            try:
                await self._store.transact(guards={}, puts={"n": b"%d" % self.tried}, deletes=[])
            except StoreUnavailable:
                continue
            async with self._written:
                self.acknowledged.append(self.tried)
                self._written.notify_all()

    async def more(self, number: int = 20) -> None:
        wanted = len(self.acknowledged) + number
        async with self._written:
            await self._written.wait_for(lambda: len(self.acknowledged) >= wanted)


async def _numbers(store: EtcdStore) -> Counter[int]:
    return Counter(int(batch.documents["n"] or b"") for batch in await store.changes(0))


@pytest.mark.slow
async def test_no_write_is_lost_or_doubled_while_etcd_members_crash_or_pause(etcd: EtcdCluster, opened):
    store, other = await opened(), await opened()
    writer = Writer(store)
    seen: list[int] = []

    async def follow() -> None:
        async for batch in other.watch(0):
            seen.append(int(batch.documents["n"] or b""))
            if seen[-1] == 0:
                return

    tasks = [asyncio.create_task(writer.write()), asyncio.create_task(follow())]
    await writer.more()
    for number in (signal.SIGKILL, signal.SIGSTOP):
        for choose in (etcd.leader, lambda: store._members._current):
            member = await asyncio.to_thread(choose)
            etcd.signal(member, number)
            await writer.more()
            if number is signal.SIGKILL:
                etcd.start(member)
            else:
                etcd.signal(member, signal.SIGCONT)
            await asyncio.to_thread(etcd.wait)
    await writer.more()
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    await store.transact(guards={}, puts={"n": b"0"}, deletes=[])  # settles pending transactions
    found = await _numbers(store)
    assert set(found.values()) == {1}
    assert set(writer.acknowledged) <= set(found)
    await asyncio.wait_for(tasks[1], DEADLINE)
    assert seen == list(found)
    await store.close()
    await other.close()


@pytest.mark.slow
async def test_write_without_quorum_ends_and_is_settled_later(
    etcd: EtcdCluster, opened, monkeypatch: pytest.MonkeyPatch
):
    store = await opened()
    await store.transact(guards={}, puts={"n": b"1"}, deletes=[])
    leader = etcd.leader()
    still = [member for member in range(3) if member != leader]
    for member in still:
        etcd.signal(member, signal.SIGSTOP)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(etcd_calls, "TOTAL_TIMEOUT", 1.0)
            with pytest.raises(OutcomeUnknown, match="outcome of the change is unknown"):
                await store.transact(guards={}, puts={"n": b"2"}, deletes=[])
            with pytest.raises(StoreUnavailable, match="no quorum"):
                await store.get("n")
    finally:
        for member in still:
            etcd.signal(member, signal.SIGCONT)
    await asyncio.to_thread(etcd.wait)
    await store.transact(guards={}, puts={"n": b"3"}, deletes=[])
    found = await _numbers(store)
    assert list(found) in ([1, 3], [1, 2, 3])
    assert set(found.values()) == {1}
    await store.close()


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("guarded", [True, False])
async def test_write_with_a_lost_response_is_resolved(
    opened, monkeypatch: pytest.MonkeyPatch, done: bool, guarded: bool
):
    ask_once, lost = EtcdMembers.call_once, list[bool]()

    async def lose(self, method, request):
        if method is TXN and any(each.WhichOneof("request") == "put" for each in request.success) and len(lost) < 2:
            lost.append(True)  # the results of the transaction and of the request about its outcome are lost
            if done or len(lost) == 2:
                await ask_once(self, method, request)
            raise EtcdUnreachable("the answer was lost")
        return await ask_once(self, method, request)

    store = await opened()
    monkeypatch.setattr(EtcdMembers, "call_once", lose)
    revision = await store.transact(guards={"n": NO_REVISION} if guarded else {}, puts={"n": b"1"}, deletes=[])
    assert len(lost) == 2
    assert [batch.revision for batch in await store.changes(0)] == [revision]
    assert await store.transact(guards={"n": revision}, puts={"n": b"2"}, deletes=[]) > revision
    await store.close()


async def test_write_behind_an_unresolved_one_is_reported_as_not_written(opened, away):
    store = await opened()
    with away():
        with pytest.raises(OutcomeUnknown, match="outcome of the change is unknown"):
            await store.transact(guards={}, puts={"n": b"1"}, deletes=[])
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="outcome") as refused:
                await store.transact(guards={}, puts={"n": b"2"}, deletes=[])
            assert not isinstance(refused.value, OutcomeUnknown)
    last = await store.transact(guards={}, puts={"n": b"3"}, deletes=[])
    assert [(each.revision, dict(each.documents)) for each in await store.changes(0)] == [(last, {"n": b"3"})]
    await store.close()


async def test_write_succeeds_although_an_earlier_outcome_is_unknown(etcd: EtcdCluster, opened, away):
    """A write succeeds although the outcome of an earlier one is unknown: its session is gone, so it cannot take
    effect."""
    store = await opened()
    first = await store.transact(guards={}, puts={"n": b"1"}, deletes=[])
    with away(), pytest.raises(OutcomeUnknown):
        await store.transact(guards={}, puts={"n": b"2"}, deletes=[])
    etcd.ctl("del", store._keys.session.decode())
    third = await store.transact(guards={"n": first}, puts={"n": b"3"}, deletes=[])
    assert [each.revision for each in await store.changes(0)] == [first, third]
    await store.close()


async def test_write_that_could_not_log_in_is_reported_as_not_sent(opened, monkeypatch: pytest.MonkeyPatch):
    async def nobody(*_: object) -> None:
        raise EtcdUnreachable("away")

    store = await opened()
    first = await store.transact(guards={}, puts={"n": b"1"}, deletes=[])
    with monkeypatch.context() as patch:
        patch.setattr(etcd_calls, "TOTAL_TIMEOUT", 0.1)
        patch.setattr(store._members, "_user", "fl")
        patch.setattr(EtcdMembers, "_authenticate", nobody)
        with pytest.raises(StoreUnavailable, match="away") as refused:
            await store.transact(guards={}, puts={"n": b"2"}, deletes=[])
        assert not isinstance(refused.value, OutcomeUnknown)
    assert await store.transact(guards={"n": first}, puts={"n": b"2"}, deletes=[]) > first
    await store.close()


@pytest.mark.parametrize(("guards", "documents"), [(123, 126), (120, 200), (100, 3_000), (61, 5_000)])
async def test_guards_that_etcd_compares_need_no_separate_read(
    opened, monkeypatch: pytest.MonkeyPatch, guards: int, documents: int
):
    """Guards that etcd compares need no separate read, whatever other clients write elsewhere."""
    monkeypatch.setattr(EtcdStore, "_check_guards", None)
    names = [f"key/{each:05}" for each in range(documents)]
    guarded = [f"key/{each:05}" for each in range(guards)]

    store = await opened()
    first = await store.transact(
        guards=dict.fromkeys(guarded, NO_REVISION), puts=dict.fromkeys(names[:-3], b""), deletes=[]
    )
    with pytest.raises(Conflict, match=guarded[-1]):
        await store.transact(
            guards={**dict.fromkeys(guarded[:-1], first), guarded[-1]: first + 1}, puts={"x": b""}, deletes=[]
        )
    assert len((await store.range(""))[0]) == documents - 3
    await store.close()


async def test_large_change_is_written_despite_concurrent_writers(
    etcd: EtcdCluster, opened, monkeypatch: pytest.MonkeyPatch
):
    """A change with more guards than etcd compares is aborted by any write since the read of the guards, so its second
    attempt takes precedence, on a machine of any speed."""
    for name in ("etcd.PRECEDENCE_TIMEOUT", "etcd.CONFLICT_TIMEOUT", "etcd_calls.CALL_TIMEOUT"):
        monkeypatch.setattr(f"fairlead.store.{name}", DEADLINE)
    names, changes = [f"key/{each:03}" for each in range(400)], 5
    look, attempts = EtcdStore._check_guards, list[int]()

    async def counted(self, *what: Any) -> int:
        attempts.append(1)
        return await look(self, *what)

    monkeypatch.setattr(EtcdStore, "_check_guards", counted)
    store, *others = [await opened() for _ in range(3)]
    writers = [Writer(each) for each in others]
    writing = [asyncio.create_task(each.write()) for each in writers]
    revision = NO_REVISION
    for number in range(changes):
        for each in writers:
            await each.more(2)
        revision = await store.transact(
            guards=dict.fromkeys(names, revision), puts=dict.fromkeys(names, b"%d" % number), deletes=[]
        )
    assert changes <= len(attempts) <= 2 * changes
    for task in writing:
        task.cancel()
    await asyncio.gather(*writing, return_exceptions=True)
    assert etcd.ctl("get", store._keys.precedence.decode()) == ""
    for each in (store, *others):
        await each.close()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that grows with each read of the precedence key."""
    ask, found = EtcdMembers.call, list[bytes]()

    async def look(self, method, request):
        if method is RANGE and request.key.endswith(b"/precedence"):
            found.append(request.key)
        return await ask(self, method, request)

    monkeypatch.setattr(EtcdMembers, "call", look)
    return found


async def test_server_killed_with_precedence_delays_other_writers_only_briefly(
    etcd: EtcdCluster, opened, monkeypatch: pytest.MonkeyPatch, looks: list[bytes]
):
    """A server that was killed while it had precedence delays others for a bounded time; each read takes a quarter of
    it here."""
    store, other = await opened(), await opened()
    etcd.ctl("put", store._keys.precedence.decode(), "somebody")
    with monkeypatch.context() as patch:
        patch.setattr("fairlead.store.etcd._now", lambda: PRECEDENCE_TIMEOUT * len(looks) / 4)
        await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
    assert len(looks) == 5
    assert etcd.ctl("get", store._keys.precedence.decode()) == ""
    for each in (other, store):
        await each.transact(guards={}, puts={"a": b"2"}, deletes=[])
    await store.close()
    await other.close()


async def test_server_with_precedence_delays_other_writers_until_its_release(
    etcd: EtcdCluster, opened, monkeypatch: pytest.MonkeyPatch, looks: list[bytes]
):
    monkeypatch.setattr("fairlead.store.etcd.PRECEDENCE_TIMEOUT", 600.0)
    store = await opened()
    etcd.ctl("put", store._keys.precedence.decode(), "somebody")
    writing = asyncio.create_task(store.transact(guards={}, puts={"a": b"1"}, deletes=[]))
    await eventually(lambda: len(looks), "looks at the server that goes first", is_enough=lambda found: found > 2)
    assert not writing.done()
    etcd.ctl("del", store._keys.precedence.decode())
    assert await writing == await store.head()
    await store.close()


async def test_large_change_overtaken_at_every_attempt_is_a_conflict(
    etcd: EtcdCluster, opened, monkeypatch: pytest.MonkeyPatch
):
    """A large change that others overtake each time fails with a conflict; such writers are servers of a version
    without the precedence key. Each attempt takes a second here."""
    guards = {f"key/{each:03}": NO_REVISION for each in range(400)}
    look, attempts = EtcdStore._check_guards, count(1)
    now = [0]

    async def look_and_be_overtaken(self, *what: Any) -> int:
        found = await look(self, *what)
        now[0] = next(attempts)
        await self._members.call(TXN, pb.TxnRequest(success=[put(self._keys.head, VERSION)]))
        return found

    store = await opened()
    monkeypatch.setattr("fairlead.store.etcd._now", lambda: now[0])
    monkeypatch.setattr(EtcdStore, "_check_guards", look_and_be_overtaken)
    with pytest.raises(Conflict, match="the store"):
        await store.transact(guards=guards, puts={"x": b""}, deletes=[])
    assert now == [CONFLICT_TIMEOUT + 1]
    assert etcd.ctl("get", store._keys.precedence.decode()) == ""
    await store.close()


async def test_deleted_session_key_is_created_again(etcd: EtcdCluster, opened):
    store = await opened()
    first = await store.transact(guards={}, puts={"n": b"1"}, deletes=[])
    etcd.ctl("del", store._keys.session.decode())
    assert await store.transact(guards={"n": first}, puts={"n": b"2"}, deletes=[]) > first
    await store.close()
    assert etcd.ctl("get", "--prefix", "--keys-only", store._keys.sessions.decode()) == ""


@pytest.mark.parametrize("restarts", [False, True])
async def test_deleted_names_are_kept_as_long_as_the_feed(
    etcd: EtcdCluster, opened, monkeypatch: pytest.MonkeyPatch, restarts: bool
):
    """Deleted names are kept as long as the feed, whether every second change is a deletion or a server starts for each
    change."""
    monkeypatch.setattr("fairlead.store.etcd.MAX_FEED_TRANSACTIONS", 6)
    monkeypatch.setattr("fairlead.store.etcd.DELETIONS_PER_TRIM", 2)

    store = await opened()
    for number in range(20):
        if restarts:
            await store.close()
            store = await opened()
        await store.transact(guards={}, puts={}, deletes=[f"k/{number}"])
        await store.transact(guards={}, puts={"n": b"%d" % number}, deletes=[])
    deleted = await store.deleted()
    assert {f"k/{number}" for number in range(14, 20)} <= deleted
    assert len(deleted) <= 6 + 2
    await store.close()


async def test_export_leaves_the_store_unchanged(etcd: EtcdCluster, opened, monkeypatch: pytest.MonkeyPatch):
    """An export changes nothing in the store, so that two exports of it are equal."""

    store = await opened()
    for number in range(9):
        await store.transact(guards={}, puts={}, deletes=[f"k/{number}"])
    monkeypatch.setattr("fairlead.store.etcd.MAX_FEED_TRANSACTIONS", 6)
    whole = await EtcdBulkStore.open(parse_location(store._where.removeprefix("etcd://")), Access())
    async with whole.snapshot() as picture:
        assert len(picture.deleted_keys) == 9
    await whole.close()
    await store.close()


async def test_compacted_revisions_are_reread(etcd: EtcdCluster, opened):
    """Compacted revisions are re-read, because a watch from the compacted revision itself would silently omit
    deletions."""

    store = await opened()
    revisions = [await store.transact(guards={}, puts={"a": b"1", "b": b"1"}, deletes=[])]
    revisions.append(await store.transact(guards={}, puts={"b": b"2"}, deletes=["a"]))
    revisions.append(await store.transact(guards={}, puts={"b": b"3"}, deletes=[]))
    etcd.ctl("compact", str(revisions[1]))
    for after in (0, revisions[0]):
        with pytest.raises(Compacted):
            await store.changes(after)
        with pytest.raises(Compacted):
            await anext(store.watch(after))
    assert [batch.revision for batch in await store.changes(revisions[1])] == [revisions[2]]
    with pytest.raises(Compacted, match="older"):
        await store.changes(revisions[2] + 1)
    assert await store.deleted() == {"a"}
    await store.close()


async def test_cluster_restore_forces_a_reread_and_delivers_only_later_writes(tmp_path: Path):
    """A restored cluster re-reads: running servers receive later writes, but not the lost ones again."""
    saved = tmp_path / "snapshot"

    with etcd_cluster() as cluster:
        location = parse_location(f"{','.join(cluster.hosts)}/restored")
        store, other = [await EtcdStore.open(location, Access()) for _ in range(2)]
        kept = await store.transact(guards={}, puts={"a": b"kept"}, deletes=[])
        following = other.watch(kept)
        heard = asyncio.ensure_future(anext(following))
        cluster.save(saved)
        for number in range(20):
            lost = await store.transact(guards={}, puts={"a": b"%d" % number}, deletes=[])
        await heard
        while (await anext(following)).revision < lost:
            pass
        await asyncio.to_thread(cluster.restore, saved)
        with pytest.raises(Compacted, match="older"):
            await asyncio.wait_for(anext(following), DEADLINE)
        _, revision = await other.range("")
        assert kept <= revision < lost
        again = other.watch(revision)
        heard = asyncio.ensure_future(anext(again))
        first = await store.transact(guards={}, puts={"a": b"new"}, deletes=[])
        assert dict((await asyncio.wait_for(heard, DEADLINE)).documents) == {"a": b"new"}
        assert [batch.revision for batch in await other.changes(revision)] == [first]
        for each in (again, following):
            await each.aclose()
        for each in (store, other):
            await each.close()


async def test_follower_reads_changes_from_its_watch_stream_only(opened, monkeypatch: pytest.MonkeyPatch):
    store, other = await opened(), await opened()
    first = await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
    following = other.watch(first)
    second = asyncio.ensure_future(anext(following))
    await store.transact(guards={}, puts={"b": b"1"}, deletes=["a"])
    assert dict((await second).documents) == {"a": None, "b": b"1"}
    await eventually_equal(lambda: other._feed.since(second.result().revision), [])
    monkeypatch.setattr("fairlead.store.etcd_feed.DELIVERY_TIMEOUT", DEADLINE)
    monkeypatch.setattr(EtcdStore, "_collect", None)
    third = await store.transact(guards={}, puts={"b": b"2"}, deletes=[])
    assert [batch.revision for batch in await other.changes((await second).revision)] == [third]
    await following.aclose()
    await store.close()
    await other.close()


async def test_delete_omitted_from_a_watch_after_compaction_is_detected(etcd: EtcdCluster, opened):
    """Deletions are detected, although a watch that starts at the compacted revision omits them."""

    store = await opened()
    first = await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
    second = await store.transact(guards={}, puts={"b": b"1"}, deletes=["a"])
    etcd.ctl("compact", str(second))
    heard = stream_transactions(store._members, store._keys, first, DEADLINE)
    assert dict((await anext(heard)).documents) == {"a": None, "b": b"1"}
    await heard.aclose()
    await store.close()


async def test_too_large_write_is_rejected_and_the_store_stays_usable(opened):
    store = await opened()
    first = await store.transact(guards={}, puts={"a": b"x" * 1_300_000}, deletes=[])
    with pytest.raises(TooLarge, match="max-request-bytes"):
        await store.transact(guards={"a": first}, puts={"a": b"x" * 1_600_000}, deletes=[])
    with pytest.raises(Conflict):
        await store.transact(guards={"a": first + 1}, puts={"a": b"1"}, deletes=[])
    await store.transact(guards={"a": first}, puts={"a": b"1"}, deletes=[])
    await store.close()


async def test_large_documents_are_read_in_smaller_pages(opened, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        etcd_calls,
        "OPTIONS",
        tuple((name, 2**20 if "receive" in name else value) for name, value in etcd_calls.OPTIONS),
    )

    store = await opened()
    for each in range(8):
        await store.transact(guards={}, puts={f"k/{each}": b"x" * 400_000}, deletes=[])
    documents, _ = await store.range("")
    assert [each.key for each in documents] == [f"k/{each}" for each in range(8)]
    await store.close()


async def test_keys_of_other_programs_on_the_same_etcd_are_ignored(etcd: EtcdCluster, opened):
    store = await opened()
    first = await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
    etcd.ctl("put", "somebody/else", "1")
    assert (await store.range(""))[1] == first
    assert await store.changes(first) == []
    second = await store.transact(guards={"a": first}, puts={"a": b"2"}, deletes=[])
    assert second > first + 1
    assert [batch.revision for batch in await store.changes(first - 1)] == [first, second]
    assert etcd.ctl("get", "somebody/else") == "somebody/else\n1\n"
    await store.close()


class DelayingProxy:
    """Proxy in front of a member, which delays all data and can hold connections."""

    def __init__(self, member: str, seconds: float = 0.0) -> None:
        self._host, _, self._port = member.partition(":")
        self._seconds = seconds
        self.holds = asyncio.Event()
        """Set when data waits on a held connection."""
        self._passes = self._open()

    @staticmethod
    def _open() -> asyncio.Event:
        passes = asyncio.Event()
        passes.set()
        return passes

    def hold(self) -> asyncio.Event:
        """Hold the existing connections, but not later ones, until the event is set."""
        held, self._passes = self._passes, self._open()
        held.clear()
        return held

    async def connect_to(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(self._host, int(self._port))
        passes = self._passes
        try:
            await asyncio.gather(self._pass(reader, forth, passes), self._pass(back, writer, passes))
        finally:
            forth.close()
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event) -> None:
        while data := await reader.read(2**16):
            if not passes.is_set():
                self.holds.set()
                await passes.wait()
            asyncio.get_running_loop().call_later(self._seconds, writer.write, data)
        writer.close()


def _limited(etcd: EtcdCluster, *users: str) -> None:
    """Create users that may access keys below `ours/` only; an optional password follows a colon."""
    etcd.ctl("user", "add", "root:s3cret-of-root")
    etcd.ctl("user", "grant-role", "root", "root")
    etcd.ctl("role", "add", "fl")
    etcd.ctl("role", "grant-permission", "fl", "readwrite", "--prefix=true", "ours/")
    for user in users:
        name, colon, _ = user.partition(":")
        etcd.ctl("user", "add", user, *([] if colon else ["--no-password"]))
        etcd.ctl("user", "grant-role", name, "fl")
    etcd.ctl("auth", "enable")


async def test_replaced_client_certificate_is_used_after_a_renewal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    authority = Authority()
    names = ("member", "root", "first", "second")
    issued = {name: authority.issue(name, "127.0.0.1") for name in names}
    for name, one in issued.items():
        (tmp_path / name).write_text(one.pem)
        (tmp_path / f"{name}.key").write_text(key_pem(one.key))
    (tmp_path / "ca").write_text(authority.pem)
    options = (f"--cert-file={tmp_path}/member", f"--key-file={tmp_path}/member.key", "--client-cert-auth")
    tls = (f"--cacert={tmp_path}/ca", f"--cert={tmp_path}/root", f"--key={tmp_path}/root.key")

    def give(name: str) -> None:
        (tmp_path / "shown").write_text(issued[name].pem)
        (tmp_path / "shown.key").write_text(key_pem(issued[name].key))

    with etcd_cluster(*options, f"--trusted-ca-file={tmp_path}/ca", tls=tls) as etcd:
        _limited(etcd, "first", "second")
        give("first")
        access = Access(ca=f"{tmp_path}/ca", certificate=f"{tmp_path}/shown", key=f"{tmp_path}/shown.key")
        store = await EtcdStore.open(parse_location(f"{','.join(etcd.hosts)}/ours"), access)
        following = store.watch(await store.transact(guards={}, puts={"a": b"1"}, deletes=[]))
        second = asyncio.ensure_future(anext(following))
        (tmp_path / "shown").write_text(issued["second"].pem)  # without its key
        with pytest.raises(StoreUnavailable, match="certificate"):
            await store.renew()
        await store.transact(guards={}, puts={"a": b"2"}, deletes=[])
        assert dict((await second).documents) == {"a": b"2"}
        third = asyncio.ensure_future(anext(following))
        await eventually_equal(lambda: store._feed.since(second.result().revision), [])
        monkeypatch.setattr("fairlead.store.etcd_feed.DELIVERY_TIMEOUT", DEADLINE)
        stream = store._feed._task
        give("second")
        await store.renew()
        await asyncio.to_thread(etcd.ctl, "user", "delete", "first")
        await store.transact(guards={}, puts={"a": b"3"}, deletes=[])
        assert dict((await third).documents) == {"a": b"3"}
        assert store._feed._task is stream
        await following.aclose()
        await store.close()


async def test_changed_password_is_used_after_a_renewal_and_no_write_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A changed password is used after a renewal, and a write in progress is answered on its own connection."""
    for name in ("CALL_TIMEOUT", "MAX_CALL_SECONDS"):
        monkeypatch.setattr(etcd_calls, name, DEADLINE)
    secret, lost = tmp_path / "password", list[str]()
    unreached = EtcdMembers._switch_member
    monkeypatch.setattr(
        EtcdMembers, "_switch_member", lambda self, *what: lost.append(what[1]) or unreached(self, *what)
    )
    with etcd_cluster() as etcd:
        _limited(etcd, "fl:s3cret-of-old")
        between = DelayingProxy(etcd.hosts[0])
        async with await asyncio.start_server(between.connect_to, "127.0.0.1", 0) as server:
            location = parse_location(f"127.0.0.1:{server.sockets[0].getsockname()[1]}/ours")
            secret.write_text("s3cret-of-old")
            store = await EtcdStore.open(location, Access(user="fl", password_file=str(secret)))
            first = await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
            secret.write_text("s3cret-of-new")
            with pytest.raises(StoreUnavailable, match="authentication failed"):
                await store.renew()
            second = await store.transact(guards={"a": first}, puts={"a": b"2"}, deletes=[])
            etcd.ctl("--user=root:s3cret-of-root", "user", "passwd", "--interactive=false", "fl", given="s3cret-of-new")
            with pytest.raises(StoreUnavailable, match="authentication failed"):
                await store.transact(guards={"a": second}, puts={"a": b"3"}, deletes=[])
            await store.renew()
            third = await store.transact(guards={"a": second}, puts={"a": b"3"}, deletes=[])
            log_in, writing = EtcdMembers._authenticate, list[asyncio.Task[int]]()

            async def write_meanwhile(self, way) -> None:
                await log_in(self, way)
                writing.append(asyncio.create_task(store.transact(guards={"a": third}, puts={"a": b"4"}, deletes=[])))
                await between.holds.wait()

            monkeypatch.setattr(EtcdMembers, "_authenticate", write_meanwhile)
            passes = between.hold()
            await store.renew()
            assert not writing[0].done()
            passes.set()
            fourth = await writing[0]
            assert [batch.revision for batch in await store.changes(third)] == [fourth]
            assert not lost
            await store.close()


@pytest.mark.virtual_clock
async def test_connections_before_a_renewal_close_after_the_longest_call():
    members = EtcdMembers(parse_location("127.0.0.1:1/ours"), Access())
    before = members._connections.channels[0]
    await members.renew()
    (closing,) = members._retired.values()
    await closing
    assert asyncio.get_running_loop().time() == MAX_CALL_SECONDS + RETRY_INTERVAL
    assert MAX_CALL_SECONDS >= 2 * etcd_calls.CALL_TIMEOUT  # one call to log in, and one with the token
    assert not members._retired
    assert before.get_state() is grpc.ChannelConnectivity.SHUTDOWN
    assert members._connections.channels[0].get_state() is grpc.ChannelConnectivity.IDLE
    await members.close()


async def test_etcd_with_tls_needs_client_certificate_and_trusted_ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ours, theirs = Authority(), Authority("theirs")
    member, client = ours.issue("member", "127.0.0.1"), ours.issue("fl")
    files = {"ca": ours.pem, "theirs": theirs.pem, "member": member.pem, "client": client.pem}
    files |= {"member.key": key_pem(member.key), "client.key": key_pem(client.key)}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    options = (f"--cert-file={tmp_path}/member", f"--key-file={tmp_path}/member.key", "--client-cert-auth")
    tls = (f"--cacert={tmp_path}/ca", f"--cert={tmp_path}/client", f"--key={tmp_path}/client.key")
    with etcd_cluster(*options, f"--trusted-ca-file={tmp_path}/ca", tls=tls) as etcd:
        location = parse_location(f"{','.join(etcd.hosts)}/ours")

        shown = {"certificate": f"{tmp_path}/client", "key": f"{tmp_path}/client.key"}
        store = await EtcdStore.open(location, Access(ca=f"{tmp_path}/ca", **shown))
        await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
        await store.close()
        monkeypatch.setattr(etcd_calls, "TOTAL_TIMEOUT", 1.0)
        for access in (Access(), Access(ca=f"{tmp_path}/ca"), Access(ca=f"{tmp_path}/theirs", **shown)):
            with pytest.raises(StoreUnavailable):
                await EtcdStore.open(location, access)
        with pytest.raises(StoreUnavailable, match="No such file"):
            await EtcdStore.open(location, Access(ca=f"{tmp_path}/nothing"))


async def test_etcd_user_is_limited_to_its_password_and_prefix(tmp_path: Path):
    secret = tmp_path / "password"
    secret.write_text("s3cret-of-ours\n")
    with etcd_cluster() as etcd:
        _limited(etcd, "fl:s3cret-of-ours")
        hosts = ",".join(etcd.hosts)

        access = Access(user="fl", password_file=str(secret))
        store = await EtcdStore.open(parse_location(f"{hosts}/ours"), access)
        first = await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
        store._members._connections.token = "of yesterday"
        assert [batch.revision for batch in await store.changes(0)] == [first]
        store._members._connections.token = "of yesterday"
        await store.transact(guards={"a": first}, puts={"a": b"2"}, deletes=[])
        await store.close()
        with pytest.raises(StoreUnavailable, match="permission denied"):
            await EtcdStore.open(parse_location(f"{hosts}/theirs"), access)
        secret.write_text("s3cret-of-nobody")
        with pytest.raises(StoreUnavailable, match="authentication failed") as refused:
            await EtcdStore.open(parse_location(f"{hosts}/ours"), access)
        assert "s3cret" not in str(refused.value)


async def test_etcd_member_behind_a_slow_connection_is_usable(etcd: EtcdCluster):
    """A member behind a slow connection is usable, because the hosts of members may be overloaded."""

    way = await asyncio.start_server(DelayingProxy(etcd.hosts[0], 0.3).connect_to, "127.0.0.1", 0)
    async with way:
        port = way.sockets[0].getsockname()[1]
        store = await EtcdStore.open(parse_location(f"127.0.0.1:{port}/slow{next(_NUMBERS)}"), Access())
        assert await store.transact(guards={}, puts={"a": b"1"}, deletes=[]) == await store.head()
        await store.close()


async def test_stream_is_abandoned_when_a_change_exceeds_the_size_limit(opened, monkeypatch: pytest.MonkeyPatch):
    """The stream gives up when more is written than one change may contain, as by a copy that writes the head last."""
    monkeypatch.setattr("fairlead.store.etcd_feed.MAX_TRANSACTION_BYTES", 50_000)

    store, other = await opened(), await opened()
    first = await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
    following = other.watch(first)
    waiting = asyncio.ensure_future(anext(following))
    whole = await EtcdBulkStore.open(parse_location(store._where.removeprefix("etcd://")), Access())
    await whole.set_fence(SEAL, None)
    filled = [Document(key=f"k/{each}", revision=1, value=b"x" * 10_000) for each in range(20)]
    await whole.put(SEAL, filled)
    with pytest.raises(Compacted, match="more data than one change"):
        await anext(stream_transactions(store._members, store._keys, first, DEADLINE))
    await eventually_equal(lambda: other._feed.since(first), None)  # the stream gave up
    await assert_holds_on_loop(0.3, waiting.done, "nothing is told of what has no end", holds=lambda found: not found)
    assert await other.changes(first) == []
    assert not waiting.done()
    await whole.finish(SEAL, 0)
    assert len((await waiting).documents) == 20  # from a read, not from the stream
    waiting = asyncio.ensure_future(anext(following))
    last = await store.transact(guards={}, puts={"a": b"2"}, deletes=[])
    assert ((await waiting).revision, dict((await waiting).documents)) == (last, {"a": b"2"})
    await following.aclose()
    for each in (whole, store, other):
        await each.close()


async def test_large_change_is_delivered_as_one_batch(opened, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.store.etcd_feed.MAX_TRANSACTION_DOCUMENTS", 50)

    store, other = await opened(), await opened()
    following = other.watch(await store.transact(guards={}, puts={"a": b"1"}, deletes=[]))
    waiting = asyncio.ensure_future(anext(following))
    puts = dict.fromkeys(map(str, range(60)), b"1")
    last = await store.transact(guards={}, puts=puts, deletes=[])
    assert ((await waiting).revision, dict((await waiting).documents)) == (last, puts)
    await following.aclose()
    await store.close()
    await other.close()


async def test_follower_keeps_its_stream_after_a_compaction_by_others(etcd: EtcdCluster, opened):
    """A server follows its stream after a compaction by others, although the history starts after the last change."""

    store, other = await opened(), await opened()
    first = await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
    for _ in range(3):
        etcd.ctl("put", "somebody/else", "1")
    etcd.ctl("compact", str(first + 2))
    following = other.watch(await other.head())
    waiting = asyncio.ensure_future(anext(following))
    await eventually_equal(lambda: other._feed.since(first), [])
    await assert_holds_on_loop(
        0.3, lambda: other._feed.since(first), "the stream goes on", holds=lambda found: found == []
    )
    last = await store.transact(guards={}, puts={"a": b"2"}, deletes=[])
    assert (await waiting).revision == last
    await following.aclose()
    await store.close()
    await other.close()


class _FailsWhenCancelled(EtcdMembers):
    """Members whose call fails once at the moment of its cancellation, as in gRPC."""

    failed = False

    async def watch(self, create: Any, patience: float | None = None) -> AsyncGenerator[Any, None]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self.failed:
                raise
            self.failed = True
            raise EtcdUnreachable("no leader") from None
        yield create


async def test_closing_feed_ends_although_its_call_failed(etcd: EtcdCluster):
    location = parse_location(f"{','.join(etcd.hosts)}/faults{next(_NUMBERS)}")
    feed = Feed(_FailsWhenCancelled(location, Access()), EtcdKeys(location.prefix, "session"))
    feed.start()
    await eventually_equal(lambda: feed.since(0), [])  # the stream is established
    await asyncio.wait_for(feed.close(), DEADLINE)


async def test_reader_of_a_stream_without_changes_does_not_wait(etcd: EtcdCluster, opened):
    """A reader of a stream without changes does not wait, even if it called before the stream had a revision."""
    store = await opened()
    last = await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
    feed = Feed(store._members, store._keys)
    feed.start()
    told = asyncio.ensure_future(feed.wait_after(last - 1))
    await eventually_equal(lambda: feed.since(last), [])
    await run_ready_tasks()
    assert told.done(), "nobody writes, so nobody would wake it"
    assert await feed.read_up_to(last, last) == []
    await feed.reset()  # the next stream has the same position
    told = asyncio.ensure_future(feed.wait_after(last - 1))
    await eventually_equal(lambda: feed.since(last), [])
    await run_ready_tasks()
    assert told.done()
    await feed.close()
    await store.close()

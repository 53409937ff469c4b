"""The store in an etcd whose members die, stand still and forget, and that refuses."""

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from fairlead.store import etcd_calls
from fairlead.store.etcd import EtcdStore
from fairlead.store.etcd_access import Access, parse_location
from fairlead.store.etcd_calls import TXN, Members, Unreached
from fairlead.store.etcd_feed import transactions
from fairlead.store.interface import (
    ABSENT,
    Compacted,
    Conflict,
    OutcomeUnknown,
    StoreUnavailable,
    TooLarge,
)
from harness.certificates import Authority, key_pem
from harness.etcd import Etcd, started

_NUMBERS = count()


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with started() as cluster:
        yield cluster


@pytest.fixture
def opened(etcd: Etcd) -> Callable[[], Awaitable[EtcdStore]]:
    location = parse_location(f"{','.join(etcd.hosts)}/faults{next(_NUMBERS)}")
    return lambda: EtcdStore.open(location, Access())


class Writer:
    """Writes one number after the other, without guards: what was done twice would be seen in the feed."""

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


def test_nothing_is_lost_or_done_twice_while_members_die_and_stand_still(etcd: Etcd, opened):
    async def run() -> None:
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
        await store.transact(guards={}, puts={"n": b"0"}, deletes=[])  # whatever was open is settled
        found = await _numbers(store)
        assert set(found.values()) == {1}
        assert set(writer.acknowledged) <= set(found)
        await asyncio.wait_for(tasks[1], 30)
        assert seen == list(found)
        await store.close()
        await other.close()

    asyncio.run(run())


def test_without_quorum_a_change_ends_and_is_settled_later(etcd: Etcd, opened, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(etcd_calls, "PATIENCE", 1.0)

    async def run() -> None:
        store = await opened()
        await store.transact(guards={}, puts={"n": b"1"}, deletes=[])
        leader = etcd.leader()
        still = [member for member in range(3) if member != leader]
        for member in still:
            etcd.signal(member, signal.SIGSTOP)
        try:
            with pytest.raises(OutcomeUnknown, match="not known"):
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

    asyncio.run(run())


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("guarded", [True, False])
def test_a_lost_answer_is_found_out(opened, monkeypatch: pytest.MonkeyPatch, done: bool, guarded: bool):
    ask_once, lost = Members.ask_once, list[bool]()

    async def lose(self, method, request):
        if method is TXN and any(each.WhichOneof("request") == "put" for each in request.success) and len(lost) < 2:
            lost.append(True)  # that of the transaction, and that of the question what became of it
            if done or len(lost) == 2:
                await ask_once(self, method, request)
            raise Unreached("the answer was lost")
        return await ask_once(self, method, request)

    async def run() -> None:
        store = await opened()
        monkeypatch.setattr(Members, "ask_once", lose)
        revision = await store.transact(guards={"n": ABSENT} if guarded else {}, puts={"n": b"1"}, deletes=[])
        assert len(lost) == 2
        assert [batch.revision for batch in await store.changes(0)] == [revision]
        assert await store.transact(guards={"n": revision}, puts={"n": b"2"}, deletes=[]) > revision
        await store.close()

    asyncio.run(run())


def test_a_session_that_somebody_took_away_is_begun_again(etcd: Etcd, opened):
    async def run() -> None:
        store = await opened()
        first = await store.transact(guards={}, puts={"n": b"1"}, deletes=[])
        etcd.ctl("del", store._keys.session.decode())
        assert await store.transact(guards={"n": first}, puts={"n": b"2"}, deletes=[]) > first
        await store.close()
        assert etcd.ctl("get", "--prefix", "--keys-only", store._keys.sessions.decode()) == ""

    asyncio.run(run())


def test_what_was_compacted_is_read_again(etcd: Etcd, opened):
    """At the compacted revision itself etcd would leave out deletes and say nothing."""

    async def run() -> None:
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

    asyncio.run(run())


def test_a_server_that_follows_asks_no_member_for_what_came_on_its_stream(opened, monkeypatch: pytest.MonkeyPatch):
    async def run() -> None:
        store, other = await opened(), await opened()
        first = await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
        following = other.watch(first)
        second = asyncio.ensure_future(anext(following))
        await store.transact(guards={}, puts={"b": b"1"}, deletes=["a"])
        assert dict((await second).documents) == {"a": None, "b": b"1"}
        monkeypatch.setattr(EtcdStore, "_collect", None)
        third = await store.transact(guards={}, puts={"b": b"2"}, deletes=[])
        assert [batch.revision for batch in await other.changes((await second).revision)] == [third]
        await following.aclose()
        await store.close()
        await other.close()

    asyncio.run(run())


def test_a_delete_that_etcd_leaves_out_of_a_watch_is_known_all_the_same(etcd: Etcd, opened):
    """One that begins at the very revision that is compacted."""

    async def run() -> None:
        store = await opened()
        first = await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
        second = await store.transact(guards={}, puts={"b": b"1"}, deletes=["a"])
        etcd.ctl("compact", str(second))
        heard = transactions(store._members, store._keys, first, 5.0)
        assert dict((await anext(heard)).documents) == {"a": None, "b": b"1"}
        await heard.aclose()
        await store.close()

    asyncio.run(run())


def test_what_is_too_large_is_refused_and_the_store_goes_on(opened):
    async def run() -> None:
        store = await opened()
        first = await store.transact(guards={}, puts={"a": b"x" * 1_300_000}, deletes=[])
        with pytest.raises(TooLarge, match="max-request-bytes"):
            await store.transact(guards={"a": first}, puts={"a": b"x" * 1_600_000}, deletes=[])
        with pytest.raises(Conflict):
            await store.transact(guards={"a": first + 1}, puts={"a": b"1"}, deletes=[])
        await store.transact(guards={"a": first}, puts={"a": b"1"}, deletes=[])
        await store.close()

    asyncio.run(run())


def test_large_documents_are_read_in_smaller_pages(opened, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        etcd_calls,
        "OPTIONS",
        tuple((name, 2**20 if "receive" in name else value) for name, value in etcd_calls.OPTIONS),
    )

    async def run() -> None:
        store = await opened()
        for each in range(8):
            await store.transact(guards={}, puts={f"k/{each}": b"x" * 400_000}, deletes=[])
        documents, _ = await store.range("")
        assert [each.key for each in documents] == [f"k/{each}" for each in range(8)]
        await store.close()

    asyncio.run(run())


def test_others_on_the_same_etcd_are_never_seen_nor_touched(etcd: Etcd, opened):
    async def run() -> None:
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

    asyncio.run(run())


def test_members_with_tls_ask_for_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(etcd_calls, "PATIENCE", 1.0)
    ours, theirs = Authority(), Authority("theirs")
    member, client = ours.issue("member", "127.0.0.1"), ours.issue("fl")
    files = {"ca": ours.pem, "theirs": theirs.pem, "member": member.pem, "client": client.pem}
    files |= {"member.key": key_pem(member.key), "client.key": key_pem(client.key)}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    options = (f"--cert-file={tmp_path}/member", f"--key-file={tmp_path}/member.key", "--client-cert-auth")
    tls = (f"--cacert={tmp_path}/ca", f"--cert={tmp_path}/client", f"--key={tmp_path}/client.key")
    with started(*options, f"--trusted-ca-file={tmp_path}/ca", tls=tls) as etcd:
        location = parse_location(f"{','.join(etcd.hosts)}/ours")

        async def run() -> None:
            shown = {"certificate": f"{tmp_path}/client", "key": f"{tmp_path}/client.key"}
            store = await EtcdStore.open(location, Access(ca=f"{tmp_path}/ca", **shown))
            await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
            await store.close()
            for access in (Access(), Access(ca=f"{tmp_path}/ca"), Access(ca=f"{tmp_path}/theirs", **shown)):
                with pytest.raises(StoreUnavailable):
                    await EtcdStore.open(location, access)
            with pytest.raises(StoreUnavailable, match="No such file"):
                await EtcdStore.open(location, Access(ca=f"{tmp_path}/nothing"))

        asyncio.run(run())


def test_a_user_has_a_password_and_one_prefix(tmp_path: Path):
    secret = tmp_path / "password"
    secret.write_text("s3cret-of-ours\n")
    with started() as etcd:
        for line in (
            "user add root:s3cret-of-root",
            "user add fl:s3cret-of-ours",
            "role add fl",
            "user grant-role fl fl",
        ):
            etcd.ctl(*line.split())
        etcd.ctl("user", "grant-role", "root", "root")
        etcd.ctl("role", "grant-permission", "fl", "readwrite", "--prefix=true", "ours/")
        etcd.ctl("auth", "enable")
        hosts = ",".join(etcd.hosts)

        async def run() -> None:
            access = Access(user="fl", password_file=str(secret))
            store = await EtcdStore.open(parse_location(f"{hosts}/ours"), access)
            first = await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
            store._members._token = "of yesterday"
            assert [batch.revision for batch in await store.changes(0)] == [first]
            store._members._token = "of yesterday"
            await store.transact(guards={"a": first}, puts={"a": b"2"}, deletes=[])
            await store.close()
            with pytest.raises(StoreUnavailable, match="permission denied"):
                await EtcdStore.open(parse_location(f"{hosts}/theirs"), access)
            secret.write_text("s3cret-of-nobody")
            with pytest.raises(StoreUnavailable, match="authentication failed") as refused:
                await EtcdStore.open(parse_location(f"{hosts}/ours"), access)
            assert "s3cret" not in str(refused.value)

        asyncio.run(run())

"""The SQLite store, and the model on top of it."""

import asyncio
import sqlite3
import stat
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from fairlead.model.documents.network import Network
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from fairlead.store.codec import decode, encode
from fairlead.store.interface import Compacted, Conflict, RetriesExhausted, StoreUnavailable
from fairlead.store.model import MAX_ATTEMPTS, REQUEST_PROJECT, WRITE_TIMEOUT, Model
from fairlead.store.sqlite import MAX_FEED_BYTES, MAX_FREE_BYTES, MAX_WAL_BYTES, SCHEMA, SqliteStore
from fairlead.store.write_conflicts import MAX_PAUSE, backoff
from harness.cases import DOCUMENTS, insert_document
from harness.waiting import DEADLINE


@pytest.mark.parametrize("key", sorted(DOCUMENTS))
def test_every_document_survives_encoding(key: str):
    assert decode(Owner.parse(key), encode(DOCUMENTS[key])) == DOCUMENTS[key]


async def test_feed_that_starts_too_late_raises_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.store.sqlite.MAX_FEED_TRANSACTIONS", 2)

    store = await SqliteStore.open(tmp_path / "s.db")
    for _ in range(4):
        await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
    with pytest.raises(Compacted):
        await anext(store.watch(0))
    await store.close()


async def test_file_that_is_no_database_is_a_clear_error(tmp_path: Path):
    (tmp_path / "s.db").write_bytes(b"this is not a database, and long enough to be looked at as one" * 20)
    with pytest.raises(StoreUnavailable, match="not a database"):
        await SqliteStore.open(tmp_path / "s.db")


def test_conflict_backoff_grows_within_a_bound():
    longest = [max(backoff(lost) for _ in range(200)) for lost in (*range(MAX_ATTEMPTS), 5000)]
    assert 0 < longest[0] < 0.001 < longest[3] < 0.008 < longest[10] < MAX_PAUSE
    assert max(longest) <= MAX_PAUSE


@pytest.mark.virtual_clock
@pytest.mark.parametrize(("patience", "tries"), [(60.0, MAX_ATTEMPTS), (0.0, 1)])
async def test_write_with_repeated_conflicts_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: float, tries: int
):
    tried = []

    class OvertakenStore(SqliteStore):
        async def transact(self, **what):
            tried.append(what)
            raise Conflict("the store")

    store = await OvertakenStore.open(tmp_path / "s.db")
    model = await Model.load(store, lambda *_: None)
    monkeypatch.setattr("fairlead.store.model.WRITE_TIMEOUT", patience)
    with pytest.raises(RetriesExhausted, match=f"{tries} write conflicts in a row"):
        await model._write_in_turn(partial(insert_document, "net"))
    await store.close()
    assert len(tried) == tries


@pytest.mark.parametrize("fails", [0, 1, 3])
async def test_server_that_falls_behind_the_feed_rereads_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int
):
    """The server reads page by page, and restarts from the first page if the store fails."""
    monkeypatch.setattr("fairlead.store.sqlite.MAX_FEED_TRANSACTIONS", 3)
    monkeypatch.setattr("fairlead.store.full_read.PAGE_SIZE", 3)
    network = DOCUMENTS["network/net1"]

    store = await SqliteStore.open(tmp_path / "s.db")
    ahead, behind = [await Model.load(store, lambda *_: None) for _ in range(2)]
    await ahead.write(lambda _: Changes(puts=(replace(network, id="gone"), replace(network, id="kept"))))
    await behind.catch_up()
    for number in range(8):
        await ahead.write(lambda _, number=number: Changes(puts=(replace(network, id=f"n{number}"),)))
    await ahead.write(lambda _: Changes(deletes=(Owner(Kind.NETWORK, "gone"),)))
    seen: list[Owner] = []
    behind.subscribe(seen.extend)
    if fails:
        with monkeypatch.context() as patch:
            patch.setattr(store, "range", failing(store.range, fails))
            with pytest.raises(StoreUnavailable):
                await behind.catch_up()
    after = await behind.write(lambda _: Changes(puts=(replace(network, id="mine"),)))
    assert set(after.networks) == {"kept", "mine", *(f"n{number}" for number in range(8))}
    await ahead.catch_up()
    assert (after.networks, after.generations) == (ahead.snapshot.networks, ahead.snapshot.generations)
    assert {owner.id for owner in seen} == {"gone", "mine", *(f"n{number}" for number in range(8))}
    await store.close()


def failing(read: Callable[..., Awaitable[object]], at: int) -> Callable[..., Awaitable[object]]:
    """Return the function, which raises from this call on."""
    times = count(1)

    async def called(*what: object, **more: object) -> object:
        if next(times) >= at:
            raise StoreUnavailable("away")
        return await read(*what, **more)

    return called


class BlockedStore(SqliteStore):
    """Store whose disk blocks until the test releases it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.moves = asyncio.Event()

    async def transact(self, **what):
        await self.moves.wait()
        return await super().transact(**what)


@pytest.mark.virtual_clock
async def test_writers_time_out_while_the_disk_hangs(tmp_path: Path):
    loop = asyncio.get_running_loop()
    store = await BlockedStore.open(tmp_path / "s.db")
    model = await Model.load(store, lambda snapshot, owner: None)
    first = asyncio.create_task(model.write(partial(insert_document, "first")))
    others = (model.write(partial(insert_document, f"other{number}")) for number in range(9))
    refused = await asyncio.gather(*others, return_exceptions=True)
    assert [type(each) for each in refused] == [StoreUnavailable] * 9
    assert loop.time() == WRITE_TIMEOUT
    store.moves.set()
    await first
    await model.write(partial(insert_document, "later"))
    assert set(model.snapshot.networks) == {"first", "later"}
    await store.close()


async def test_lock_held_by_another_process_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.store.sqlite.LOCK_TIMEOUT", 0.05)

    store = await SqliteStore.open(tmp_path / "s.db")
    with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
        assert await store.range("") == ([], 0)
        other.execute("ROLLBACK")
    assert await store.transact(guards={}, puts={"a": b"1"}, deletes=[]) == 1
    await store.close()


async def test_start_writes_nothing_to_an_existing_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A full disk must not prevent a server from starting."""
    monkeypatch.setattr("fairlead.store.sqlite.LOCK_TIMEOUT", 600.0)

    store = await SqliteStore.open(tmp_path / "s.db")
    await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
    with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # a writer would wait for 600 s now
        second = await asyncio.wait_for(SqliteStore.open(tmp_path / "s.db"), DEADLINE)
        assert (await second.range(""))[1] == 1
        await second.close()
    await store.close()


async def test_wal_is_bounded_under_readers_and_shrinks_after_a_long_read(tmp_path: Path):
    log = tmp_path / "s.db-wal"

    async def write(store: SqliteStore, count: int) -> None:
        for _ in range(count):
            await store.transact(guards={}, puts={"a": b"x" * 100_000}, deletes=[])

    store, other = await SqliteStore.open(tmp_path / "s.db"), await SqliteStore.open(tmp_path / "s.db")
    for _ in range(20):
        await asyncio.gather(write(store, 5), *(other.range("") for _ in range(5)))
    assert log.stat().st_size < 3 * MAX_WAL_BYTES
    with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM document").fetchall()
        await write(store, 100)
        assert log.stat().st_size > 3 * MAX_WAL_BYTES
    await write(store, 30)
    assert log.stat().st_size <= 2 * MAX_WAL_BYTES
    await store.close()
    await other.close()


async def test_start_includes_writes_made_during_the_full_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.store.full_read.PAGE_SIZE", 2)
    network = DOCUMENTS["network/net1"]

    class Meddled(SqliteStore):
        """Store in which, after the first page, another server deletes and changes documents already read, and adds
        others."""

        async def range(self, prefix: str, *, after: str = "", limit: int | None = None):
            found = await super().range(prefix, after=after, limit=limit)
            if not after:
                await other.write(
                    lambda _: Changes(
                        puts=tuple(replace(network, id=name, mtu=1300) for name in ("a1", "b", "d")),
                        deletes=(Owner(Kind.NETWORK, "a"),),
                    )
                )
            return found

    store = await SqliteStore.open(tmp_path / "s.db")
    other = await Model.load(store, lambda *_: None)
    await other.write(lambda _: Changes(puts=tuple(replace(network, id=name) for name in "abcde")))
    late = await Meddled.open(tmp_path / "s.db")
    started = await Model.load(late, lambda *_: None)
    assert (started.snapshot.networks, started.snapshot.generations, started.snapshot.revision) == (
        other.snapshot.networks,
        other.snapshot.generations,
        other.snapshot.revision,
    )
    await late.close()
    await store.close()


@pytest.mark.parametrize("theirs", [None, 1300])
@pytest.mark.parametrize("feed", [1, 100])
async def test_write_returns_its_own_result_despite_later_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: int | None, feed: int
):
    """A write returns its own result, although another server wrote before, and deletes or changes the document before
    the feed is read."""
    monkeypatch.setattr("fairlead.store.sqlite.MAX_FEED_TRANSACTIONS", feed)
    network = replace(DOCUMENTS["network/net1"], id="mine")
    owner = Owner(Kind.NETWORK, "mine")

    class Overtaken(SqliteStore):
        async def transact(self, **what):
            await other.write(partial(insert_document, "theirs"))
            revision = await super().transact(**what)
            await other.catch_up()
            change = Changes(deletes=(owner,)) if theirs is None else Changes(puts=(replace(network, mtu=theirs),))
            await other.write(lambda _: change)
            return revision

    store = await SqliteStore.open(tmp_path / "s.db")
    other = await Model.load(store, lambda *_: None)
    late = await Overtaken.open(tmp_path / "s.db")
    model = await Model.load(late, lambda *_: None)
    written = await model.write(lambda _: Changes(puts=(network,)))
    assert written.networks["mine"] == network
    assert model.snapshot.networks.get("mine") == other.snapshot.networks.get("mine")
    await late.close()
    await store.close()


LARGE = 400 * 2**10


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*"))


@pytest.mark.slow
async def test_feed_is_bounded_in_bytes_and_a_late_follower_rereads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One document of 400 KiB is written 100 times: the file stays bounded, and deleted names are kept."""
    feed_bytes = 10 * 2**20
    monkeypatch.setattr("fairlead.store.sqlite.MAX_FEED_BYTES", feed_bytes)
    path = tmp_path / "s.db"
    store = await SqliteStore.open(path)
    await store.transact(guards={}, puts={"small": b"1"}, deletes=[])
    await store.transact(guards={}, puts={}, deletes=["small"])
    for number in range(100):
        last = await store.transact(guards={}, puts={"large": bytes([number]) * LARGE}, deletes=[])
    assert _size(path) < feed_bytes + 4 * MAX_WAL_BYTES < 100 * LARGE
    with pytest.raises(Compacted):
        await store.changes(2)
    batches = await store.changes(last - 20)
    assert [batch.revision for batch in batches] == list(range(last - 19, last + 1))
    assert await store.deleted() == {"small"}
    await store.close()


async def test_large_feed_of_an_earlier_version_is_trimmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A large feed of an earlier version is trimmed and its space freed; all sizes are a sixteenth of the real ones."""
    for name, bound in (("MAX_FEED_BYTES", MAX_FEED_BYTES), ("MAX_FREE_BYTES", MAX_FREE_BYTES)):
        monkeypatch.setattr(f"fairlead.store.sqlite.{name}", bound // 16)
    path, size = tmp_path / "s.db", LARGE // 16
    with closing(sqlite3.connect(path)) as raw:
        raw.executescript(SCHEMA)
        rows = [(number, "large", b"x" * size) for number in range(1, 200)]
        raw.executemany("INSERT INTO change VALUES (?, ?, ?)", [*rows, (200, "gone", None)])
        raw.execute("UPDATE head SET revision = 200")
        raw.execute("PRAGMA user_version=1")
        raw.commit()

    store = await SqliteStore.open(path)
    assert await store.deleted() == {"gone"}
    for _ in range(10):
        await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
    assert len(await store.changes(200)) == 10
    await store.close()
    before = _size(path)
    assert before > 190 * size
    store = await SqliteStore.open(path)
    assert _size(path) < before / 2
    assert len(await store.changes(200)) == 10
    await store.close()


async def test_deletion_by_an_earlier_version_is_detected(tmp_path: Path):
    path = tmp_path / "s.db"

    store = await SqliteStore.open(path)
    await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
    await store.close()
    with closing(sqlite3.connect(path)) as raw:  # a version without the newer tables
        raw.execute("DELETE FROM document WHERE key = 'a'")
        raw.execute("INSERT INTO change VALUES (2, 'a', NULL)")
        raw.execute("UPDATE head SET revision = 2")
        raw.commit()
    store = await SqliteStore.open(path)
    assert await store.deleted() == {"a"}
    await store.close()


async def test_world_readable_store_file_is_made_private(tmp_path: Path):
    path = tmp_path / "s.db"
    await (await SqliteStore.open(path)).close()
    path.chmod(0o644)
    store = await SqliteStore.open(path)
    await store.transact(guards={}, puts={"a": b"1"}, deletes=[])
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}
    await store.close()


async def test_busy_project_does_not_delay_the_writes_of_another(tmp_path: Path):
    store = await SqliteStore.open(tmp_path / "s.db")
    model = await Model.load(store, lambda *_: None)
    order: list[str] = []

    async def write(project: str, number: int) -> None:
        REQUEST_PROJECT.set(project)
        network = Network(id=f"{project}{number}", project_id=project, name="n", created_at=datetime.now(UTC), mtu=1500)
        await model.write(lambda _: Changes(puts=(network,)))
        order.append(project)

    crowd = [asyncio.create_task(write("many", number)) for number in range(100)]
    await asyncio.sleep(0)
    await asyncio.create_task(write("one", 0))
    await asyncio.gather(*crowd)
    assert order.index("one") <= 3
    await store.close()

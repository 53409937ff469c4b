"""Migration of a deployment from a file to a real etcd of three members, and back: atomic."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from fairlead.model.documents.owner import Kind, Owner
from fairlead.store.bulk import BulkOperationRejected
from fairlead.store.copy import CopyComparison, CopyDiffers, CopyJob, copy
from fairlead.store.interface import Compacted, Conflict, Store, StoreUnavailable
from fairlead.store.migration_fence import StoreFenced
from fairlead.store.model import Model
from fairlead.store.opening import create_bulk_store, find_bulk_store, open_store
from harness.etcd import EtcdCluster, etcd_cluster
from harness.populated_stores import DELETED_CLAIM, mtu, populate, run_with_store, write_something
from harness.waiting import eventually

pytestmark = pytest.mark.slow

_NUMBERS = count()
PAIRS = ["sqlite-etcd", "etcd-sqlite", "etcd-etcd", "sqlite-sqlite"]
NET = Owner(Kind.NETWORK, "net1")


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with etcd_cluster() as cluster:
        yield cluster


Urls = Callable[[str], str]


@pytest.fixture
def urls(etcd: EtcdCluster, tmp_path: Path) -> Urls:
    """Return a factory of URLs of new stores, by kind."""
    return lambda kind: (
        f"{etcd.url}/move{next(_NUMBERS)}" if kind == "etcd" else f"sqlite://{tmp_path}/{next(_NUMBERS)}.db"
    )


@pytest.fixture(params=PAIRS)
def ends(request: pytest.FixtureRequest, urls: Urls) -> tuple[str, str]:
    one, other = request.param.split("-")
    return urls(one), urls(other)


def move(source: str, target: str, *, replaces: bool = False) -> CopyJob:
    return CopyJob(source=source, target=target, since="now", id=str(next(_NUMBERS)), replaces=replaces)


async def copied(source: str, target: str, *, replaces: bool = False) -> CopyComparison:
    one, other = await find_bulk_store(source), await create_bulk_store(target)
    try:
        return await copy(one, other, move(source, target, replaces=replaces), lambda *_: None)
    finally:
        await one.close()
        await other.close()


async def test_migration_moves_all_documents_and_revisions_only_grow(ends: tuple[str, str]):
    source, target = ends

    running = await open_store(source)
    await populate(running)
    model = await Model.load(running, lambda *_: None)
    before, old = model.snapshot, model.snapshot.revision
    documents, _ = await running.range("")
    compared = await copied(source, target)
    assert (compared.documents, compared.differing) == (len(documents), 0)

    with pytest.raises(StoreUnavailable, match=r"set store\.url"):
        await model.write(mtu(1))
    assert await running.range("") == (documents, old)
    await running.close()
    with pytest.raises(StoreFenced, match="the deployment moved to"):
        await open_store(source)

    moved = await open_store(target)
    found, revision = await moved.range("")
    assert [(each.key, each.value) for each in found] == [(each.key, each.value) for each in documents]
    assert all(new.revision >= was.revision for new, was in zip(found, documents, strict=True))
    assert revision >= old
    assert await moved.deleted() == {DELETED_CLAIM}
    there = await Model.load(moved, lambda *_: None)
    assert there.snapshot.load_balancers == before.load_balancers
    follower = await Model.load(other := await open_store(target), lambda *_: None)
    written = await there.write(mtu(100))
    assert written.generations[NET] > revision
    assert [batch.revision for batch in await moved.changes(revision)] == [written.revision]
    await follower.catch_up()
    assert follower.snapshot.networks == written.networks
    with pytest.raises(Conflict):
        await moved.transact(guards={str(NET): before.generations[NET]}, puts={}, deletes=[str(NET)])
    await other.close()
    await moved.close()


async def test_migration_back_needs_replace_and_seals_the_other_store(urls: Urls):
    source, target = urls("sqlite"), urls("etcd")

    await run_with_store(source, populate)
    await copied(source, target)
    await run_with_store(target, lambda store: store.transact(guards={}, puts={"claim/new": b"port/x"}, deletes=[]))
    with pytest.raises(BulkOperationRejected, match=r"moved to .*newer"):
        await copied(source, target, replaces=True)
    with pytest.raises(BulkOperationRejected, match="--replace"):
        await copied(target, source)
    await copied(target, source, replaces=True)
    store = await open_store(source)
    assert await store.get("claim/new")
    await store.close()
    with pytest.raises(StoreFenced, match="the deployment moved to sqlite://"):
        await open_store(target)


async def test_rejected_copy_leaves_both_stores_unchanged(urls: Urls):
    one, other, empty = urls("sqlite"), urls("etcd"), urls("etcd")
    nothing = Path(f"{one}.db".removeprefix("sqlite://"))

    await run_with_store(one, populate)
    await run_with_store(other, populate)
    for source, target, words in (
        (one, other, "is not empty.*--replace"),
        (one, one, "are the same store"),
        (empty, one, "is empty"),
        (f"{one}.db", other, "no such file"),
        (other, other.replace("127.0.0.1", "localhost"), "is not empty"),
    ):
        with pytest.raises((BulkOperationRejected, StoreUnavailable), match=words):
            await copied(source, target)
    with pytest.raises(BulkOperationRejected, match="is the same store"):
        await copied(other, other.replace("127.0.0.1", "localhost"), replaces=True)
    for url in (one, other):
        await run_with_store(url, write_something)
    assert not nothing.exists()


KILLED = """
import os, signal, sys
import fairlead.store.bulk as bulk
bulk.PAGE_SIZE = 5
from fairlead.store import etcd_bulk, sqlite_bulk
from fairlead.cli.main import main
for each in (etcd_bulk.EtcdBulkStore, sqlite_bulk.SqliteBulkStore):
    async def put(self, seal, documents, put=each.put, left=[1]):
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left.pop()
        await put(self, seal, documents)
    each.put = put
main(["store", "copy", *sys.argv[1:]])
"""


@pytest.mark.parametrize("ends", PAIRS[:2], indirect=True)
async def test_killed_copy_is_sealed_and_can_be_repeated(ends: tuple[str, str]):
    source, target = ends
    await run_with_store(source, populate)
    killed = subprocess.run([sys.executable, "-c", KILLED, *ends], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    with pytest.raises(StoreFenced, match="incomplete copy"):
        await open_store(target)
    with pytest.raises(StoreFenced, match="fairlead store reopen"):
        await open_store(source)
    with pytest.raises(BulkOperationRejected, match="incomplete copy"):
        await copied(target, source, replaces=True)
    compared = await copied(source, target)
    assert compared.differing == 0
    await run_with_store(target, write_something)


async def test_failed_copy_leaves_the_source_open(ends: tuple[str, str], monkeypatch: pytest.MonkeyPatch):
    source, target = ends

    await run_with_store(source, populate)
    one, other = await find_bulk_store(source), await create_bulk_store(target)

    async def fail(*_: object) -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(other, "put", fail)
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await copy(one, other, move(source, target), lambda *_: None)
    await run_with_store(source, write_something)
    with pytest.raises(StoreFenced, match="incomplete copy"):
        await open_store(target)
    await one.close()
    await other.close()
    await copied(source, target)


async def test_wrong_copy_is_detected_and_stays_sealed(ends: tuple[str, str], monkeypatch: pytest.MonkeyPatch):
    source, target = ends

    await run_with_store(source, populate)
    one, other = await find_bulk_store(source), await create_bulk_store(target)
    put = other.put

    async def spoil(seal, documents) -> None:
        await put(seal, [replace(documents[0], value=b"{}"), *documents[2:]])

    monkeypatch.setattr(other, "put", spoil)
    with pytest.raises(CopyDiffers) as found:
        await copy(one, other, move(source, target), lambda *_: None)
    assert [each.what for each in found.value.compared.first] == ["different content", "missing in the second store"]
    with pytest.raises(StoreFenced):
        await open_store(target)
    await one.close()
    await other.close()


async def test_concurrent_copies_into_one_store_do_not_mix(urls: Urls):
    one, other, target = urls("sqlite"), urls("etcd"), urls("etcd")

    for url in (one, other):
        await run_with_store(url, populate)
    done = await asyncio.gather(copied(one, target), copied(other, target), return_exceptions=True)
    assert sorted(isinstance(each, BulkOperationRejected) for each in done) == [False, True]
    assert sum(isinstance(each, CopyComparison) for each in done) == 1
    await run_with_store(target, write_something)


FURTHER = 3_000_000
"""Offset of revisions in a store copied from one with higher revisions."""


@pytest.fixture(params=[(0, FURTHER), (FURTHER, 0), (0, 0)])
def replaced(request: pytest.FixtureRequest, urls: Urls, etcd: EtcdCluster) -> tuple[str, str]:
    """Return a store in etcd, and another one that replaces it; either may have an offset."""
    ends = urls("etcd"), urls("etcd")
    for url, further in zip(ends, request.param, strict=True):
        if further:
            etcd.ctl("put", f"{url.rpartition('/')[2]}/offset", str(further))
    return ends


async def numbered(store: Store) -> dict[str, int]:
    documents, revision = await store.range("")
    assert await store.head() == revision
    return {each.key: each.revision for each in documents}


async def test_running_servers_never_see_a_half_replaced_store(replaced: tuple[str, str]):
    """Servers follow the head, which is written once, last; they continue with the same revisions as all others."""
    target, source = replaced

    await run_with_store(source, populate)
    await run_with_store(target, write_something)
    running, writing = await open_store(target), await open_store(target)
    _, revision = await running.range("")
    one, other = await find_bulk_store(source), await create_bulk_store(target)
    put, seen = other.put, []

    async def look(seal, documents) -> None:
        await put(seal, documents)
        seen.append(await running.changes(revision))
        with pytest.raises(StoreFenced, match="incomplete copy"):
            await running.range("")
        with pytest.raises(StoreFenced, match="incomplete copy"):
            await running.transact(guards={}, puts={"claim/x": b"2"}, deletes=[])

    other.put = look  # type: ignore[method-assign]
    await copy(one, other, move(source, target, replaces=True), lambda *_: None)
    assert set(map(len, seen)) == {0}
    with pytest.raises(Compacted):
        await running.changes(revision)
    with pytest.raises(Conflict):
        await writing.transact(guards={}, puts={"claim/x": b"3"}, deletes=[])
    fresh = await open_store(target)
    assert await numbered(running) == await numbered(fresh) == await numbered(writing)
    assert min((await numbered(fresh)).values()) > revision
    last = await writing.transact(guards={}, puts={"claim/x": b"3"}, deletes=[])
    assert await running.head() == await fresh.head() == last
    for each in (running, writing, fresh, one, other):
        await each.close()


async def test_follower_receives_the_whole_replacement_of_its_store(replaced: tuple[str, str]):
    target, source = replaced

    await run_with_store(source, populate)
    running, other = await open_store(target), await open_store(target)
    await populate(running, 3)
    model, late = await Model.load(running, lambda *_: None), await Model.load(other, lambda *_: None)
    following = asyncio.create_task(model.follow())
    sizes = list[int]()
    model.watch(lambda published: sizes.append(len(published.after.generations)))
    before = model.snapshot
    await copied(source, target, replaces=True)
    fresh = await Model.load(again := await open_store(target), lambda *_: None)
    await eventually(lambda: model.snapshot.revision, is_enough=lambda found: found >= fresh.snapshot.revision)
    assert min(sizes) == len(before.generations)
    written = await late.write(mtu(100))  # from before the replacement
    await fresh.catch_up()
    await model.catch_up()
    assert model.snapshot.generations == fresh.snapshot.generations == written.generations
    assert model.snapshot.networks == fresh.snapshot.networks == written.networks
    assert written.networks["net1"].mtu == before.networks["net1"].mtu + 37 + 100
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    for each in (running, other, again):
        await each.close()

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
from fairlead.store.copy import Compared, Differs, Move, copy
from fairlead.store.interface import Compacted, Conflict, Store, StoreUnavailable
from fairlead.store.migration_fence import Sealed
from fairlead.store.model import Model
from fairlead.store.opening import find_whole, make_whole, open_store
from fairlead.store.whole import Refused
from harness.etcd import Etcd, started
from harness.filled import GONE, fill, mtu, with_store, write_something
from harness.waiting import eventually

pytestmark = pytest.mark.slow

_NUMBERS = count()
PAIRS = ["sqlite-etcd", "etcd-sqlite", "etcd-etcd", "sqlite-sqlite"]
NET = Owner(Kind.NETWORK, "net1")


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with started() as cluster:
        yield cluster


Urls = Callable[[str], str]


@pytest.fixture
def urls(etcd: Etcd, tmp_path: Path) -> Urls:
    """Return a factory of URLs of new stores, by kind."""
    return lambda kind: (
        f"{etcd.url}/move{next(_NUMBERS)}" if kind == "etcd" else f"sqlite://{tmp_path}/{next(_NUMBERS)}.db"
    )


@pytest.fixture(params=PAIRS)
def ends(request: pytest.FixtureRequest, urls: Urls) -> tuple[str, str]:
    one, other = request.param.split("-")
    return urls(one), urls(other)


def move(source: str, target: str, *, replaces: bool = False) -> Move:
    return Move(source=source, target=target, since="now", id=str(next(_NUMBERS)), replaces=replaces)


async def copied(source: str, target: str, *, replaces: bool = False) -> Compared:
    one, other = await find_whole(source), await make_whole(target)
    try:
        return await copy(one, other, move(source, target, replaces=replaces), lambda *_: None)
    finally:
        await one.close()
        await other.close()


async def test_a_deployment_moves_whole_and_nobody_sees_an_older_revision(ends: tuple[str, str]):
    source, target = ends

    running = await open_store(source)
    await fill(running)
    model = await Model.load(running, lambda *_: None)
    before, old = model.snapshot, model.snapshot.revision
    documents, _ = await running.range("")
    compared = await copied(source, target)
    assert (compared.documents, compared.differing) == (len(documents), 0)

    with pytest.raises(StoreUnavailable, match=r"as store\.url"):
        await model.write(mtu(1))
    assert await running.range("") == (documents, old)
    await running.close()
    with pytest.raises(Sealed, match="has moved to"):
        await open_store(source)

    moved = await open_store(target)
    found, revision = await moved.range("")
    assert [(each.key, each.value) for each in found] == [(each.key, each.value) for each in documents]
    assert all(new.revision >= was.revision for new, was in zip(found, documents, strict=True))
    assert revision >= old
    assert await moved.deleted() == {GONE}
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


async def test_back_again_is_a_copy_like_any_other(urls: Urls):
    source, target = urls("sqlite"), urls("etcd")

    await with_store(source, fill)
    await copied(source, target)
    await with_store(target, lambda store: store.transact(guards={}, puts={"claim/new": b"port/x"}, deletes=[]))
    with pytest.raises(Refused, match=r"has moved .*newer"):
        await copied(source, target, replaces=True)
    with pytest.raises(Refused, match="--replace"):
        await copied(target, source)
    await copied(target, source, replaces=True)
    store = await open_store(source)
    assert await store.get("claim/new")
    await store.close()
    with pytest.raises(Sealed, match="has moved to sqlite://"):
        await open_store(target)


async def test_what_should_not_be_copied_is_left_as_it_was(urls: Urls):
    one, other, empty = urls("sqlite"), urls("etcd"), urls("etcd")
    nothing = Path(f"{one}.db".removeprefix("sqlite://"))

    await with_store(one, fill)
    await with_store(other, fill)
    for source, target, words in (
        (one, other, "is not empty.*--replace"),
        (one, one, "is one store"),
        (empty, one, "is empty"),
        (f"{one}.db", other, "no such file"),
        (other, other.replace("127.0.0.1", "localhost"), "is not empty"),
    ):
        with pytest.raises((Refused, StoreUnavailable), match=words):
            await copied(source, target)
    with pytest.raises(Refused, match="is the same store"):
        await copied(other, other.replace("127.0.0.1", "localhost"), replaces=True)
    for url in (one, other):
        await with_store(url, write_something)
    assert not nothing.exists()


KILLED = """
import os, signal, sys
import fairlead.store.whole as whole
whole.PAGE = 5
from fairlead.store import etcd_whole, sqlite_whole
from fairlead.cli.main import main
for each in (etcd_whole.EtcdWhole, sqlite_whole.SqliteWhole):
    async def put(self, seal, documents, put=each.put, left=[1]):
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left.pop()
        await put(self, seal, documents)
    each.put = put
main(["store", "copy", *sys.argv[1:]])
"""


@pytest.mark.parametrize("ends", PAIRS[:2], indirect=True)
async def test_a_copy_that_was_killed_is_nobodys_to_serve_from_and_begins_again(ends: tuple[str, str]):
    source, target = ends
    await with_store(source, fill)
    killed = subprocess.run([sys.executable, "-c", KILLED, *ends], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    with pytest.raises(Sealed, match="half of it"):
        await open_store(target)
    with pytest.raises(Sealed, match="fairlead store reopen"):
        await open_store(source)
    with pytest.raises(Refused, match="half of it"):
        await copied(target, source, replaces=True)
    compared = await copied(source, target)
    assert compared.differing == 0
    await with_store(target, write_something)


async def test_a_copy_that_fails_leaves_the_first_store_open(ends: tuple[str, str], monkeypatch: pytest.MonkeyPatch):
    source, target = ends

    await with_store(source, fill)
    one, other = await find_whole(source), await make_whole(target)

    async def fail(*_: object) -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(other, "put", fail)
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await copy(one, other, move(source, target), lambda *_: None)
    await with_store(source, write_something)
    with pytest.raises(Sealed, match="half of it"):
        await open_store(target)
    await one.close()
    await other.close()
    await copied(source, target)


async def test_what_was_written_wrong_is_found_and_stays_closed(ends: tuple[str, str], monkeypatch: pytest.MonkeyPatch):
    source, target = ends

    await with_store(source, fill)
    one, other = await find_whole(source), await make_whole(target)
    put = other.put

    async def spoil(seal, documents) -> None:
        await put(seal, [replace(documents[0], value=b"{}"), *documents[2:]])

    monkeypatch.setattr(other, "put", spoil)
    with pytest.raises(Differs) as found:
        await copy(one, other, move(source, target), lambda *_: None)
    assert [each.what for each in found.value.compared.first] == ["another text", "only in the first"]
    with pytest.raises(Sealed):
        await open_store(target)
    await one.close()
    await other.close()


async def test_two_at_once_do_not_mix(urls: Urls):
    one, other, target = urls("sqlite"), urls("etcd"), urls("etcd")

    for url in (one, other):
        await with_store(url, fill)
    done = await asyncio.gather(copied(one, target), copied(other, target), return_exceptions=True)
    assert sorted(isinstance(each, Refused) for each in done) == [False, True]
    assert sum(isinstance(each, Compared) for each in done) == 1
    await with_store(target, write_something)


FURTHER = 3_000_000
"""Offset of revisions in a store copied from one with higher revisions."""


@pytest.fixture(params=[(0, FURTHER), (FURTHER, 0), (0, 0)])
def replaced(request: pytest.FixtureRequest, urls: Urls, etcd: Etcd) -> tuple[str, str]:
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


async def test_servers_that_still_run_on_what_is_replaced_never_see_half_of_it(replaced: tuple[str, str]):
    """Servers follow the head, which is written once, last; they continue with the same revisions as all others."""
    target, source = replaced

    await with_store(source, fill)
    await with_store(target, write_something)
    running, writing = await open_store(target), await open_store(target)
    _, revision = await running.range("")
    one, other = await find_whole(source), await make_whole(target)
    put, seen = other.put, []

    async def look(seal, documents) -> None:
        await put(seal, documents)
        seen.append(await running.changes(revision))
        with pytest.raises(Sealed, match="half of it"):
            await running.range("")
        with pytest.raises(Sealed, match="half of it"):
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


async def test_a_server_that_follows_has_all_of_what_took_the_place_of_its_store(replaced: tuple[str, str]):
    target, source = replaced

    await with_store(source, fill)
    running, other = await open_store(target), await open_store(target)
    await fill(running, 3)
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

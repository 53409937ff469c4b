"""Contract of all stores, and the model on top: the same tests on a file and on a real etcd of three members."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from fairlead.compilers.unsupported import Unsupported
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps
from fairlead.store.interface import NO_REVISION, Conflict, Store
from fairlead.store.model import Model
from fairlead.store.opening import open_store
from harness.cases import DOCUMENTS, STORIES, insert_document, insert_router
from harness.etcd import EtcdCluster, etcd_cluster

Opener = Callable[[], Awaitable[Store]]
_NUMBERS = count()


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with etcd_cluster() as cluster:
        yield cluster


@pytest.fixture(params=["sqlite", "etcd", "etcd with a copy"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Return a function that opens this test's store, any number of times."""
    if request.param == "sqlite":
        url = f"sqlite://{tmp_path}/s.db"
    else:
        etcd, prefix = request.getfixturevalue("etcd"), f"test{next(_NUMBERS)}"
        url = f"{etcd.url}/{prefix}"
        if request.param == "etcd with a copy":  # copied from a store with higher revisions
            etcd.ctl("put", f"{prefix}/offset", "1000000")
    return lambda: open_store(url)


async def test_transaction_is_atomic_and_guards_hold(opened: Opener):
    store = await opened()
    first = await store.transact(guards={"a": NO_REVISION}, puts={"a": b"1", "b": b"1"}, deletes=[])
    with pytest.raises(Conflict):
        await store.transact(guards={"a": NO_REVISION}, puts={"c": b"1"}, deletes=["b"])
    second = await store.transact(guards={"a": first}, puts={"a": b"2"}, deletes=["b"])
    assert second > first
    documents, revision = await store.range("")
    assert [(document.key, document.revision, document.value) for document in documents] == [("a", second, b"2")]
    assert revision == second
    await store.close()


async def test_feed_delivers_every_transaction_in_order_across_processes(opened: Opener):
    mine, other = await opened(), await opened()
    feed = mine.watch(0)
    await mine.transact(guards={}, puts={"a": b"1"}, deletes=[])
    await other.transact(guards={}, puts={"b": b"1"}, deletes=["a"])
    assert dict((await anext(feed)).documents) == {"a": b"1"}
    assert dict((await anext(feed)).documents) == {"a": None, "b": b"1"}
    await feed.aclose()
    await mine.close()
    await other.close()


async def test_the_model_survives_a_restart(opened: Opener):
    state = STORIES[0].states[0]

    store = await opened()
    model = await Model.load(store, lambda *_: None)
    before = await model.write(lambda _: Changes(puts=tuple(state.documents.values())))
    await store.close()
    store = await opened()
    assert (await Model.load(store, lambda *_: None)).snapshot == before
    await store.close()


async def test_two_servers_never_lose_an_update(opened: Opener):
    state = STORIES[0].states[0]
    net = Owner(Kind.NETWORK, "net1")

    def more(snapshot: Snapshot) -> Changes:
        network = snapshot.networks["net1"]
        return Changes(puts=(replace(network, mtu=network.mtu + 1),))

    stores = [await opened() for _ in range(2)]
    models = [await Model.load(store, lambda *_: None) for store in stores]
    await models[0].write(lambda _: Changes(puts=(state.documents[net],)))
    await models[1].write(
        lambda snapshot: more(snapshot) if "net1" in snapshot.networks else Changes(puts=(state.documents[net],))
    )
    await asyncio.gather(*(model.write(more) for _ in range(20) for model in models))
    loaded = await Model.load(stores[0], lambda *_: None)
    assert loaded.snapshot.networks["net1"].mtu == 1442 + 41
    for store in stores:
        await store.close()


@pytest.mark.parametrize("rests", [False, True])
async def test_change_that_does_not_compile_is_not_written(opened: Opener, rests: bool):
    """Writes that do not compile are rejected, and other tasks run during a long compilation."""
    served = asyncio.Event()

    def refuse(snapshot: Snapshot, owner: Owner) -> Steps[None] | None:
        if rests:
            return refuse_late()
        raise Unsupported("anything", "nobody")

    def refuse_late() -> Steps[None]:
        while not served.is_set():
            yield
        raise Unsupported("anything", "nobody")

    store = await opened()
    model = await Model.load(store, refuse)
    asyncio.get_running_loop().call_later(0, served.set)
    with pytest.raises(Unsupported):
        await model.write(lambda _: Changes(puts=tuple(STORIES[0].states[0].documents.values())))
    assert await store.range("") == ([], 0)
    assert model.snapshot == Snapshot()
    await store.close()


async def test_address_belongs_to_one_port_with_two_servers(opened: Opener):
    port = next(item for item in DOCUMENTS.values() if str(item.id) == "vm1")

    def take(snapshot: Snapshot) -> Changes:
        if "vm1" in snapshot.ports:
            raise LookupError("taken")
        return Changes(puts=(replace(port, id="vm9"),))

    store = await opened()
    models = [await Model.load(store, lambda *_: None) for _ in range(2)]
    await models[0].write(lambda _: Changes(puts=(port,)))
    with pytest.raises(LookupError):
        await models[1].write(take)
    await store.close()


async def test_network_deletion_conflicts_with_a_concurrent_port_creation(opened: Opener):
    """A network's deletion conflicts with a port that another server creates on it, although they write different
    documents."""
    network = DOCUMENTS["network/net1"]
    port = next(item for item in DOCUMENTS.values() if str(item.id) == "vm1")
    owner = Owner(Kind.NETWORK, "net1")

    def delete(snapshot: Snapshot) -> Changes:
        if snapshot.network_ports.get("net1"):
            raise LookupError("in use")
        return Changes(deletes=(owner,), requires_unchanged_model=True)

    store = await opened()
    one = await Model.load(store, lambda *_: None)
    await one.write(lambda _: Changes(puts=(network,)))
    other = await Model.load(store, lambda *_: None)
    await one.write(lambda _: Changes(puts=(port,), reads=(owner,)))
    with pytest.raises(LookupError):
        await other.write(delete)
    await store.close()


async def test_deleted_owners_are_known_after_a_restart(opened: Opener):
    store = await opened()
    model = await Model.load(store, lambda *_: None)
    for name in ("kept", "gone"):
        await model.write(partial(insert_document, name))
        await model.write(partial(insert_router, name))
    await model.write(lambda _: Changes(deletes=(Owner(Kind.NETWORK, "gone"), Owner(Kind.ROUTER, "gone"))))
    await store.close()
    store = await opened()
    model = await Model.load(store, lambda *_: None)
    deleted = await model.deleted()
    gone = ("network/gone", "vip-network/gone", "vip-network/gone/guest", "vip-network/kept")
    gone += ("router/gone", "vip-gateway/gone", "vip-gateway/kept", "near-gateway/gone")
    assert all(Owner.parse(text) in deleted for text in gone)
    strange = ("network/kept", "network/strange", "vip-network/strange", "loadbalancer/strange")
    strange += ("vip-gateway/strange", "near-gateway/strange")
    assert not any(Owner.parse(text) in deleted for text in strange)
    await store.close()


@pytest.mark.parametrize("number", [1, 41, 130, 4_100])
async def test_a_change_of_many_documents_is_one_transaction(opened: Opener, number: int):
    """Changes of many documents are one transaction, up to 1,000 ports with their claims, and a cascading deletion."""
    puts = {f"key/{each:05}": b"%d" % each for each in range(number)}

    store = await opened()
    first = await store.transact(guards=dict.fromkeys(puts, NO_REVISION), puts=puts, deletes=[])
    documents, revision = await store.range("")
    assert {each.key: each.value for each in documents} == puts
    assert {each.revision for each in documents} == {revision} == {first}
    with pytest.raises(Conflict):
        await store.transact(guards=dict.fromkeys([*puts, "x"], NO_REVISION), puts={"x": b""}, deletes=[])
    last = await store.transact(guards=dict.fromkeys(puts, first), puts={}, deletes=puts)
    assert await store.range("") == ([], last)
    assert await store.deleted() == set(puts)
    batches = await store.changes(0)
    assert [(each.revision, dict(each.documents)) for each in batches] == [
        (first, puts),
        (last, dict.fromkeys(puts)),
    ]
    await store.close()


async def test_a_range_is_in_order_and_in_pages(opened: Opener):
    names = [f"{kind}/{each}" for kind in ("a", "b", "é") for each in ("1", "2", "10")]

    store = await opened()
    revision = await store.transact(guards={}, puts=dict.fromkeys(names, b"1"), deletes=[])
    assert [each.key for each in (await store.range("b/"))[0]] == ["b/1", "b/10", "b/2"]
    assert [each.key for each in (await store.range("b/", after="b/1", limit=1))[0]] == ["b/10"]
    assert [each.key for each in (await store.range("", after="b/2"))[0]] == ["é/1", "é/10", "é/2"]
    assert await store.range("c") == ([], revision)
    found = await store.get("é/2")
    assert found
    assert (found.value, found.revision) == (b"1", revision)
    assert await store.get("é") is None
    await store.close()


async def test_head_guard_conflicts_with_any_later_write(opened: Opener):
    mine, other = await opened(), await opened()
    assert await mine.range("") == ([], 0)
    first = await mine.transact(guards={}, puts={"a": b"1"}, deletes=[], head=0)
    second = await other.transact(guards={}, puts={"b": b"1"}, deletes=[], head=first)
    with pytest.raises(Conflict, match="the store"):
        await mine.transact(guards={}, puts={"a": b"2"}, deletes=[], head=first)
    assert await mine.changes(second) == []
    assert await mine.transact(guards={}, puts={"a": b"2"}, deletes=[], head=second) > second
    await mine.close()
    await other.close()


async def test_recreated_document_is_not_listed_as_deleted(opened: Opener):
    store = await opened()
    await store.transact(guards={}, puts={"a": b"1", "b": b"1"}, deletes=[])
    await store.transact(guards={}, puts={}, deletes=["a", "b"])
    await store.transact(guards={}, puts={"a": b"2"}, deletes=[])
    assert await store.deleted() == {"b"}
    await store.close()


async def test_concurrent_guarded_writers_lose_no_update(opened: Opener):
    """Two servers write with guards: each sees the other's write, or has a conflict."""

    async def add(store: Store) -> None:
        while True:
            found = await store.get("n")
            try:
                await store.transact(
                    guards={"n": found.revision if found else NO_REVISION},
                    puts={"n": b"%d" % (int(found.value) + 1 if found else 1)},
                    deletes=[],
                )
            except Conflict:
                continue
            return

    stores = [await opened() for _ in range(2)]
    await asyncio.gather(*(add(store) for store in stores for _ in range(10)))
    found = await stores[0].get("n")
    assert found
    assert found.value == b"20"
    for store in stores:
        await store.close()

"""Stores with content, for tests of copies, backups and restores."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.store.interface import Store
from fairlead.store.model import Model
from fairlead.store.opening import open_store
from harness.cases import STORIES

STATE = STORIES[0].states[0]
DELETED_CLAIM = "claim/was"


async def run_with_store(url: str, work: Callable[[Store], Awaitable[object]]) -> None:
    store = await open_store(url)
    try:
        await work(store)
    finally:
        await store.close()


async def write_something(store: Store) -> None:
    await store.transact(guards={}, puts={"claim/x": b"1"}, deletes=[])


def mtu(more: int) -> Callable[[Snapshot], Changes]:
    def change(snapshot: Snapshot) -> Changes:
        network = snapshot.networks["net1"]
        return Changes(puts=(replace(network, mtu=network.mtu + more),))

    return change


async def populate(store: Store, number: int = 40) -> None:
    """Write the story's documents with claims, a deleted key, and `number` more changes."""
    model = await Model.load(store, lambda *_: None)
    await model.write(lambda _: Changes(puts=tuple(STATE.documents.values())))
    for _ in range(number):
        await model.write(mtu(1))
    await store.transact(guards={}, puts={DELETED_CLAIM: b"port/x"}, deletes=[])
    await store.transact(guards={}, puts={}, deletes=[DELETED_CLAIM])

"""Expiry of records that a server keeps for a limited time."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from fairlead.model.documents.hosts import Host
from fairlead.model.documents.loadbalancer import LoadBalancer, MovedSlots
from fairlead.model.registry.changeset import Changes
from fairlead.server.maintenance import forget_removed_members
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.agents import running
from harness.case import parse_model
from harness.native_language import TRANSITION
from harness.waiting import eventually

MODEL = """
network pool announced 203.0.113.0/24
host h1 1 10.20.0.21 10.1.0.0/24 returning
host h2 2 10.20.0.22 10.2.0.0/24 returning
host h3 3 10.20.0.23 10.3.0.0/24 draining
web vip=203.0.113.5 on=pool provider=native tcp:80=a/10.1.0.11:80
"""


@pytest.mark.virtual_clock
async def test_expired_substitute_and_moved_slot_records_are_deleted(tmp_path: Path):
    """Expired records of returning hosts and moved slots are deleted; those of draining hosts, or not yet expired, are
    kept."""
    later = datetime.now(UTC) + timedelta(hours=1)

    def aged(document: object) -> object:
        match document:
            case Host(name="h2"):
                return replace(document, returning_until=later)
            case LoadBalancer():
                (front,), before = document.listeners, document.pools[0].members[0].address
                moved = MovedSlots(listener_id=front.id, before=before, slots=(7,), until=TRANSITION.expires_at)
                return replace(document, moved=(moved,))
        return document

    store = await SqliteStore.open(tmp_path / "store.db")
    model = await Model.load(store, lambda snapshot, owner: None)
    documents = tuple(aged(each) for each in parse_model(MODEL.strip(), {})[0].values())
    await model.write(lambda _: Changes(puts=documents))  # type: ignore[arg-type]
    async with running(partial(forget_removed_members, model)):
        await eventually(lambda: model.snapshot.hosts["h1"].returning_until is None)
        await eventually(lambda: not model.snapshot.parting)
    assert model.snapshot.load_balancers["web"].moved == ()
    assert model.snapshot.hosts["h2"].returning_until == later
    assert model.snapshot.hosts["h3"].draining
    await store.close()

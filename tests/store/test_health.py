"""The model takes in what probes say: it reaches the reconciler, and no document."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from fairlead.model.facts import HEALTH
from fairlead.model.health import Endpoint, Health
from fairlead.model.owner import Owner
from fairlead.model.writing import Changes
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.down_members import DOCUMENTS, ENDPOINT, VM2, WEB
from harness.story import parse_model


def see(model: Model, news: Mapping[Endpoint, Health | None]) -> None:
    """Without a rest."""
    for _ in model.observe(HEALTH, news):
        pass


async def test_who_is_down_is_told_with_the_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    store = await SqliteStore.open(tmp_path / "s.db")
    with caplog.at_level(logging.INFO, "fairlead.store.model"):
        model = await Model.load(store, lambda snapshot, owner: None)
        await model.write(lambda _: Changes(puts=tuple(DOCUMENTS.values())))
        see(model, {ENDPOINT: Health.STRANDED})
        await model.write(lambda _: Changes(deletes=(VM2,)))
        see(model, {ENDPOINT: Health.ONLINE})
    await store.close()
    told = [line for line in caplog.messages if line.startswith("members of loadbalancer/web")]
    assert "10.0.0.11:80" in told[0]
    assert told[0].endswith("(its node is dead: it confirms nothing any more)")
    assert "no machine of this project has its address" in told[1]


async def test_replicas_that_are_down_are_told_of_by_their_ports(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    lines = "port vm1 net1 10.0.0.11 name=db-1", "local-ip lip net1 10.0.0.200 name=db monitor=TCP+port=80 +vm1 +vm2"
    model_text = "\n".join(["network net1 10.0.0.0/24", lines[0], "port vm2 net1 10.0.0.12", lines[1]])
    documents, _ = parse_model(model_text, {})

    store = await SqliteStore.open(tmp_path / "s.db")
    with caplog.at_level(logging.INFO, "fairlead.store.model"):
        model = await Model.load(store, lambda snapshot, owner: None)
        await model.write(lambda _: Changes(puts=tuple(documents.values())))
        see(model, {ENDPOINT: Health.ERROR})
        see(model, {ENDPOINT: Health.ONLINE})
    await store.close()
    assert [line for line in caplog.messages if "down" in line] == [
        "replicas of local-ip/lip 'db' that are down: 10.0.0.11 'db-1' (refuses connections or does not answer)",
        "replicas of local-ip/lip 'db' that are down: none",
    ]


async def test_health_is_told_kept_and_never_stored(tmp_path: Path):
    store = await SqliteStore.open(tmp_path / "s.db")
    model = await Model.load(store, lambda snapshot, owner: None)
    told: list[tuple[Owner, ...]] = []
    await model.write(lambda _: Changes(puts=tuple(DOCUMENTS.values())))
    model.subscribe(told.append)
    revision = model.snapshot.revision
    see(model, {ENDPOINT: Health.ERROR})
    see(model, {ENDPOINT: Health.ERROR})
    assert (told, dict(model.snapshot.down)) == ([(WEB,)], {"web": {"web-a"}})
    assert model.snapshot.revision == revision
    await model.write(lambda _: Changes(deletes=(VM2,)))
    assert told[-1] == (WEB, VM2)
    assert dict(model.snapshot.down) == {"web": {"web-a", "web-b"}}
    other = await Model.load(store, lambda snapshot, owner: None)
    assert dict(other.snapshot.down) == {"web": {"web-b"}}  # what the store knows: the machine of b is gone
    see(model, {ENDPOINT: Health.ONLINE})
    assert (dict(model.snapshot.down), dict(model.snapshot.online)) == ({"web": {"web-b"}}, {"web": {"web-a"}})
    await store.close()


async def test_what_is_seen_while_a_change_is_being_stored_is_not_lost(tmp_path: Path):
    store = await SqliteStore.open(tmp_path / "s.db")
    model = await Model.load(store, lambda snapshot, owner: None)
    writing = asyncio.create_task(model.write(lambda _: Changes(puts=tuple(DOCUMENTS.values()))))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    see(model, {ENDPOINT: Health.ERROR})
    await writing
    assert dict(model.snapshot.down) == {"web": {"web-a"}}
    await store.close()

"""Probe results in the model: they reach the reconciler, but no document."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from immutables import Map

from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.model.queries.probes import targets
from fairlead.model.queries.reasons import explain_down
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.facts import AGENTS_PROBE, HEALTH, PROBE_RESULTS
from fairlead.model.snapshot import Snapshot
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.case import parse_model
from harness.down_members import DOCUMENTS, ENDPOINT, VM2, WEB

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def see(model: Model, news: Mapping[Endpoint, Health | None]) -> None:
    """Report probe results without yielding."""
    for _ in model.observe(HEALTH, news):
        pass


async def test_down_member_is_logged_with_the_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture):
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
    assert told[0].endswith("(its node is dead: it no longer confirms changes)")
    assert "no machine of this project has its address" in told[1]


async def test_down_replicas_are_logged_by_port(tmp_path: Path, caplog: pytest.LogCaptureFixture):
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
        "replicas of local-ip/lip 'db' that are down: 10.0.0.11 'db-1' (connection refused or no response)",
        "replicas of local-ip/lip 'db' that are down: none",
    ]


async def test_health_is_published_and_kept_in_memory_but_not_stored(tmp_path: Path):
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
    assert dict(other.snapshot.down) == {"web": {"web-b"}}  # the store's state: the machine of b is gone
    see(model, {ENDPOINT: Health.ONLINE})
    assert (dict(model.snapshot.down), dict(model.snapshot.online)) == ({"web": {"web-b"}}, {"web": {"web-a"}})
    await store.close()


async def test_probe_result_during_a_write_is_not_lost(tmp_path: Path):
    store = await SqliteStore.open(tmp_path / "s.db")
    model = await Model.load(store, lambda snapshot, owner: None)
    writing = asyncio.create_task(model.write(lambda _: Changes(puts=tuple(DOCUMENTS.values()))))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    see(model, {ENDPOINT: Health.ERROR})
    await writing
    assert dict(model.snapshot.down) == {"web": {"web-a"}}
    await store.close()


AGENTS = """
network net1 10.0.0.0/24 fd00::/64
port vm1 net1 10.0.0.11
port vm2 net1 fd00::12
probes net1 10.0.0.2
probes net1 fd00::2
web vip=10.0.0.10 on=net1 tcp:80{monitor=HTTP}=a/10.0.0.11:80,b/[fd00::12]:80
local-ip lip net1 10.0.0.200 name=db monitor=TCP+port=81 +vm1
"""


async def test_down_reason_in_the_log_is_the_error_of_the_agent(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    documents, _ = parse_model(AGENTS.strip(), {})
    store = await SqliteStore.open(tmp_path / "s.db")
    errors = {"vm1": "unexpected HTTP status 500", "vm2": "no answer in 3 s"}
    with caplog.at_level(logging.INFO, "fairlead.store.model"):
        model = await Model.load(store, lambda snapshot, owner: None)
        for _ in model.observe(AGENTS_PROBE, True):
            pass
        await model.write(lambda _: Changes(puts=tuple(documents.values())))
        web, lip = model.snapshot.load_balancers["web"], model.snapshot.local_ips["lip"]
        for each in [*targets(model.snapshot, web), *targets(model.snapshot, lip)]:
            seen = ProbeResult(health=Health.ERROR, chassis="n1", since=NOON, error=errors[each.endpoint.port_id])
            for _ in model.observe(PROBE_RESULTS, {each.endpoint: seen}):
                pass
    await store.close()
    assert [line.partition(" that are down: ")[2] for line in caplog.messages if "that are down" in line] == [
        "10.0.0.11:80 (unexpected HTTP status 500)",
        "10.0.0.11:80 (unexpected HTTP status 500), [fd00::12]:80 (no answer in 3 s)",
        "10.0.0.11 (unexpected HTTP status 500)",
    ]
    assert set(explain_down(model.snapshot, web).values()) == set(errors.values())


async def test_down_reasons_of_a_member_are_grouped_by_port():
    lines = """
network net1 10.0.0.0/24
port vm1 net1 10.0.0.11
probes net1 10.0.0.2
api vip=10.0.0.10 on=net1 for=net1 tcp:80-83{monitor=TCP}=a/10.0.0.11
"""
    documents, _ = parse_model(lines.strip(), {})
    snapshot = apply_changes(Snapshot(agents_probe=True), Changes(puts=tuple(documents.values())), 1)
    api = snapshot.load_balancers["api"]
    first = [each.endpoint for each in targets(snapshot, api) if each.endpoint.port_id == "vm1"]
    seen = {
        each: ProbeResult(
            health=Health.ERROR, chassis="n1", since=NOON, error=f"unexpected HTTP status {420 + each.port}"
        )
        for each in first
    }
    told = explain_down(replace(snapshot, sightings=Map(seen)), api)["api-a"]
    assert told == (
        f"{Health.ERROR.explanation}: port 80: unexpected HTTP status 500; port 81: unexpected HTTP status 501;"
        " port 82: unexpected HTTP status 502 and 1 more"
    )
    told = explain_down(replace(snapshot, sightings=Map({first[1]: seen[first[1]]})), api)["api-a"]
    assert told == f"{Health.PARTLY.explanation}: port 81: unexpected HTTP status 501"

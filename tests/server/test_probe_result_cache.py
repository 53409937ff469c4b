"""Agents' reports survive a server: a new one has them before any agent connects."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from fairlead.agent_protocol.probe_results_file import read_probe_results
from fairlead.api.agents.nodes import NodeRegistry
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.model.queries.probes import endpoints
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.facts import AGENTS_PROBE, PROBE_RESULTS, with_facts
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from fairlead.server.probe_result_cache import ProbeResultCache
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.agents import running
from harness.case import parse_model
from harness.waiting import eventually

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MODEL = """
network net1 10.0.0.0/24
port vm1 net1 10.0.0.11
port vm2 net1 10.0.0.12
web vip=10.0.0.10 on=net1 tcp:80{monitor=TCP}=a/10.0.0.11:80,b/10.0.0.12:80,c/10.0.0.13:80,d/10.0.0.14:80
"""
WEB = Owner(Kind.LOAD_BALANCER, "web")


def seen(health: Health) -> ProbeResult:
    return ProbeResult(health=health, chassis="one", since=NOON, error="connection refused")


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[tuple[Model, ProbeResultCache]]:
    """Yield the state of a starting server."""
    store = await SqliteStore.open(folder / "store.db")
    model = await Model.load(store, lambda snapshot, owner: None, with_facts(Snapshot(), AGENTS_PROBE, True))
    try:
        yield model, ProbeResultCache(folder / "sightings.json", model)
    finally:
        await store.close()


def probed(model: Model) -> Iterator[Endpoint]:
    """Return the endpoints of a and b, on machines, and of c and d, without a port."""
    return iter(sorted(endpoints(model.snapshot, model.snapshot.load_balancers["web"]), key=lambda each: each.address))


async def test_restarted_server_restores_down_members(tmp_path: Path):
    async with server(tmp_path) as (model, remembered):
        documents = tuple(parse_model(MODEL.strip(), {})[0].values())
        await model.write(lambda _: Changes(puts=documents))  # type: ignore[arg-type]
        await remembered.load()
        a, b, c, d = probed(model)
        news = {a: seen(Health.ERROR), b: seen(Health.ONLINE), c: seen(Health.ONLINE), d: seen(Health.ERROR)}
        async with running(remembered.save_changes):
            run_to_completion(model.observe(PROBE_RESULTS, news))
            kept = {a: seen(Health.ERROR), c: seen(Health.ONLINE)}  # the others have the default state
            await eventually(lambda: read_probe_results(tmp_path / "sightings.json") == kept)
        assert model.snapshot.down["web"] == {"web-a", "web-d"}
    async with server(tmp_path) as (model, remembered):
        assert model.snapshot.down["web"] == {"web-c", "web-d"}  # as for a server without memory
        await remembered.load()
        assert model.snapshot.down["web"] == {"web-a", "web-d"}
        nodes = NodeRegistry.of(model)
        assert (nodes.agents.reported_endpoints("one"), nodes.agents.last_report("one")) == (2, None)
        async with running(remembered.save_changes):
            run_to_completion(model.observe(PROBE_RESULTS, {a: seen(Health.ONLINE)}))
            await eventually(lambda: read_probe_results(tmp_path / "sightings.json") == {c: seen(Health.ONLINE)})


async def test_probe_results_of_deleted_load_balancers_are_not_restored(tmp_path: Path):
    async with server(tmp_path) as (model, remembered):
        documents = tuple(parse_model(MODEL.strip(), {})[0].values())
        await model.write(lambda _: Changes(puts=documents))  # type: ignore[arg-type]
        await remembered.load()
        async with running(remembered.save_changes):
            run_to_completion(model.observe(PROBE_RESULTS, {next(probed(model)): seen(Health.ERROR)}))
            await eventually((tmp_path / "sightings.json").exists)
    async with server(tmp_path) as (model, remembered):
        await model.write(lambda _: Changes(deletes=(WEB,)))
        await remembered.load()
        assert not model.snapshot.sightings

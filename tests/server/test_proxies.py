"""A server allocates proxies for networks that need them, also if their nodes appear later, and releases them."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.changes.proxy_placement import ProxyLimits
from fairlead.model.documents.observed_proxy import ProxyPortChanges
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.unmanaged import is_unmanaged
from fairlead.model.queries.proxies import proxy_ports
from fairlead.model.registry.changeset import Changes, with_unmanaged
from fairlead.model.registry.facts import UNMANAGED
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.cooperative import run_in_steps
from fairlead.server.proxies import RETRY_INTERVAL, run_proxy_placement
from fairlead.store.model import Model
from fairlead.store.opening import open_store
from harness.agents import running
from harness.changes.proxy_places import NET1, world
from harness.unmanaged_proxies import MODEL_TEXT as FOREIGN_TEXT
from harness.unmanaged_proxies import ONE, port_of
from harness.unmanaged_proxies import world as foreign_world
from harness.waiting import eventually_equal

pytestmark = pytest.mark.virtual_clock


def hosts(snapshot: Snapshot) -> list[str]:
    return [port.host for port in proxy_ports(snapshot, NET1)]


async def test_proxy_ports_on_an_imported_network_are_requested_not_written(tmp_path: Path):
    known = foreign_world()
    networks = {Owner(Kind.NETWORK, each.id): each for each in known.networks.values() if is_unmanaged(each)}
    facts = replace(with_unmanaged(Snapshot(), networks), chassis=known.chassis, agents=known.agents)
    model = Model(await open_store(f"sqlite://{tmp_path}/store.db"), lambda _, __: None, facts)
    await model.read()
    await model.write(lambda _: Changes(puts=(known.load_balancers["web"],)))
    async with running(lambda: run_proxy_placement(model, lambda _: ["one"], ProxyLimits(own=2))):
        await eventually_equal(
            lambda: dict(model.snapshot.wanted_proxies), {NET1: ProxyPortChanges(create_on=("one",))}
        )
        port = port_of(foreign_world(FOREIGN_TEXT + ONE), "one")
        await run_in_steps(model.observe(UNMANAGED, {Owner(Kind.PORT, port.id): port}))
        await eventually_equal(lambda: dict(model.snapshot.wanted_proxies), {})
        await model.write(lambda _: Changes(deletes=(Owner(Kind.LOAD_BALANCER, "web"),)))
        await eventually_equal(lambda: dict(model.snapshot.wanted_proxies), {NET1: ProxyPortChanges(delete=(port.id,))})


async def test_proxies_are_allocated_and_released_with_demand(tmp_path: Path):
    known = world()
    facts = replace(Snapshot(), chassis=known.chassis, agents=known.agents)
    model = Model(await open_store(f"sqlite://{tmp_path}/store.db"), lambda _, __: None, facts)
    await model.read()
    near: list[str] = []
    documents = (*known.networks.values(), *known.ports.values(), *known.load_balancers.values())
    await model.write(lambda _: Changes(puts=documents))
    async with running(lambda: run_proxy_placement(model, lambda _: near, ProxyLimits(own=2))):
        await asyncio.sleep(RETRY_INTERVAL / 2)
        assert hosts(model.snapshot) == []
        near += ["one", "two"]  # the model itself is unchanged
        await asyncio.sleep(RETRY_INTERVAL)
        await eventually_equal(lambda: hosts(model.snapshot), ["one", "two"])
        await model.write(lambda _: Changes(deletes=(Owner(Kind.LOAD_BALANCER, "web"),)))
        await eventually_equal(lambda: hosts(model.snapshot), [])

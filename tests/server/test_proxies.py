"""A server allocates proxies for networks that need them, also if their nodes appear later, and releases them."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.changes.proxy_placement import Bounds
from fairlead.model.documents.observed_proxy import WantedProxies
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.unmanaged import is_foreign
from fairlead.model.queries.proxies import proxy_ports
from fairlead.model.registry.changeset import Changes, with_foreign
from fairlead.model.registry.facts import FOREIGN
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.cooperative import in_steps
from fairlead.server.proxies import AGAIN, keep_proxies
from fairlead.store.model import Model
from fairlead.store.opening import open_store
from harness.agents import running
from harness.changes.proxy_places import NET1, world
from harness.foreign_proxies import ONE, port_of
from harness.foreign_proxies import TEXT as FOREIGN_TEXT
from harness.foreign_proxies import world as foreign_world
from harness.waiting import eventually_equal

pytestmark = pytest.mark.virtual_clock


def hosts(snapshot: Snapshot) -> list[str]:
    return [port.host for port in proxy_ports(snapshot, NET1)]


async def test_on_a_network_of_others_nothing_is_written_but_what_is_wanted_is_known(tmp_path: Path):
    known = foreign_world()
    networks = {Owner(Kind.NETWORK, each.id): each for each in known.networks.values() if is_foreign(each)}
    facts = replace(with_foreign(Snapshot(), networks), chassis=known.chassis, agents=known.agents)
    model = Model(await open_store(f"sqlite://{tmp_path}/store.db"), lambda _, __: None, facts)
    await model.read()
    await model.write(lambda _: Changes(puts=(known.load_balancers["web"],)))
    async with running(lambda: keep_proxies(model, lambda _: ["one"], Bounds(own=2))):
        await eventually_equal(lambda: dict(model.snapshot.wanted_proxies), {NET1: WantedProxies(come=("one",))})
        port = port_of(foreign_world(FOREIGN_TEXT + ONE), "one")
        await in_steps(model.observe(FOREIGN, {Owner(Kind.PORT, port.id): port}))
        await eventually_equal(lambda: dict(model.snapshot.wanted_proxies), {})
        await model.write(lambda _: Changes(deletes=(Owner(Kind.LOAD_BALANCER, "web"),)))
        await eventually_equal(lambda: dict(model.snapshot.wanted_proxies), {NET1: WantedProxies(go=(port.id,))})


async def test_proxies_come_and_go(tmp_path: Path):
    known = world()
    facts = replace(Snapshot(), chassis=known.chassis, agents=known.agents)
    model = Model(await open_store(f"sqlite://{tmp_path}/store.db"), lambda _, __: None, facts)
    await model.read()
    near: list[str] = []
    documents = (*known.networks.values(), *known.ports.values(), *known.load_balancers.values())
    await model.write(lambda _: Changes(puts=documents))
    async with running(lambda: keep_proxies(model, lambda _: near, Bounds(own=2))):
        await asyncio.sleep(AGAIN / 2)
        assert hosts(model.snapshot) == []
        near += ["one", "two"]  # the model itself is unchanged
        await asyncio.sleep(AGAIN)
        await eventually_equal(lambda: hosts(model.snapshot), ["one", "two"])
        await model.write(lambda _: Changes(deletes=(Owner(Kind.LOAD_BALANCER, "web"),)))
        await eventually_equal(lambda: hosts(model.snapshot), [])

"""A server gives networks the proxies that they need, though who reaches them is known later, and takes them again."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from changes.test_proxy_places import NET1, world
from fairlead.changes.proxy_places import Bounds
from fairlead.model.facts import FOREIGN
from fairlead.model.foreign import is_foreign
from fairlead.model.observed_proxy import WantedProxies
from fairlead.model.owner import Kind, Owner
from fairlead.model.proxies import proxy_ports
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes, with_foreign
from fairlead.resting import in_steps
from fairlead.server import proxies
from fairlead.server.proxies import keep_proxies
from fairlead.store.model import Model
from fairlead.store.opening import open_store
from model.test_foreign_proxies import ONE, port_of
from model.test_foreign_proxies import TEXT as FOREIGN_TEXT
from model.test_foreign_proxies import world as foreign_world


def hosts(snapshot: Snapshot) -> list[str]:
    return [port.host for port in proxy_ports(snapshot, NET1)]


async def until(model: Model, wanted: list[str]) -> None:
    async with asyncio.timeout(10):
        while hosts(model.snapshot) != wanted:  # noqa: ASYNC110 - the task that is tested does it
            await asyncio.sleep(0.01)


async def test_on_a_network_of_others_nothing_is_written_but_what_is_wanted_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(proxies, "INTERVAL", 0.01)
    monkeypatch.setattr(proxies, "AGAIN", 0.1)

    known = foreign_world()
    networks = {Owner(Kind.NETWORK, each.id): each for each in known.networks.values() if is_foreign(each)}
    facts = replace(with_foreign(Snapshot(), networks), chassis=known.chassis, agents=known.agents)
    model = Model(await open_store(f"sqlite://{tmp_path}/store.db"), lambda _, __: None, facts)
    await model.read()
    await model.write(lambda _: Changes(puts=(known.load_balancers["web"],)))
    keeping = asyncio.ensure_future(keep_proxies(model, lambda _: ["one"], Bounds(own=2)))
    async with asyncio.timeout(10):
        while not model.snapshot.wanted_proxies:  # noqa: ASYNC110 - the task that is tested does it
            await asyncio.sleep(0.01)
        assert dict(model.snapshot.wanted_proxies) == {NET1: WantedProxies(come=("one",))}
        port = port_of(foreign_world(FOREIGN_TEXT + ONE), "one")
        await in_steps(model.observe(FOREIGN, {Owner(Kind.PORT, port.id): port}))
        while model.snapshot.wanted_proxies:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await model.write(lambda _: Changes(deletes=(Owner(Kind.LOAD_BALANCER, "web"),)))
        while not model.snapshot.wanted_proxies:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert dict(model.snapshot.wanted_proxies) == {NET1: WantedProxies(go=(port.id,))}
    keeping.cancel()


async def test_proxies_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(proxies, "INTERVAL", 0.01)
    monkeypatch.setattr(proxies, "AGAIN", 0.1)

    known = world()
    facts = replace(Snapshot(), chassis=known.chassis, agents=known.agents)
    model = Model(await open_store(f"sqlite://{tmp_path}/store.db"), lambda _, __: None, facts)
    await model.read()
    near: list[str] = []
    documents = (*known.networks.values(), *known.ports.values(), *known.load_balancers.values())
    await model.write(lambda _: Changes(puts=documents))
    keeping = asyncio.ensure_future(keep_proxies(model, lambda _: near, Bounds(own=2)))
    await asyncio.sleep(0.05)
    assert hosts(model.snapshot) == []
    near += ["one", "two"]  # nothing of the model changes
    await until(model, ["one", "two"])
    await model.write(lambda _: Changes(deletes=(Owner(Kind.LOAD_BALANCER, "web"),)))
    await until(model, [])
    keeping.cancel()

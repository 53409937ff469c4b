"""A server on Neutron's networks: its rows follow changes of the networks."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.compilers.ovn import OVN, compile_owner
from fairlead.config.options import Configuration, OvnOptions
from fairlead.drivers.interface import Unreachable
from fairlead.drivers.ovn.unmanaged import reader
from fairlead.drivers.ovsdb.client import Client, Settings
from fairlead.drivers.ovsdb.remotes import parse_remotes
from fairlead.drivers.ovsdb.values import Json, decode_map, decode_uuids
from fairlead.model.documents.loadbalancer import LoadBalancer, Vip
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.facts import UNMANAGED, Fact
from fairlead.runtime.steps import Steps
from fairlead.server import ovn
from fairlead.server.ovn import ANSWERS_FOR_UNPLUGGED, NETWORKS_NOT_READ, OvnControl
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.case import parse_model
from harness.neutron import NeutronNetwork, NeutronRouter, delete, insert
from harness.ovsdb_server import DATABASE, FAST_TIMING, OvsdbServer
from harness.waiting import DEADLINE, eventually, eventually_equal

N1, N2, N3, R1 = (
    NeutronNetwork(name="n1"),
    NeutronNetwork(name="n2"),
    NeutronNetwork(name="n3"),
    NeutronRouter(name="r1"),
)


def cloud() -> Iterator[Json]:
    """Yield N1 and N2 on a router, N3 without one, and the port of a VIP as Octavia creates it."""
    yield insert("NB_Global", {})
    for number, net in enumerate((N1, N2, N3), 1):
        yield from net.create()
        yield net.subnet(f"10.{number}.0.0/24", f"10.{number}.0.1")
    yield from R1.create()
    yield from R1.insert_port(N1, "10.1.0.1/24")
    yield from R1.insert_port(N2, "10.2.0.1/24")
    yield from N1.port("vip", "10.1.0.200/24", owner="Octavia", device="lb-web", enabled=False)
    yield from N1.port("vm1", "10.1.0.11/24", device="vm1")
    yield from N2.port("vm2", "10.2.0.11/24", device="vm2")


def balancer() -> LoadBalancer:
    """Return a load balancer as Octavia sends it."""
    text = "network n1 10.1.0.0/24\nweb vip=10.1.0.200 on=n1 project=a tcp:80=a/10.1.0.11:80,b/10.2.0.11:80"
    documents, _ = parse_model(text, {})
    (found,) = (document for document in documents.values() if isinstance(document, LoadBalancer))
    vip = Vip(
        address=found.vip.address,
        port_id=N1.port_id("vip"),
        subnet_id=N1.subnet_id("10.1.0.0/24"),
        network_id=N1.id,
    )
    return replace(found, vip=vip)


class Slow:
    """Model that delays its updates about unmanaged routers until released."""

    def __init__(self, model: Model) -> None:
        self._observe = model.observe
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    def observe(self, fact: Fact[Any], news: Any) -> Steps[None]:
        if fact is UNMANAGED and any(owner.kind is Kind.ROUTER for owner in news):
            self.reached.set()
            while not self.go_on.is_set():
                yield
        yield from self._observe(fact, news)


class Cloud:
    """The database, and a server connected to it."""

    def __init__(self, server: OvsdbServer, folder: Path) -> None:
        remotes = parse_remotes(server.remote)
        self.client = Client(
            Settings(remotes=remotes, database=DATABASE, tables={}, timing=FAST_TIMING), lambda event: None
        )
        self.configuration = Configuration(
            ovn=OvnOptions(northbound=server.remote, southbound=f"unix:{folder}/nothing.sock", owner_tag="test")
        )
        self.folder = folder

    @asynccontextmanager
    async def serving(self, *, slowly: bool = False) -> AsyncIterator[OvnControl]:
        store = await SqliteStore.open(self.folder / "store.db")
        model = self.model = await Model.load(store, compile_owner)
        if slowly:
            self.slow = Slow(model)
            model.observe = self.slow.observe  # type: ignore[method-assign]
        control = OvnControl(OVN, model, self.configuration)
        control.connect()
        async with control:
            if balancer().id not in model.snapshot.load_balancers:
                await control.topology.wait_connected(DEADLINE)  # type: ignore[union-attr]
                await model.write(lambda _: Changes(puts=(balancer(),)))
            await control.central.wait_synced(DEADLINE)
            yield control
        await store.close()

    async def find(self, table: str, name: str) -> str:
        rows = await self.select(table, "_uuid", "name")
        uuid: str = next((row["_uuid"][1] for row in rows if row["name"] == name), "")
        return uuid

    def removal(self, table: str, uuid: str) -> list[Json]:
        gone = ["ports", "delete", ["set", [["uuid", uuid]]]]
        return [{"op": "mutate", "table": table, "where": [], "mutations": [gone]}]

    async def select(self, table: str, *columns: str) -> list[dict[str, Json]]:
        operation = {"op": "select", "table": table, "where": [], **({"columns": [*columns]} if columns else {})}
        rows: list[dict[str, Json]] = (await self.client.transact([operation], DEADLINE))[0]["rows"]
        return rows

    async def carried(self) -> set[str]:
        """Return the names of Neutron's switches and routers that have a load balancer group."""
        return {
            row["name"]
            for table in ("Logical_Switch", "Logical_Router")
            for row in await self.select(table, "name", "load_balancer_group")
            if decode_uuids(row["load_balancer_group"]) and row["name"].startswith("neutron-")
        }

    async def carries(self, *names: str) -> None:
        await eventually_equal(self.carried, set(names))

    async def theirs(self) -> dict[str, list[Json]]:
        """Return Neutron's rows, without references to Fairlead's rows."""
        found = {
            table: await self.select(table) for table in ("Logical_Switch", "Logical_Router", "Logical_Switch_Port")
        }
        ours = {
            row["_uuid"][1]
            for rows in found.values()
            for row in rows
            if decode_map(row["external_ids"]).get("fairlead") == "test"
        }
        return {
            table: sorted(
                (_without(row, ours) for row in rows if row["_uuid"][1] not in ours), key=lambda row: str(row["name"])
            )
            for table, rows in found.items()
        }


def _without(row: dict[str, Json], ours: set[str]) -> dict[str, Json]:
    left = {column: value for column, value in row.items() if column not in ("_version", "load_balancer_group")}
    if "ports" in left:
        left["ports"] = sorted(set(decode_uuids(left["ports"])) - ours)
    return left


async def test_load_balancer_rows_follow_its_router_and_networks(server: OvsdbServer, tmp_path: Path) -> None:
    """A load balancer on N1 follows its router, which gains N3 and loses N2, the network of a member; at last N1 is
    deleted."""

    world = Cloud(server, tmp_path)
    async with world.client:
        await world.client.wait_connected(DEADLINE)
        await world.client.transact([*cloud()], DEADLINE)
        before = await world.theirs()
        async with world.serving() as control:
            await world.carries(N1.switch, N2.switch, R1.row)
            assert before == await world.theirs()
            assert control.condition().blockers == (ANSWERS_FOR_UNPLUGGED,)
            with pytest.raises(Unreachable, match="Southbound"):  # agents would otherwise receive an empty slice
                control.check_synced()
            await world.client.transact([*R1.insert_port(N3, "10.3.0.1/24")], DEADLINE)
            await world.carries(N1.switch, N2.switch, N3.switch, R1.row)
            port = N2.port_id(R1.port_name(N2, "10.2.0.1/24"))
            end = await world.find("Logical_Router_Port", f"lrp-{port}")
            await world.client.transact(world.removal("Logical_Router", end), DEADLINE)
            await world.carries(N1.switch, N3.switch, R1.row)
            assert (control.condition().imports_networks, control.condition().imported["neutron", "network"]) == (
                True,
                3,
            )
        after = await world.theirs()
        async with world.serving() as control:  # the resync finds no difference
            await world.carries(N1.switch, N3.switch, R1.row)
            assert control.central.reconciler.statistics.applied == 0
            assert after == await world.theirs()
            await world.client.transact([delete("Logical_Switch", "name", N1.switch)], DEADLINE)
            await world.carries(N3.switch, R1.row)


async def test_slow_import_of_networks_removes_no_rows(
    server: OvsdbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that depend on unmanaged networks stay until all of those are received, all others are reconciled. The first
    resync comes after a long wait, when only networks have been received."""
    monkeypatch.setattr(reader, "REPORT_SIZE", 1)

    world = Cloud(server, tmp_path)
    async with world.client:
        await world.client.wait_connected(DEADLINE)
        await world.client.transact([*cloud()], DEADLINE)
        async with world.serving():
            await world.carries(N1.switch, N2.switch, R1.row)
        before = await world.theirs()
        monkeypatch.setattr(ovn, "TOPOLOGY_TIMEOUT", 0.05)
        async with world.serving(slowly=True) as control:
            await world.slow.reached.wait()
            reconciler = control.central.reconciler
            assert reconciler.statistics.resyncs == 1
            network = parse_model("network own 10.9.0.0/24", {})[0]
            await world.model.write(lambda _: Changes(puts=tuple(network.values())))
            await eventually(lambda: world.find("Logical_Switch", "own"))
            assert await world.carried() == {N1.switch, N2.switch, R1.row}
            known = reconciler.applied(Owner(Kind.LOAD_BALANCER, balancer().id))
            assert (known.error, reconciler.statistics.applied) == (NETWORKS_NOT_READ, 1)
            world.slow.go_on.set()
            await eventually_equal(lambda: len(reconciler), 0)
            assert await world.carried() == {N1.switch, N2.switch, R1.row}
            assert reconciler.statistics.applied == 1
            assert before == await world.theirs()

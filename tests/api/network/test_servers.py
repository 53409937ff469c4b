"""Two servers over one store: no change is lost, and no address is allocated twice."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from fairlead.api.network.collection import RequestContext
from fairlead.api.network.networks import NETWORKS
from fairlead.api.network.ports import PORTS
from fairlead.api.network.routers import ROUTERS
from fairlead.api.network.subnets import SUBNETS
from fairlead.changes.refusal import Refused
from fairlead.changes.routers import InterfaceTarget, add_interface
from fairlead.model.documents.addresses import parse_network
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.api import NOON, compile_owner
from harness.front_ends.network_world import CALLERS

NET, FOUR, FAR, ROUTER = (f"{n}0000000-0000-4000-8000-000000000000" for n in "1234")


def call(identity: str) -> RequestContext:
    return RequestContext(caller=CALLERS["admin"], now=NOON, new_id=identity, mtu=1442, external_mtu=1500)


def create_subnet(identity: str, cidr: str) -> Callable[[Snapshot], Changes]:
    values = {"network_id": NET, "cidr": parse_network(cidr), "enable_dhcp": False}
    return lambda now: run_to_completion(SUBNETS.create(now, call(identity), values))


def create_port(identity: str) -> Callable[[Snapshot], Changes]:
    return lambda now: run_to_completion(PORTS.create(now, call(identity), {"network_id": NET}))


def add(port_id: str, subnet_id: str) -> Callable[[Snapshot], Changes]:
    target = InterfaceTarget(subnet_id=subnet_id)
    return lambda now: add_interface(now, CALLERS["admin"], now.routers[ROUTER], target, port_id, NOON).changes


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[Model, Model]]:
    """Yield two servers that do not follow each other: each has only its own writes and its write conflicts."""
    stores = [await SqliteStore.open(tmp_path / "s.db") for _ in range(2)]
    one = await Model.load(stores[0], compile_owner)
    await one.write(lambda now: run_to_completion(NETWORKS.create(now, call(NET), {})))
    await one.write(create_subnet(FOUR, "10.0.0.0/28"))
    await one.write(lambda now: run_to_completion(ROUTERS.create(now, call(ROUTER), {})))
    yield one, await Model.load(stores[1], compile_owner)
    for store in stores:
        await store.close()


async def test_two_servers_allocate_each_address_and_mac_once(two: tuple[Model, Model]):
    """Two servers allocate each address and MAC once; a /28 has 13 addresses in addition to the gateway's."""

    one, other = two
    await asyncio.gather(*((one, other)[n % 2].write(create_port(f"p{n}")) for n in range(13)))
    with pytest.raises(Refused, match="NoFreeAddress"):
        await one.write(create_port("late"))
    assert {port.fixed_ips[0].address for port in one.snapshot.ports.values()} == {
        parse_network("10.0.0.0/28").network_address + n for n in range(2, 15)
    }
    assert len(one.snapshot.macs) == 13


async def test_port_gets_no_address_of_a_subnet_deleted_by_another_server(two: tuple[Model, Model]):
    one, other = two
    await one.write(lambda now: SUBNETS.delete(now, CALLERS["admin"], SUBNETS.find(now, FOUR)))
    snapshot = await other.write(create_port("p"))
    assert snapshot.ports["p"].fixed_ips == ()
    await one.write(create_subnet(FAR, "10.0.1.0/24"))
    snapshot = await other.write(create_port("q"))
    assert snapshot.ports["q"].fixed_ips[0].subnet_id == FAR


async def test_subnets_created_by_two_servers_do_not_overlap(two: tuple[Model, Model]):
    one, other = two
    await one.write(create_subnet(FAR, "10.0.1.0/24"))
    with pytest.raises(Refused, match="SubnetsOverlap"):
        await other.write(create_subnet("s", "10.0.1.128/25"))


async def test_router_given_an_interface_by_another_server_is_not_deleted(two: tuple[Model, Model]):
    one, other = two
    await one.write(add("port", FOUR))
    with pytest.raises(Refused, match="RouterInUse"):
        await other.write(lambda now: ROUTERS.delete(now, CALLERS["admin"], now.routers[ROUTER]))


async def test_two_servers_do_not_attach_the_same_subnet_twice(two: tuple[Model, Model]):
    one, other = two
    await one.write(add("port", FOUR))
    with pytest.raises(Refused, match="SubnetAlreadyAttached"):
        await other.write(add("again", FOUR))

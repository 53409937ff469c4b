"""What databases of thousands of rows say at once is taken in short steps, in which others are served."""

import asyncio
import gc
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import thread_time
from typing import Any

import pytest

from drivers.conftest import SCHEMA, Server, until
from fairlead.api.loop_lag import LONG
from fairlead.dataplane.ovn import LoadBalancer, VirtualService, by_key
from fairlead.dataplane.rows import NO_ROWS, diff
from fairlead.drivers.ovn.driver import OvnDriver, OvnSettings
from fairlead.drivers.ovn.southbound import DATABASE, SouthboundReader, SouthboundSettings
from fairlead.drivers.ovsdb.client import Client, Settings
from fairlead.drivers.ovsdb.protocol import LARGE_MESSAGE, Framer, LateRows, in_parts, without_collector
from fairlead.drivers.ovsdb.remotes import parse_remotes
from fairlead.drivers.ovsdb.values import Json
from fairlead.model.facts import HEALTH, Fact
from fairlead.model.health import Endpoint, Health
from fairlead.model.owner import Kind, Owner
from harness.hold import held

OWNERS, ENDPOINTS = 1500, 4000


@pytest.fixture(autouse=True)
def _frozen() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_the_northbound_database_is_read(server: Server):
    backends = tuple(f"10.0.{number}.1:8080" for number in range(128))
    services = (VirtualService(vip="10.1.0.1:80", backends=backends),)
    settings = OvnSettings(remotes=parse_remotes(server.remote), mark="test")

    async def story() -> None:
        async with OvnDriver(settings) as driver:
            await driver.wait_ready(10)
            for number in range(OWNERS):
                row = LoadBalancer(name=f"lb{number}", protocol="tcp", services=services)
                owner = Owner(Kind.LOAD_BALANCER, f"lb{number}")
                await driver.apply(owner, diff(by_key([row]), NO_ROWS))
        with held() as hold:
            async with OvnDriver(settings) as driver:
                await asyncio.create_task(driver.wait_ready(20))
                assert len(await driver.read_all()) == OWNERS
        assert hold.longest < LONG

    asyncio.run(story())


def test_all_probes_find_another_thing(tmp_path: Path, servers: list[Server]):
    subprocess.run(["ovsdb-tool", "create", tmp_path / "db", SCHEMA.with_name("ovn-sb.ovsschema")], check=True)
    servers.append(Server(tmp_path))
    servers[0].start()
    remotes = parse_remotes(servers[0].remote)
    known: dict[Endpoint, Health | None] = {}

    def hear(fact: Fact[Any], news: Any) -> None:
        if fact is HEALTH:
            known.update(news)

    async def write(status: str) -> None:
        update: Json = {"op": "update", "table": "Service_Monitor", "where": [], "row": {"status": status}}
        await client.transact([update], 20)

    async def story() -> None:
        nonlocal client
        client = Client(Settings(remotes=remotes, database=DATABASE, tables={}), lambda _: None)
        reader = SouthboundReader(SouthboundSettings(remotes=remotes), hear)
        async with client:
            await client.wait_connected(10)
            rows = [{"ip": f"10.0.{n >> 8}.{n & 255}", "logical_port": f"vm{n}", "port": 80} for n in range(ENDPOINTS)]
            await client.transact([{"op": "insert", "table": "Service_Monitor", "row": row} for row in rows], 20)
            await write("online")
            with held() as hold:
                reader.start()
                await asyncio.create_task(until(lambda: list(known.values()).count(Health.ONLINE) == ENDPOINTS, 20))
                await write("offline")
                await asyncio.create_task(until(lambda: Health.ONLINE not in known.values(), 20))
            await reader.close()
        assert hold.longest < LONG

    client: Client
    asyncio.run(story())


def test_rows_of_a_large_message_are_decoded_when_they_are_asked_for():
    rows = {f"u{number}": {"initial": {"name": "x" * 100}} for number in range(5000)} | {"gone": {"delete": None}}
    tables = {"A": rows, "B": {"b": {"modify": {"name": "y"}}}}
    text = repr(["data", "txn", tables]).replace("'", '"').replace("None", "null")
    (small,) = Framer().feed(b'{"id":null,"method":"update3","params":["data","txn",{"A":{}}]}')
    message, after = Framer().feed(f'{{"id":null,"method":"update3","params":{text}}}{{"id":2}}'.encode())
    assert len(text) > LARGE_MESSAGE
    assert (after.id, small.params[2]) == (2, {"A": {}})
    late = message.params[2]
    assert isinstance(late["A"], LateRows)
    assert {table: dict(each) for table, each in late.items()} == tables
    parts = list(in_parts(late, 1000))
    assert parts[0] == {"A": {"gone": {"delete": None}}}
    assert [sum(map(len, part.values())) for part in parts] == [1, *[1000] * 5, 1]
    assert {uuid for part in parts for each in part.values() for uuid in each} == {*rows, "b"}


def test_no_look_for_garbage_is_long_after_many_steps():
    """Each step makes thousands of objects that stay: the collector counts its runs, not what they look at."""
    looks: list[float] = []
    began = 0.0

    def clock(phase: str, _: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = thread_time()
        else:
            looks.append(thread_time() - began)

    gc.callbacks.append(clock)
    try:
        kept = []
        for _ in range(160):
            with without_collector():
                kept += [{"row": [number]} for number in range(6000)]
            kept.append({})  # now the collector may run
    finally:
        gc.callbacks.remove(clock)
    assert max(looks, default=0.0) < LONG

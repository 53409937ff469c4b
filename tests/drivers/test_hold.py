"""Initial contents with thousands of rows are processed in short steps, between which other tasks run."""

import gc
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.dataplane.ovn import LoadBalancer, VirtualService, by_key
from fairlead.dataplane.ovn_chassis import ChassisVariable
from fairlead.dataplane.rows import NO_ROWS, Rows, diff
from fairlead.drivers.ovn.northbound.driver import OvnDriver, OvnSettings
from fairlead.drivers.ovn.northbound.encoder import Encoder
from fairlead.drivers.ovn.northbound.marks import Mark
from fairlead.drivers.ovn.southbound.driver import DATABASE, SouthboundReader, SouthboundSettings
from fairlead.drivers.ovsdb.client import Client, Settings
from fairlead.drivers.ovsdb.protocol import Framer, Notification, Reply, gc_disabled
from fairlead.drivers.ovsdb.remotes import parse_remotes
from fairlead.drivers.ovsdb.split_message import LARGE_MESSAGE, LazyRows, split_rows
from fairlead.drivers.ovsdb.values import Json
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.facts import HEALTH, Fact
from fairlead.runtime.cooperative import run_in_steps
from harness.ovsdb_server import SCHEMA, OvsdbServer
from harness.step_counter import longest_between_yields
from harness.waiting import DEADLINE, eventually, eventually_equal

OWNERS, ENDPOINTS, PORTS = 1500, 4000, 10_000
BROUGHT = 1 << 18  # bytes that arrive from the network at one time


async def test_northbound_contents_are_read_without_blocking_the_event_loop(server: OvsdbServer):
    backends = tuple(f"10.0.{number}.1:8080" for number in range(128))
    services = (VirtualService(vip="10.1.0.1:80", backends=backends),)
    settings = OvnSettings(remotes=parse_remotes(server.remote), mark="test")

    async with OvnDriver(settings) as driver:
        await driver.wait_ready(DEADLINE)
        for number in range(OWNERS):
            row = LoadBalancer(name=f"lb{number}", protocol="tcp", services=services)
            owner = Owner(Kind.LOAD_BALANCER, f"lb{number}")
            await driver.apply(owner, diff(by_key([row]), NO_ROWS))
    async with OvnDriver(settings) as driver:
        await driver.wait_ready(DEADLINE)
        assert len(await driver.read_all()) == OWNERS


async def test_changed_results_of_all_probes_do_not_block_the_event_loop(tmp_path: Path, servers: list[OvsdbServer]):
    subprocess.run(["ovsdb-tool", "create", tmp_path / "db", SCHEMA.with_name("ovn-sb.ovsschema")], check=True)
    servers.append(OvsdbServer(tmp_path))
    servers[0].start()
    remotes = parse_remotes(servers[0].remote)
    known: dict[Endpoint, Health | None] = {}

    def hear(fact: Fact[Any], news: Any) -> None:
        if fact is HEALTH:
            known.update(news)

    async def write(status: str) -> None:
        update: Json = {"op": "update", "table": "Service_Monitor", "where": [], "row": {"status": status}}
        await client.transact([update], DEADLINE)

    client = Client(Settings(remotes=remotes, database=DATABASE, tables={}), lambda _: None)
    reader = SouthboundReader(SouthboundSettings(remotes=remotes), hear)
    async with client:
        await client.wait_connected(DEADLINE)
        rows = [{"ip": f"10.0.{n >> 8}.{n & 255}", "logical_port": f"vm{n}", "port": 80} for n in range(ENDPOINTS)]
        await client.transact([{"op": "insert", "table": "Service_Monitor", "row": row} for row in rows], DEADLINE)
        await write("online")
        reader.start()
        await eventually_equal(lambda: list(known.values()).count(Health.ONLINE), ENDPOINTS)
        await write("offline")
        await eventually(lambda: Health.ONLINE not in known.values())
        await reader.close()


def test_rows_of_a_large_message_are_decoded_lazily():
    rows = {f"u{number}": {"initial": {"name": "x" * 100}} for number in range(5000)} | {"gone": {"delete": None}}
    tables = {"A": rows, "B": {"b": {"modify": {"name": "y"}}}}
    text = repr(["data", "txn", tables]).replace("'", '"').replace("None", "null")
    (small,) = Framer().feed(b'{"id":null,"method":"update3","params":["data","txn",{"A":{}}]}')
    message, after = Framer().feed(f'{{"id":null,"method":"update3","params":{text}}}{{"id":2}}'.encode())
    assert len(text) > LARGE_MESSAGE
    assert (after.id, small.params[2]) == (2, {"A": {}})
    late = message.params[2]
    assert isinstance(late["A"], LazyRows)
    assert {table: dict(each) for table, each in late.items()} == tables
    parts = [part for part in split_rows(late, 1000) if part]
    assert parts[0] == {"A": {"gone": {"delete": None}}}
    assert [sum(map(len, part.values())) for part in parts] == [1, *[1000] * 5, 1]
    assert {uuid for part in parts for each in part.values() for uuid in each} == {*rows, "b"}


@pytest.mark.parametrize("first", [[True, "txn"], [], None])
def test_large_reply_of_any_form_is_read(first: list[object] | None):
    """Large replies of every form are read: a resumed monitor, a new one, and a transaction without <table-updates>."""
    rows = {f"u{number}": {"initial": {"name": "x" * 100}} for number in range(5000)}
    tables = {"A": rows, "B": {"b": {"initial": {}}}}
    results: dict[bool, object] = {True: [*(first or []), tables] if first else tables, False: [{"rows": [rows]}]}
    sent = {"id": 7, "result": results[first is not None], "error": None}
    (message,) = Framer().feed(msgspec.json.encode(sent))
    assert isinstance(message, Reply)
    found = message.result
    if first is None:
        assert (found, message.id, message.error) == (sent["result"], 7, None)
        return
    late = found[-1] if first else found
    assert isinstance(late["A"], LazyRows)
    assert ({table: dict(each) for table, each in late.items()}, message.id, message.error) == (tables, 7, None)
    assert not first or found[:2] == first


@pytest.mark.parametrize("size", [1000, 1 << 18, 1 << 24])
def test_large_message_is_parsed_equally_for_any_fragmentation(size: int):
    """Messages are parsed equally for any cut: at table ends, with empty tables, braces in texts, and members around
    tables."""
    rows = {f"u{number}": {"initial": {"name": f'}}{{"{number}' + "x" * 190}} for number in range(3000)}
    some, others = dict([*rows.items()][:1000]), dict([*rows.items()][1000:])
    tables = {"A": some, "B": {}, "C": others, "D": {"d": {"delete": None}}}
    sent: list[dict[str, object]] = [
        {"error": None, "id": 7, "result": [True, "txn", tables]},
        {"id": 8, "result": tables, "error": None},
        {"id": None, "method": "update3", "params": ["data", "txn", tables]},
        {"id": 9, "result": tables, "error": {"error": "x", "details": {"A": {}}}},
        {"id": 10, "result": [{"rows": [each]} for each in rows.values()], "error": None},
        {"id": 11, "result": [{"A": rows}, {"B": rows}], "error": None},
    ]
    data = b"".join(map(msgspec.json.encode, sent))
    framer = Framer()
    found = [message for at in range(0, len(data), size) for message in framer.feed(data[at : at + size])]
    assert [plain(each) for each in found] == [
        plain(Notification(method=each["method"], params=each["params"]))  # type: ignore[arg-type]
        if "method" in each
        else plain(Reply(id=each["id"], result=each["result"], error=each["error"]))
        for each in sent
    ]


def plain(value: object) -> object:
    """Replace lazily decoded values by plain ones."""
    match value:
        case Reply():
            return plain([value.id, value.result, value.error])
        case Notification():
            return plain([value.method, value.params])
        case Mapping():
            return {name: plain(each) for name, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case _:
            return value


def test_large_port_table_is_framed_and_split_in_short_steps():
    """The work per network read and per part is the same at every position of the message. Ten thousand ports suffice:
    more ports mean more parts."""
    words = [["neutron:cidrs", "10.0.0.1/24"], ["neutron:device_id", "y" * 36], ["neutron:port_name", "z" * 900]]
    row = msgspec.json.encode({"initial": {"name": "x" * 36, "external_ids": ["map", words]}})
    ports = b",".join(b'"u%d":%b' % (number, row) for number in range(PORTS))
    text = b'{"id":5,"result":[false,"txn",{"Logical_Switch_Port":{%b}}],"error":null}' % ports
    framer, taken = Framer(), list[int]()
    for at in range(0, len(text), BROUGHT):
        found, steps = longest_between_yields(framer.feed(text[at : at + BROUGHT]))
        taken.append(steps)
    (message,) = found
    parts, steps = longest_between_yields(split_rows(message.result[2], 200))  # type: ignore[union-attr]
    assert sum(map(bool, parts)) == PORTS / 200
    assert max(*taken, steps) < 10_000


def test_garbage_collections_stay_short_after_many_steps():
    """Garbage collections stay short, although the collector's threshold counts allocations and each step keeps
    thousands."""
    looks = list[int]()

    def count(phase: str, information: dict[str, int]) -> None:
        """Record the number of objects that the collector is about to traverse."""
        if phase == "start":
            generations = range(information["generation"] + 1)
            looks.append(sum(len(gc.get_objects(generation=each)) for each in generations))

    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 10)  # Python's defaults
    gc.callbacks.append(count)
    try:
        kept = []
        for _ in range(160):
            with gc_disabled():
                kept += [{"row": [number]} for number in range(6000)]
            kept.append({})  # may trigger the collector
    finally:
        gc.callbacks.remove(count)
        gc.set_threshold(*before)
    assert max(looks, default=0) < 30_000


@pytest.mark.parametrize("before", ["nothing", "others"])
async def test_variables_of_a_thousand_chassis_are_encoded_in_short_steps(before: str):
    """Values of a thousand chassis are encoded in short steps, for eight pools: the maximum with locality."""

    def values(port: int) -> Rows:
        texts = tuple(f"10.0.0.{number}:{port}" for number in range(125))
        places = ((f"chassis{number}", f"pool{pool}") for number in range(1000) for pool in range(8))
        rows = (ChassisVariable(chassis=chassis, name=name, values=texts) for chassis, name in places)
        return {row.key: row for row in rows}

    change = diff(values(80), values(81) if before == "others" else NO_ROWS)
    encoder = Encoder(mark=Mark("test"), lock="test", owner=Owner(Kind.LOAD_BALANCER, "lb"), uuid_of=str)

    transaction = await run_in_steps(encoder.encode_in_steps(change))
    assert len(transaction.operations) > 1000

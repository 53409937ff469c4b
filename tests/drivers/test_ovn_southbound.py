"""The reader of the Southbound database against a real ovsdb-server."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.drivers.interface import Unreachable
from fairlead.drivers.ovn.southbound.driver import DATABASE, SouthboundReader, SouthboundSettings
from fairlead.drivers.ovn.southbound.tables import SouthboundTables
from fairlead.drivers.ovsdb.client import Client, ContentChanges, Event, FullContents, Settings
from fairlead.drivers.ovsdb.remotes import parse_remotes
from fairlead.drivers.ovsdb.values import Json
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.queries.statistics import ConntrackZone, Datapath
from fairlead.model.registry.facts import (
    CHASSIS,
    HEALTH,
    PLUGGED,
    Fact,
    HealthUpdate,
    PluggedUpdate,
    ports_on,
    with_facts,
)
from fairlead.model.snapshot import Snapshot
from harness.ovsdb_server import FAST_TIMING, SCHEMA, OvsdbServer
from harness.step_counter import step
from harness.waiting import DEADLINE, eventually, eventually_equal

FOUR = Endpoint("vm1", parse_address("10.0.0.11"), 80, Transport.TCP)
SIX = Endpoint("vm1", parse_address("fd00::11"), 53, Transport.UDP)
OTHER = Endpoint("vm2", parse_address("10.0.0.12"), 80, Transport.TCP)


@pytest.fixture(params=["create", pytest.param("create-cluster", marks=pytest.mark.slow)])
def southbound(tmp_path: Path, servers: list[OvsdbServer], request: pytest.FixtureRequest) -> OvsdbServer:
    """Start a database: after a reconnect a cluster sends only changes, a standalone server all contents."""
    here = [f"unix:{tmp_path}/raft"] if request.param == "create-cluster" else []
    subprocess.run(
        ["ovsdb-tool", request.param, tmp_path / "db", SCHEMA.with_name("ovn-sb.ovsschema"), *here], check=True
    )
    servers.append(OvsdbServer(tmp_path))
    servers[0].start()
    return servers[0]


class Southbound:
    """Stand-in for northd and ovn-controller, and a reader that records its facts."""

    def __init__(self, server: OvsdbServer) -> None:
        remotes = parse_remotes(server.remote)
        self.client = Client(
            Settings(remotes=remotes, database=DATABASE, tables={}, timing=FAST_TIMING), lambda event: None
        )
        self.told: list[dict[Endpoint, Health | None]] = []
        self.known: dict[Endpoint, Health | None] = {}
        self.seen: list[PluggedUpdate] = []
        self.plugged: dict[str, str | None] = {}
        self.settings = SouthboundSettings(remotes=remotes, timing=FAST_TIMING, max_lag=45.0)
        self.snapshot = Snapshot()
        self.reader = SouthboundReader(self.settings, self.observe)

    def observe(self, fact: Fact[Any], news: Any) -> None:
        self.snapshot = with_facts(self.snapshot, fact, news)
        if fact is HEALTH:
            self.told.append(dict(news))
            self.known |= news
        if fact is PLUGGED:
            self.seen.append(news)
            self.plugged |= news

    def ports_on(self, chassis: str) -> frozenset[str] | None:
        return ports_on(self.snapshot, chassis)

    def is_alive(self, chassis: str) -> bool:
        return self.snapshot.chassis[chassis].alive

    def nodes(self) -> dict[str, str]:
        return {port: node for port, node in self.plugged.items() if node is not None}

    async def sees(self, **wanted: str) -> None:
        await eventually_equal(self.nodes, wanted)

    async def reconnect(self) -> None:
        """Restart the reader without memory, as a new server."""
        await self.reader.close()
        self.known.clear()
        self.snapshot = Snapshot()
        self.reader = SouthboundReader(self.settings, self.observe)
        self.reader.start()
        await self.reader.wait_connected(DEADLINE)

    async def write(self, *operations: Json) -> None:
        await self.client.wait_connected(DEADLINE)
        await self.client.transact(operations, DEADLINE)

    async def receive_update(self, **wanted: Health | None) -> None:
        names = {"four": FOUR, "six": SIX, "other": OTHER}
        await eventually_equal(lambda: {name: self.known.get(names[name]) for name in wanted}, wanted)


def monitor(endpoint: Endpoint, status: str = "", **columns: Json) -> Json:
    row = {
        "ip": str(endpoint.address),
        "logical_port": endpoint.port_id,
        "port": endpoint.port,
        "protocol": endpoint.transport.value,
        **({"status": status} if status else {}),
        **columns,
    }
    return {"op": "insert", "table": "Service_Monitor", "row": row}


def send_update(endpoint: Endpoint, status: str) -> Json:
    where = [["ip", "==", str(endpoint.address)]]
    return {"op": "update", "table": "Service_Monitor", "where": where, "row": {"status": status or ["set", []]}}


def delete_rows(endpoint: Endpoint) -> Json:
    return {"op": "delete", "table": "Service_Monitor", "where": [["ip", "==", str(endpoint.address)]]}


def bind(port: str, *, up: bool) -> Json:
    return {"op": "update", "table": "Port_Binding", "where": [["logical_port", "==", port]], "row": {"up": up}}


NODES = ("node1", "node2", "node3")


def node(name: str) -> Iterator[Json]:
    """Yield the rows of a chassis as ovn-controller registers it."""
    row = {"chassis_name": name, "ip": f"192.0.2.{name[-1]}", "type": "geneve"}
    yield {"op": "insert", "table": "Encap", "uuid-name": f"e{name}", "row": row}
    encaps = ["set", [["named-uuid", f"e{name}"]]]
    yield {"op": "insert", "table": "Chassis", "uuid-name": name, "row": {"name": name, "encaps": encaps}}
    private = {"name": name, "chassis": ["named-uuid", name], "nb_cfg": 1, "nb_cfg_timestamp": 1_000_000}
    yield {"op": "insert", "table": "Chassis_Private", "row": private}


def confirm(name: str, count: int, seconds: int) -> Json:
    row = {"nb_cfg": count, "nb_cfg_timestamp": seconds * 1000}
    return {"op": "update", "table": "Chassis_Private", "where": [["name", "==", name]], "row": row}


def delete(table: str, column: str, value: str) -> Json:
    return {"op": "delete", "table": table, "where": [[column, "==", value]]}


BINDINGS: tuple[Json, ...] = (
    {"op": "insert", "table": "Datapath_Binding", "uuid-name": "d", "row": {"tunnel_key": 1}},
    *(operation for name in NODES for operation in node(name)),
    *(
        {
            "op": "insert",
            "table": "Port_Binding",
            "row": {
                "logical_port": port,
                "datapath": ["named-uuid", "d"],
                "tunnel_key": number,
                "up": True,
                "chassis": ["named-uuid", f"node{number}"],
            },
        }
        for number, port in enumerate(("vm1", "vm2"), 1)
    ),
)


@pytest.fixture
async def south(southbound: OvsdbServer) -> AsyncIterator[Southbound]:
    made = Southbound(southbound)
    made.client.start()
    made.reader.start()
    try:
        await made.reader.wait_connected(DEADLINE)
        yield made
    finally:
        await made.reader.close()
        await made.client.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_each_status_change_is_reported_once(south: Southbound) -> None:
    await south.write(*BINDINGS, monitor(FOUR), monitor(SIX, "online"), monitor(OTHER, "error"))
    await south.receive_update(four=None, six=Health.ONLINE, other=Health.ERROR)
    await south.write(send_update(FOUR, "offline"), send_update(SIX, "error"), send_update(OTHER, "online"))
    await south.receive_update(four=Health.ERROR, six=Health.ERROR, other=Health.ONLINE)
    count = len(south.told)
    await south.write(send_update(FOUR, "error"))  # no change
    await south.write(send_update(SIX, ""))
    await south.receive_update(six=None)
    assert south.told[count:] == [{SIX: None}]
    await south.write(delete_rows(FOUR), delete_rows(OTHER))
    await south.receive_update(four=None, other=None)


async def test_port_without_a_chassis_is_down(south: Southbound) -> None:
    await south.write(*BINDINGS, monitor(FOUR, "online"), monitor(SIX), monitor(OTHER, "online"))
    await south.receive_update(four=Health.ONLINE, six=None, other=Health.ONLINE)
    await south.write(bind("vm1", up=False))
    await south.receive_update(four=Health.UNPLUGGED, six=Health.UNPLUGGED, other=Health.ONLINE)
    await south.write(bind("vm1", up=True))
    await south.receive_update(four=Health.ONLINE, six=None)
    again = {"op": "delete", "table": "Port_Binding", "where": [["logical_port", "==", "vm1"]]}
    [made] = [row for row in BINDINGS if row["row"].get("logical_port") == "vm1"]
    one = {**BINDINGS[0], "row": {"tunnel_key": 2}}
    await south.write(bind("vm1", up=False))
    await south.receive_update(four=Health.UNPLUGGED)
    remade = {**made["row"], "up": False, "chassis": ["set", []]}
    await south.write(again, one, {**made, "row": remade}, send_update(OTHER, "offline"))
    await south.receive_update(other=Health.ERROR)
    assert (south.known[FOUR], south.known[SIX]) == (Health.UNPLUGGED, Health.UNPLUGGED)


async def test_port_of_a_deleted_chassis_is_down(south: Southbound) -> None:
    """Ports of a deleted chassis are down, although OVN leaves the column `up` unchanged."""

    await south.write(*BINDINGS, monitor(FOUR, "online"), monitor(OTHER, "online"))
    await south.receive_update(four=Health.ONLINE, other=Health.ONLINE)
    await south.write(*(delete(table, "name", "node1") for table in ("Chassis", "Chassis_Private")))
    await south.receive_update(four=Health.UNPLUGGED)
    assert south.known[OTHER] is Health.ONLINE


async def test_chassis_without_confirmations_is_dead_and_its_ports_are_stranded(south: Southbound) -> None:
    await south.write(*BINDINGS, monitor(FOUR, "online"), monitor(OTHER, "online"))
    await south.receive_update(four=Health.ONLINE, other=Health.ONLINE)
    await south.write(*(confirm(name, 2, 1000 + 46) for name in ("node2", "node3")))
    assert south.reader.counts()["dead"] == 0  # the row has just appeared, so it counts as alive
    await south.reconnect()
    await south.receive_update(four=Health.STRANDED)
    assert south.reader.counts() == {"alive": 2, "dead": 1, "unreadable": 0}
    await eventually(lambda: not south.is_alive("node1"))
    assert south.is_alive("node2")
    await south.write(confirm("node1", 3, 1000 + 60))
    await south.receive_update(four=Health.ONLINE)
    assert south.known[OTHER] is Health.ONLINE
    await eventually(lambda: south.is_alive("node1"))


async def test_no_chassis_is_dead_when_most_are_silent(south: Southbound) -> None:
    await south.write(*BINDINGS, monitor(FOUR, "online"), monitor(OTHER, "offline"))
    await south.write(confirm("node3", 2, 2000))
    await south.reconnect()
    assert south.reader.max_nb_cfg == 2
    await south.receive_update(four=Health.ONLINE, other=Health.ERROR)
    assert south.reader.counts()["dead"] == 0


async def test_new_offline_row_counts_only_after_its_first_probe_was_due(south: Southbound) -> None:
    """A new row of status offline counts only after its first probe was due, because newer OVN releases create every
    row so."""

    await south.write(*BINDINGS, *(monitor(each, "offline", **probed_every(1000)) for each in (FOUR, OTHER)))
    await eventually_equal(lambda: len(south.reader._tables._statuses), 2)
    await south.write(send_update(FOUR, "online"), monitor(SIX, "offline", **probed_every(1)))
    await south.receive_update(four=Health.ONLINE, six=Health.ERROR)
    assert OTHER not in south.known
    await south.write(send_update(FOUR, "offline"))
    await south.receive_update(four=Health.ERROR)


def probed_every(seconds: int) -> dict[str, Json]:
    return {"options": ["map", [["interval", str(seconds)], ["timeout", str(seconds)]]]}


@pytest.mark.virtual_clock
async def test_new_offline_row_counts_once_a_probe_can_have_timed_out() -> None:
    told: dict[Endpoint, Health | None] = {}
    reader = SouthboundReader(SouthboundSettings(remotes=parse_remotes("unix:/nowhere")), hears(HEALTH, told.update))
    rows = [monitor(each, "offline", **probed_every(seconds))["row"] for each, seconds in ((FOUR, 1), (OTHER, 5))]
    see(reader, FullContents(tables=thousands(0)))
    see(
        reader,
        ContentChanges(tables={"Service_Monitor": {f"m{place}": {"insert": row} for place, row in enumerate(rows)}}),
    )
    seen = list[dict[Endpoint, Health | None]]()
    for seconds in (1.9, 0.2, 7.8, 0.2):
        await asyncio.sleep(seconds)
        seen.append(dict(told))
    assert seen == [{}, {FOUR: Health.ERROR}, {FOUR: Health.ERROR}, {FOUR: Health.ERROR, OTHER: Health.ERROR}]
    await reader.close()


async def test_new_offline_row_keeps_the_last_known_health(south: Southbound) -> None:
    await south.write(*BINDINGS, monitor(FOUR, "error"), monitor(OTHER, "online"))
    await south.receive_update(four=Health.ERROR, other=Health.ONLINE)
    count = len(south.told)
    await south.write(delete_rows(FOUR), delete_rows(OTHER), monitor(FOUR, "offline"), monitor(OTHER, "offline"))
    await eventually_equal(lambda: len(south.reader._tables._unprobed), 2)
    assert south.told[count:] == []


@pytest.mark.parametrize("odd", [{"ip": "no address"}, {"protocol": "tcp", "port": 0, "ip": ""}])
async def test_unreadable_rows_are_skipped_and_counted(
    south: Southbound, odd: dict[str, Json], caplog: pytest.LogCaptureFixture
) -> None:
    await south.write(*BINDINGS, monitor(OTHER, "offline", **odd), monitor(FOUR, "online"))
    await south.receive_update(four=Health.ONLINE)
    assert south.reader.counts()["unreadable"] == 1
    await south.write(delete("Service_Monitor", "logical_port", "vm2"))
    await eventually_equal(lambda: south.reader.counts()["unreadable"], 0)
    assert len([line for line in caplog.messages if "skipping unreadable rows" in line]) == 1


def test_row_with_an_unknown_protocol_affects_no_other_row() -> None:
    """Rows with an unknown protocol, such as ICMP of OVN 26.03, affect no other row."""
    tables, row = SouthboundTables(0.0), {"ip": "10.0.0.11", "logical_port": "vm1", "port": 0, "protocol": "icmp"}
    good = {"ip": "10.0.0.12", "logical_port": "vm2", "port": 80, "protocol": "tcp", "status": "online"}
    assert tables.change({"Service_Monitor": {"a": {"initial": row}, "b": {"initial": good}}}) == {OTHER}
    assert tables.health(OTHER, None) is Health.ONLINE
    assert tables.unreadable == {"a": "'icmp' is not a valid Transport"}


def test_second_row_for_an_endpoint_is_ignored() -> None:
    """A second row for one endpoint, with the address in another form, is ignored; later both rows are deleted."""
    tables = SouthboundTables(0.0)
    ours = {"ip": "fd00::11", "logical_port": "vm1", "port": 80, "protocol": "tcp", "status": "online"}
    theirs = {**ours, "ip": "fd00:0::11", "status": "offline"}
    (endpoint,) = tables.change({"Service_Monitor": {"a": {"initial": ours}, "b": {"insert": theirs}}})
    assert tables.health(endpoint, None) is Health.ONLINE
    assert tables.unreadable == {"b": "a second row for one endpoint"}
    tables.change({"Service_Monitor": {"b": {"delete": theirs}}})
    assert tables.health(endpoint, None) is Health.ONLINE
    tables.change({"Service_Monitor": {"a": {"delete": ours}}})
    assert tables.health(endpoint, None) is None


async def test_row_recreated_in_one_transaction_is_read(south: Southbound) -> None:
    await south.write(*BINDINGS, monitor(FOUR, "online"))
    await south.receive_update(four=Health.ONLINE)
    await south.write(delete_rows(FOUR), monitor(FOUR, "error"))
    await south.receive_update(four=Health.ERROR)
    await south.write(delete_rows(FOUR))
    await south.receive_update(four=None)


async def test_last_health_holds_until_the_database_returns(southbound: OvsdbServer, south: Southbound) -> None:
    await south.write(*BINDINGS, monitor(FOUR, "error"), monitor(SIX, "online"), monitor(OTHER, "online"))
    await south.receive_update(four=Health.ERROR, six=Health.ONLINE, other=Health.ONLINE)
    for _ in range(3):
        count = len(south.told)
        southbound.stop()
        await eventually(lambda: not south.reader.connected)
        assert len(south.told) == count
        southbound.start()
        await south.reader.wait_connected(DEADLINE)
        assert len(south.told) == count, "nothing has changed"
    southbound.stop()
    await eventually(lambda: not south.reader.connected)
    southbound.start()
    await south.write(send_update(FOUR, "online"), delete_rows(SIX), bind("vm2", up=False))
    await south.receive_update(four=Health.ONLINE, six=None, other=Health.UNPLUGGED)


async def test_lost_database_contents_mark_no_member_down(south: Southbound) -> None:
    await south.write(*BINDINGS, monitor(FOUR, "error"), monitor(SIX, "online"))
    await south.receive_update(four=Health.ERROR, six=Health.ONLINE)
    await south.write(*({"op": "delete", "table": name, "where": []} for name in ("Service_Monitor", "Port_Binding")))
    await south.receive_update(four=None, six=None)


async def test_row_with_an_invalid_address_is_ignored(south: Southbound) -> None:
    await south.write(*BINDINGS, monitor(FOUR, "online"), monitor(OTHER, "offline", ip="no address"))
    await south.receive_update(four=Health.ONLINE)
    await south.write(
        {**send_update(OTHER, "online"), "where": [["ip", "==", "no address"]]}, send_update(FOUR, "offline")
    )
    await south.receive_update(four=Health.ERROR)
    assert set(south.known) == {FOUR}


def datapath(key: int, **names: str) -> Json:
    return {
        "op": "insert",
        "table": "Datapath_Binding",
        "row": {"tunnel_key": key, "external_ids": ["map", [*names.items()]]},
    }


async def test_datapath_has_the_name_of_its_switch_or_router(south: Southbound) -> None:
    await south.write(datapath(1, name="net1"), datapath(2, name="r1"))
    await eventually_equal(lambda: south.reader.locate(Datapath(2)), "r1")
    assert south.reader.locate(Datapath(1)) == "net1"
    [row] = await south.client.transact(
        [{"op": "select", "table": "Datapath_Binding", "where": [["tunnel_key", "==", 2]], "columns": ["_uuid"]}],
        10,
    )
    uuid = row["rows"][0]["_uuid"][1]
    for zone, name in ((f"{uuid}_dnat", "r1"), (f"{uuid}_snat", "r1"), ("r1_dnat", "r1"), ("vm1", "vm1")):
        assert south.reader.locate(ConntrackZone(zone)) == name
    gone = {"op": "delete", "table": "Datapath_Binding", "where": [["tunnel_key", "==", 1]]}
    await south.write(gone, datapath(1, name="net2"))
    await eventually_equal(lambda: south.reader.locate(Datapath(1)), "net2")
    await south.write(gone)
    await eventually_equal(lambda: south.reader.locate(Datapath(1)), None)


def chassis(name: str) -> Json:
    return {
        "op": "insert",
        "table": "Chassis",
        "uuid-name": f"row_{name}",
        "row": {"name": name, "encaps": ["named-uuid", f"encap_{name}"]},
    }


def encap(name: str) -> Json:
    row = {"type": "geneve", "ip": f"10.9.9.{name[1:]}", "chassis_name": name}
    return {"op": "insert", "table": "Encap", "uuid-name": f"encap_{name}", "row": row}


def cms_options(name: str, **config: str) -> Json:
    pairs = [[key.replace("_", "-"), value] for key, value in {"datapath_type": "netdev", **config}.items()]
    row = {"other_config": ["map", pairs]}
    return {"op": "update", "table": "Chassis", "where": [["name", "==", name]], "row": row}


async def test_zones_of_a_chassis_are_read_from_its_options(south: Southbound) -> None:
    """Zones of a chassis are read from the option that ovn-controller passes on, next to other options."""

    def zones() -> dict[str, frozenset[str]]:
        return {name: each.zones for name, each in south.snapshot.chassis.items() if name in ("n1", "n2")}

    said = "enable-chassis-as-gw, availability-zones=az1: az2 :,availability-zones=no"
    await south.write(encap("n1"), chassis("n1"), encap("n2"), chassis("n2"))
    await south.write(cms_options("n1", ovn_cms_options=said))
    await eventually_equal(zones, {"n1": {"az1", "az2"}, "n2": frozenset()})
    await south.write(cms_options("n1", ovn_cms_options=said, iface_types="geneve"))
    await south.write(cms_options("n2", ovn_cms_options="availability-zones=az2"))
    await eventually_equal(zones, {"n1": {"az1", "az2"}, "n2": {"az2"}})
    await south.write(cms_options("n1", ovn_cms_options="availability-zones=az3"), cms_options("n2"))
    await eventually_equal(zones, {"n1": {"az3"}, "n2": frozenset()})


async def on(south: Southbound, port: str, uuid: str | None) -> None:
    where = [["logical_port", "==", port]]
    row = {"chassis": ["uuid", uuid] if uuid else ["set", []]}
    await south.write({"op": "update", "table": "Port_Binding", "where": where, "row": row})


async def test_ports_of_a_chassis_are_read_from_port_bindings(south: Southbound) -> None:
    [*_, two] = BINDINGS
    gateway = {
        **two,
        "row": {**two["row"], "logical_port": "cr-lrp-out", "tunnel_key": 9, "type": "chassisredirect"},
    }
    await south.write(encap("n1"), chassis("n1"), encap("n2"), chassis("n2"), *BINDINGS, gateway)
    await south.write(monitor(FOUR, "online"))
    await eventually(lambda: south.ports_on("n1") is not None)
    assert (south.ports_on("n1"), south.ports_on("n3")) == (frozenset(), None)
    found = await south.client.transact([{"op": "select", "table": "Chassis", "where": []}], DEADLINE)
    uuids = {row["name"]: row["_uuid"][1] for row in found[0]["rows"]}
    for port in ("vm1", "vm2", "cr-lrp-out"):
        await on(south, port, uuids["n1"])
    await eventually_equal(lambda: south.ports_on("n1"), {"vm1", "vm2", "out"})
    await on(south, "vm1", uuids["n2"])
    await south.write(bind("vm1", up=False), bind("vm2", up=False))
    await south.receive_update(four=Health.UNPLUGGED)
    await eventually_equal(lambda: south.ports_on("n2"), {"vm1"})
    assert south.ports_on("n1") == {"vm2", "out"}
    await on(south, "vm2", None)
    await on(south, "cr-lrp-out", None)
    await eventually_equal(lambda: south.ports_on("n1"), frozenset())
    await south.write(bind("vm1", up=True))
    await south.receive_update(four=Health.ONLINE)
    await south.write({"op": "delete", "table": "Chassis", "where": [["name", "==", "n2"]]})
    await eventually_equal(lambda: south.ports_on("n2"), None)


async def test_node_of_a_port_is_the_hostname_of_its_chassis(south: Southbound) -> None:
    """The node of a port is its chassis' hostname, or none if the port is not up. Only changes are reported."""

    [*_, two] = BINDINGS
    gateway = {
        **two,
        "row": {**two["row"], "logical_port": "cr-lrp-out", "tunnel_key": 9, "type": "chassisredirect"},
    }
    del gateway["row"]["up"]
    await south.write(*BINDINGS, gateway)
    await south.sees(vm1="node1", vm2="node2", out="node2")
    host = {
        "op": "update",
        "table": "Chassis",
        "where": [["name", "==", "node2"]],
        "row": {"hostname": "big.example"},
    }
    count = len(south.seen)
    await south.write(host, bind("vm1", up=False))
    await south.sees(vm2="big.example", out="big.example")
    assert south.seen[count:] == [{"vm1": None, "vm2": "big.example", "out": "big.example"}]
    found = await south.client.transact([{"op": "select", "table": "Chassis", "where": []}], DEADLINE)
    uuids = {row["name"]: row["_uuid"][1] for row in found[0]["rows"]}
    await south.write(bind("vm1", up=True))
    await on(south, "vm2", uuids["node1"])
    await south.sees(vm1="node1", vm2="node1", out="big.example")
    await south.write(delete("Chassis", "name", "node1"), delete("Chassis_Private", "name", "node1"))
    await south.sees(out="big.example")
    await south.write(delete("Port_Binding", "logical_port", "cr-lrp-out"))
    await south.sees()


async def test_last_port_bindings_hold_while_the_database_is_down(southbound: OvsdbServer, south: Southbound) -> None:
    await south.write(*BINDINGS)
    await south.sees(vm1="node1", vm2="node2")
    southbound.stop()
    await eventually(lambda: not south.reader.connected)
    assert south.nodes() == {"vm1": "node1", "vm2": "node2"}
    southbound.start()
    await south.reader.wait_connected(DEADLINE)
    assert south.nodes() == {"vm1": "node1", "vm2": "node2"}
    await south.write(delete("Port_Binding", "logical_port", "vm2"))
    await south.sees(vm1="node1")


async def test_rebuilt_replica_reports_rows_deleted_during_the_outage() -> None:
    """A replica is rebuilt after a reconnect, because a standalone server sends all contents, but no deletions."""
    known: list[PluggedUpdate] = []
    reader = SouthboundReader(SouthboundSettings(remotes=parse_remotes("unix:/nowhere")), hears(PLUGGED, known.append))

    see(reader, FullContents(tables=thousands(3)))
    see(reader, FullContents(tables=thousands(2)))
    assert known == [dict.fromkeys(("p0", "p1", "p2"), "host"), {"p0": "host", "p1": "host", "p2": None}]


def hears(wanted: Fact[Any], hear: Callable[[Any], object]) -> Callable[[Fact[Any], Any], None]:
    """Return an observer of one kind of fact."""

    def observe(fact: Fact[Any], news: Any) -> None:
        if fact is wanted:
            hear(news)

    return observe


def see(reader: SouthboundReader, event: Event) -> None:
    """Process an event without yielding."""
    for _ in reader._handle_event(event) or ():
        pass


def thousands(count: int) -> dict[str, dict[str, dict[str, Json]]]:
    """Return all rows of a Southbound database with this many ports on one node."""
    row = {"chassis": ["uuid", "c"], "up": True}
    ports = {f"u{number}": {"initial": {"logical_port": f"p{number}", **row}} for number in range(count)}
    return {"Chassis": {"c": {"initial": {"name": "n", "hostname": "host"}}}, "Port_Binding": ports}


@pytest.mark.max_steps(1_000_000)
async def test_work_for_a_thousand_ports_is_independent_of_the_total() -> None:
    """The work depends on the changed ports alone, not on the number of others. The contents are processed without a
    return to the loop here."""
    few, many = steps_for_ports(2_000), steps_for_ports(20_000)
    assert few == many
    assert max(many) < 30_000


def steps_for_ports(count: int) -> list[int]:
    """Return the steps for one port and for a thousand that go down and up again, among this many."""
    snapshot = Snapshot()

    def take(fact: Fact[Any], news: Any) -> None:
        nonlocal snapshot
        snapshot = with_facts(snapshot, fact, news)

    def took(changing: int, up: bool) -> int:
        changed = {f"u{number}": {"modify": {"up": up}} for number in range(changing)}
        before = step()
        see(reader, ContentChanges(tables={"Port_Binding": changed}))
        return step() - before

    reader = SouthboundReader(SouthboundSettings(remotes=parse_remotes("unix:/nowhere")), take)
    see(reader, FullContents(tables=thousands(count)))
    assert len(snapshot.plugged) == count
    return [took(changing, up) for changing in (1, 1000) for up in (False, True)]


def test_lookups_before_the_first_read_raise_unreachable(tmp_path: Path) -> None:
    remotes = parse_remotes(f"unix:{tmp_path}/nowhere")
    with pytest.raises(Unreachable):
        SouthboundReader(SouthboundSettings(remotes=remotes), print).locate(Datapath(1))
    with pytest.raises(Unreachable):
        SouthboundReader(SouthboundSettings(remotes=remotes), print).check_connected()


def test_newest_result_is_reported_last_during_a_long_update() -> None:
    """Updates that arrive while ten thousand earlier ones are processed, over many turns of the loop, are reported
    last."""
    told: dict[Endpoint, Health | None] = {}
    seen = dict.fromkeys((Endpoint(name, parse_address("10.0.0.1"), 80, Transport.TCP) for name in "ab"), Health.ERROR)
    reader = SouthboundReader(SouthboundSettings(remotes=parse_remotes("unix:/nowhere")), hears(HEALTH, told.update))
    reader._tables.health = lambda endpoint, _: seen[endpoint]  # type: ignore[method-assign]
    first, second = seen
    older = reader._report_all([first, second])
    next(older)
    seen[first] = Health.ONLINE
    for _ in reader._report_all([first]):
        pass
    for _ in older:
        pass
    assert told == {first: Health.ONLINE, second: Health.ERROR}
    seen[second] = Health.ONLINE
    assert list(reader._report_all([second])) == [None]
    assert told == dict.fromkeys(seen, Health.ONLINE)


async def test_interrupted_update_is_reported_again() -> None:
    """Updates whose processing a disconnect has interrupted are reported again."""
    row = {"ip": "10.0.0.11", "logical_port": "vm1", "port": 80, "protocol": "tcp"}
    contents = FullContents(tables={"Service_Monitor": {"a": {"initial": {**row, "status": "offline"}}}})
    begun: list[HealthUpdate] = []
    taken_in: list[HealthUpdate] = []

    def observe(fact: Fact[Any], news: Any) -> Iterator[None]:
        if fact is HEALTH:
            begun.append(news)
            yield
            taken_in.append(news)

    reader = SouthboundReader(SouthboundSettings(remotes=parse_remotes("unix:/nowhere")), observe)

    work = reader._handle_event(contents)
    assert work is not None
    while not begun:
        next(work)
    work.close()
    assert taken_in == []
    see(reader, contents)
    assert taken_in == [{FOUR: Health.ERROR}]
    see(reader, contents)
    assert begun == [{FOUR: Health.ERROR}] * 2


async def test_deletions_are_reported_after_an_interrupted_read() -> None:
    """Ports and chassis that went during an outage are reported, even if the first read of the contents is
    interrupted."""
    chassis = {"a": {"initial": {"name": "node1", "hostname": "host1"}}}
    port = {"b": {"initial": {"logical_port": "vm1", "chassis": ["uuid", "a"], "up": True, "type": ""}}}
    told: list[tuple[Fact[Any], Any]] = []

    def observe(fact: Fact[Any], news: Any) -> Iterator[None]:
        told.append((fact, news))
        yield

    reader = SouthboundReader(SouthboundSettings(remotes=parse_remotes("unix:/nowhere")), observe)

    see(reader, FullContents(tables={"Chassis": chassis, "Port_Binding": port}))
    work = reader._handle_event(FullContents(tables={}))
    assert work is not None
    next(work, None)
    work.close()
    told.clear()
    see(reader, FullContents(tables={}))
    assert (PLUGGED, {"vm1": None}) in told
    assert (CHASSIS, {"node1": None}) in told

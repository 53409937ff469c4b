"""The OVN driver against a real ovsdb-server: every case, and interference by other clients and the network."""

import asyncio
import random
import signal
import socket
import string
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.compilers.ovn import OVN
from fairlead.dataplane.backends import render_backends
from fairlead.dataplane.ovn import (
    GroupMember,
    LoadBalancer,
    LoadBalancerGroup,
    LoadBalancerHealthCheck,
    LogicalRouter,
    LogicalRouterPort,
    LogicalSwitch,
    LogicalSwitchPort,
    OvnRow,
    PortAddress,
    RouterGroup,
    StaticRoute,
    SwitchGroup,
    SwitchPortAddress,
    VirtualService,
    by_key,
    pairs,
)
from fairlead.dataplane.ovn_chassis import ChassisVariable
from fairlead.dataplane.ovn_rules import LogicalRouterPolicy
from fairlead.dataplane.ovn_tables import references
from fairlead.dataplane.rows import NO_ROWS, Diff, Rows, Update, diff
from fairlead.drivers.fake import FakeDriver
from fairlead.drivers.interface import DriverError, MissingReference, Standby, Unavailable
from fairlead.drivers.ovn.northbound.columns import decode_row, encode_columns
from fairlead.drivers.ovn.northbound.driver import OvnDriver, OvnSettings
from fairlead.drivers.ovn.northbound.encoder import Encoder
from fairlead.drivers.ovn.northbound.marks import Mark, join_mark, split_mark
from fairlead.drivers.ovsdb.client import Client, ContentChanges, Event, FullContents, Settings
from fairlead.drivers.ovsdb.protocol import Framer, Notification, Reply, TableMonitor
from fairlead.drivers.ovsdb.remotes import parse_remotes
from fairlead.drivers.ovsdb.values import (
    Json,
    decode_map,
    decode_set,
    decode_uuids,
    encode_map,
    encode_set,
    encode_uuid,
)
from fairlead.model.documents.addresses import derive_mac
from fairlead.model.documents.network import PortUse
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.unmanaged import UnmanagedNetwork, UnmanagedPort, UnmanagedRouter, is_unmanaged
from fairlead.model.registry.changeset import owners_with_rows
from fairlead.reconciler.contention import FREE_REPAIRS, MIN_PAUSE, Contention
from fairlead.reconciler.loop import Reconciler
from harness.case import Case, RowPlacement, State, parse_chassis, parse_model, parse_plugged, read_case, render_rows
from harness.ovsdb_server import DATABASE, FAST_TIMING, KILL_ERRORS, OvsdbServer
from harness.waiting import DEADLINE, eventually, eventually_equal
from harness.walk import EMPTY_STATE, SimulatedDeployment, expected_rows, paths

STORIES = [read_case(path) for path in sorted((Path(__file__).parent.parent / "cases").glob("*.txt"))]
MARK = Mark("test, 1")
TABLES = (
    "Logical_Switch",
    "Logical_Switch_Port",
    "Logical_Router",
    "Logical_Router_Port",
    "Gateway_Chassis",
    "NAT",
    "Logical_Router_Static_Route",
    "Logical_Router_Policy",
    "Load_Balancer",
    "Load_Balancer_Health_Check",
    "Load_Balancer_Group",
    "Port_Group",
    "ACL",
    "QoS",
    "Chassis_Template_Var",
)

NET, NET2 = Owner(Kind.NETWORK, "net1"), Owner(Kind.NETWORK, "net2")
ROUTER, PORT = Owner(Kind.ROUTER, "r1"), Owner(Kind.PORT, "vm1")
VIPS, WEB, API = Owner(Kind.VIP_NETWORK, "net1"), Owner(Kind.LOAD_BALANCER, "web"), Owner(Kind.LOAD_BALANCER, "api")


def ovn_settings(remotes: str, mark: str = MARK.deployment) -> OvnSettings:
    return OvnSettings(remotes=parse_remotes(remotes), mark=mark, timing=FAST_TIMING, timeout=DEADLINE)


@pytest.fixture(autouse=True)
async def _no_task_is_left() -> AsyncIterator[None]:
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}


class RecordingDriver(OvnDriver):
    """OVN driver that records its callbacks."""

    def __init__(self, remotes: str, mark: str = MARK.deployment) -> None:
        self.foreign: list[Owner] = []
        self.abilities: list[frozenset[str]] = []
        self.said: list[str] = []
        super().__init__(
            ovn_settings(remotes, mark),
            on_foreign_change=lambda owner, what: self.foreign.append(owner),
            on_abilities=lambda abilities: self.abilities.append(abilities),  # noqa: PLW0108
            on_ready=lambda: self.said.append("ready"),
            on_unavailable=self.said.append,
        )

    async def put(self, owner: Owner, *rows: OvnRow) -> None:
        """Make these rows the owner's only rows."""
        await self.apply(owner, diff(by_key(rows), await self.read(owner)))

    async def lines(self) -> list[str]:
        return sorted(str(row) for rows in (await self.read_all()).values() for row in rows.values())


class Observer:
    """Another client of the same database, which sees every column of Fairlead's tables in OVSDB format, and writes."""

    def __init__(self, server: OvsdbServer) -> None:
        columns = ("external_ids", "name", "enabled")
        chosen = {
            "Logical_Switch": (*columns[:2], "ports", "qos_rules", "load_balancer_group", "other_config"),
            "Logical_Switch_Port": (*columns, "type", "addresses", "port_security", "options", "tag", "tag_request"),
            "Logical_Router": (
                *(*columns, "ports", "static_routes", "nat", "load_balancer_group", "options", "policies"),
            ),
            "Logical_Router_Port": (*columns, "mac", "networks", "gateway_chassis", "options"),
            "Gateway_Chassis": (*columns[:2], "chassis_name", "priority", "options"),
            "NAT": ("external_ids", "type", "external_ip", "logical_ip", "external_mac", "logical_port", "options"),
            "Logical_Router_Static_Route": ("external_ids", "ip_prefix", "nexthop", "policy", "options"),
            "Logical_Router_Policy": ("external_ids", "priority", "match", "action", "nexthop", "nexthops", "options"),
            "Load_Balancer": (
                *(*columns[:2], "protocol", "vips", "selection_fields", "options"),
                *("health_check", "ip_port_mappings"),
            ),
            "Load_Balancer_Health_Check": ("external_ids", "vip", "options"),
            "Load_Balancer_Group": ("name", "load_balancer"),
            "Port_Group": (*columns[:2], "ports", "acls"),
            "ACL": ("external_ids", "direction", "priority", "match", "action", "options"),
            "QoS": ("external_ids", "direction", "priority", "match", "action", "bandwidth"),
            "Chassis_Template_Var": ("external_ids", "chassis", "variables"),
        }
        self.changes: list[Json] = []
        tables = {table: TableMonitor(columns=columns) for table, columns in chosen.items()}
        self.client = Client(
            Settings(remotes=parse_remotes(server.remote), database=DATABASE, tables=tables, timing=FAST_TIMING),
            self.see,
        )

    def see(self, event: Event) -> None:
        if isinstance(event, ContentChanges):
            self.changes.append(event.tables)

    async def __aenter__(self) -> "Observer":
        self.client.start()
        await self.client.wait_connected(DEADLINE)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def write(self, *operations: Json) -> list[Json]:
        return await self.client.transact(operations, DEADLINE)

    async def settle(self) -> int:
        """Return the number of updates, after all earlier writes have been received."""
        await self.write()
        return len(self.changes)

    async def raw(self) -> dict[str, dict[str, Json]]:
        """Return every column of every row of Fairlead's tables."""
        results = await self.write(*({"op": "select", "table": table, "where": []} for table in TABLES))
        return {
            table: {row["_uuid"][1]: row for row in result["rows"]}
            for table, result in zip(TABLES, results, strict=True)
        }

    async def update(self, key: tuple[str, ...], **columns: Json) -> None:
        [result] = await self.write({"op": "update", "table": key[0], "where": [where(key)], "row": columns})
        assert result == {"count": 1}

    async def mutate(self, key: tuple[str, ...], *mutations: Json) -> None:
        [result] = await self.write({"op": "mutate", "table": key[0], "where": [where(key)], "mutations": mutations})
        assert result == {"count": 1}


def where(key: tuple[str, ...]) -> Json:
    return ["_uuid", "==", uuid(key)]


def uuid(key: tuple[str, ...]) -> Json:
    return encode_uuid(MARK.uuid(key))


def raw_lines(raw: dict[str, dict[str, Json]]) -> list[str]:
    """Return Fairlead's rows in the format of a case, decoded independently of the codec."""
    marks = {
        table: {u: decode_map(row.get("external_ids", ["map", []])) for u, row in raw[table].items()} for table in raw
    }
    groups = {
        u: split_mark(row["name"])[3]
        for u, row in raw["Load_Balancer_Group"].items()
        if len(split_mark(row["name"])) == 4
    }

    def ours(table: str) -> list[tuple[str, Json]]:
        return [(u, row) for u, row in raw[table].items() if marks[table][u].get("fairlead") == MARK.deployment]

    def words(row: Json, column: str) -> str:
        return "".join(f" {column}:{key}={value}" for key, value in sorted(decode_map(row[column]).items()))

    def title(table: str, identity: str) -> str:
        text = marks[table][identity].get("fairlead:name")
        return f" title={text!r}" if text else ""

    def state(row: Json) -> str:
        return " disabled" if row["enabled"] is False else ""

    def name_of(table: str, identity: str) -> str:
        return str(raw[table][identity]["name"])

    def called(table: str, identity: str) -> str:
        """Return the name of a row, as Fairlead's rows refer to it."""
        name = name_of(table, identity)
        return name if marks[table][identity].get("fairlead") == MARK.deployment else f"{name}@{identity}"

    lines = [f"Load_Balancer_Group {name}" for name in groups.values()]
    for identity, name in groups.items():
        members = decode_uuids(raw["Load_Balancer_Group"][identity]["load_balancer"])
        lines += [f"Load_Balancer_Group {name} += {name_of('Load_Balancer', member)}" for member in members]
    for switch, row in ours("Logical_Switch"):
        lines.append(f"Logical_Switch {row['name']}{title('Logical_Switch', switch)}{words(row, 'other_config')}")
    for switch, row in raw["Logical_Switch"].items():
        switch_name, held = called("Logical_Switch", switch), decode_uuids(row["load_balancer_group"])
        lines += [f"Logical_Switch {switch_name} += {groups[u]}" for u in held if u in groups]
        for u in decode_uuids(row["qos_rules"]):
            qos, name = raw["QoS"][u], split_mark(marks["QoS"][u]["fairlead:key"])[1]
            head = f"QoS {name} switch={switch_name} priority={qos['priority']} {qos['direction']}"
            lines.append(f"{head} rate={decode_map(qos['bandwidth'])['rate']} {qos['match']!r}")
        for u in decode_uuids(row["ports"]):
            port = raw["Logical_Switch_Port"][u]
            if marks["Logical_Switch_Port"][u].get("fairlead") != MARK.deployment:
                continue
            kind = f" type={port['type']}" if port["type"] else ""
            given = {mark.removeprefix("fairlead:address:") for mark in marks["Logical_Switch_Port"][u]}
            texts = "".join(
                f" {column}={text!r}"
                for column in ("addresses", "port_security")
                for text in decode_set(port[column])
                if column == "port_security" or text not in given
            )
            lines += [
                f"Logical_Switch_Port {port['name']} += {text}"
                for text in decode_set(port["addresses"])
                if text in given
            ]
            head = f"Logical_Switch_Port {port['name']} switch={switch_name}{title('Logical_Switch_Port', u)}"
            tags = ("tag", "tag_request")
            tag = "".join(f" {column}={text}" for column in tags for text in decode_set(port[column]))
            lines.append(head + kind + texts + words(port, "options") + tag + state(port))
    for router, row in ours("Logical_Router"):
        lines.append(
            f"Logical_Router {row['name']}{title('Logical_Router', router)}{state(row)}{words(row, 'options')}"
        )
        for route in (raw["Logical_Router_Static_Route"][u] for u in decode_uuids(row["static_routes"])):
            parts = [row["name"], *decode_set(route["policy"]), route["ip_prefix"], "via", route["nexthop"]]
            lines.append(" ".join(["Logical_Router_Static_Route", *parts]))
        for u in decode_uuids(row["policies"]):
            policy, name = (
                raw["Logical_Router_Policy"][u],
                split_mark(marks["Logical_Router_Policy"][u]["fairlead:key"])[1],
            )
            head = f"Logical_Router_Policy {name} router={row['name']} priority={policy['priority']} {policy['action']}"
            lines.append(" ".join([head, *decode_set(policy["nexthops"]), repr(policy["match"])]))
        for u in decode_uuids(row["nat"]):
            nat, name = raw["NAT"][u], split_mark(marks["NAT"][u]["fairlead:key"])[1]
            lines.append(f"NAT {name} router={row['name']} {nat['type']} {nat['external_ip']} {nat['logical_ip']}")
        for u in decode_uuids(row["ports"]):
            port = raw["Logical_Router_Port"][u]
            for gateway in (raw["Gateway_Chassis"][each] for each in decode_uuids(port["gateway_chassis"])):
                assert gateway["name"] == f"{port['name']}_{gateway['chassis_name']}"
                where = f"{port['name']} {gateway['chassis_name']}"
                lines.append(f"Gateway_Chassis {where} priority={gateway['priority']}")
            given = {mark.removeprefix("fairlead:address:") for mark in marks["Logical_Router_Port"][u]}
            own = ",".join(text for text in decode_set(port["networks"]) if text not in given)
            head = f"Logical_Router_Port {port['name']}"
            rest = f"{state(port)}{words(port, 'options')}"
            lines.append(f"{head} router={row['name']} mac={port['mac']} networks={own}{rest}")
            lines += [f"{head} += {text}" for text in decode_set(port["networks"]) if text in given]
    for router, row in raw["Logical_Router"].items():
        held = [groups[u] for u in decode_uuids(row["load_balancer_group"]) if u in groups]
        lines += [f"Logical_Router {called('Logical_Router', router)} += {group}" for group in held]
    for u, row in ours("Load_Balancer"):
        vips = {vip: tuple(text.split(",")) if text else () for vip, text in decode_map(row["vips"]).items()}
        services = "".join(f" {vip}={render_backends(vips[vip])}" for vip in sorted(vips))
        fields = ",".join(decode_set(row["selection_fields"]))
        chosen = f" selection_fields={fields}" if fields else ""
        protocol = f" protocol={row['protocol']}" if isinstance(row["protocol"], str) else ""  # not the empty set
        head = f"Load_Balancer {row['name']}{protocol}{title('Load_Balancer', u)}"
        gone = marks["Load_Balancer"][u].get("fairlead:instead-of", "").replace(",", "/")
        instead = f" instead_of={gone}" if gone else ""
        lines.append(f"{head}{services}{chosen}{words(row, 'options')}{words(row, 'ip_port_mappings')}{instead}")
        for check in (raw["Load_Balancer_Health_Check"][u] for u in decode_uuids(row["health_check"])):
            head = f"Load_Balancer_Health_Check {check['vip']} load_balancer={row['name']}"
            lines.append(f"{head}{words(check, 'options')}")
    for _, row in ours("Port_Group"):
        head = f"Port_Group {row['name']}"
        lines.append(head)
        lines += [f"{head} += {called('Logical_Switch_Port', u)}" for u in decode_uuids(row["ports"])]
        for u in decode_uuids(row["acls"]):
            acl, name = raw["ACL"][u], split_mark(marks["ACL"][u]["fairlead:key"])[1]
            head = f"ACL {name} group={row['name']} priority={acl['priority']}"
            lines.append(f"{head} {acl['direction']} {acl['action']} {acl['match']!r}{words(acl, 'options')}")
    for row in raw["Chassis_Template_Var"].values():
        lines += [
            f"Chassis_Template_Var {row['chassis']} += {name}={render_backends(tuple(text.split(',')))}"
            for name, text in decode_map(row["variables"]).items()
            if name in our_variables(row)
        ]
    return sorted(lines)


def has_no_rows(raw: dict[str, dict[str, Json]]) -> bool:
    """Return whether no rows remain, except empty ones of chassis."""
    emptied = raw["Chassis_Template_Var"].values()
    return not any(rows for table, rows in raw.items() if table != "Chassis_Template_Var") and all(
        row["variables"] == ["map", []] and row["external_ids"] == encode_map({"fairlead": MARK.deployment})
        for row in emptied
    )


def our_variables(row: Json) -> list[str]:
    marks = decode_map(row["external_ids"])
    ours = (mark for mark, text in marks.items() if split_mark(text)[0] == MARK.deployment)
    return [mark.removeprefix("fairlead:variable:") for mark in ours if mark.startswith("fairlead:variable:")]


def without_our_variables(row: Json) -> Json:
    ours = our_variables(row)
    variables = {name: text for name, text in decode_map(row["variables"]).items() if name not in ours}
    marks = {f"fairlead:variable:{name}" for name in ours}
    words = {mark: text for mark, text in decode_map(row["external_ids"]).items() if mark not in marks}
    return {**row, "variables": encode_map(variables), "external_ids": encode_map(words), "_version": None}


ELEMENTS = (
    ("Logical_Switch", "ports", "Logical_Switch_Port"),
    ("Logical_Switch", "qos_rules", "QoS"),
    ("Logical_Switch", "load_balancer_group", "Load_Balancer_Group"),
    ("Logical_Router", "load_balancer_group", "Load_Balancer_Group"),
)
"""Set columns of unmanaged rows that hold Fairlead's rows: table, column, and the table of the elements."""


def others_than_ours(raw: dict[str, dict[str, Json]]) -> dict[str, dict[str, Json]]:
    """Return the rows without Fairlead's mark."""

    def mark(row: Json) -> str:
        if "external_ids" in row:
            return str(decode_map(row["external_ids"]).get("fairlead"))
        return (*split_mark(row["name"]), "")[1]

    def without_ours(table: str, row: Json) -> Json:
        """Return the row without Fairlead's elements in its sets."""
        ours = {
            column: {u for u in decode_uuids(row[column]) if u in raw[of] and mark(raw[of][u]) == MARK.deployment}
            for holder, column, of in ELEMENTS
            if table == holder
        }
        left = {
            column: sorted(set(decode_uuids(row[column])) - elements) for column, elements in ours.items() if elements
        }
        kept = {"_version": None} if ours else {}
        return {**row, **{column: ["set", [["uuid", u] for u in uuids]] for column, uuids in left.items()}, **kept}

    others = {
        table: {u: without_ours(table, row) for u, row in rows.items() if mark(row) != MARK.deployment}
        for table, rows in raw.items()
    }
    shared = others["Chassis_Template_Var"]
    return {**others, "Chassis_Template_Var": {u: without_our_variables(row) for u, row in shared.items()}}


def written_by_others(story: Case) -> list[Json]:
    """Return Neutron's rows of all states: its networks and their ports, and its routers."""
    documents = (each for state in story.states for each in state.documents.values() if is_unmanaged(each))
    found = {each.row: each for each in documents}.values()
    operations: list[Json] = []
    for each in found:
        name, _, identity = each.row.partition("@")
        row: dict[str, Json] = {"name": name, "external_ids": encode_map({"neutron:revision_number": "1"})}
        if isinstance(each, UnmanagedNetwork):
            ports = [port.row for port in found if isinstance(port, UnmanagedPort) and port.network_id == each.id]
            row["ports"] = ["set", [encode_uuid(port.partition("@")[2]) for port in ports]]
            operations.append({"op": "insert", "table": "Logical_Switch", "uuid": identity, "row": row})
        elif isinstance(each, UnmanagedRouter):
            operations.append({"op": "insert", "table": "Logical_Router", "uuid": identity, "row": row})
        elif isinstance(each, UnmanagedPort):
            row["type"] = "router" if each.use in (PortUse.ROUTER_INTERFACE, PortUse.ROUTER_GATEWAY) else ""
            operations.append({"op": "insert", "table": "Logical_Switch_Port", "uuid": identity, "row": row})
    return operations


FOREIGN_WRITES = (
    {"op": "insert", "table": "Logical_Switch_Port", "uuid-name": "p", "row": {"name": "their-port"}},
    {
        "op": "insert",
        "table": "Load_Balancer",
        "uuid-name": "lb",
        "row": {"name": "web-tcp", "vips": encode_map({"10.0.0.10:80": "1.1.1.1:1"})},
    },
    {
        "op": "insert",
        "table": "Load_Balancer_Group",
        "uuid-name": "g",
        "row": {"name": "net1", "load_balancer": ["named-uuid", "lb"]},
    },
    {
        "op": "insert",
        "table": "Logical_Switch",
        "row": {
            "name": "net1",
            "ports": ["named-uuid", "p"],
            "load_balancer": ["named-uuid", "lb"],
            "load_balancer_group": ["named-uuid", "g"],
            "external_ids": encode_map({"neutron:mark": "x", "fairlead": "another deployment"}),
        },
    },
    {"op": "insert", "table": "Logical_Router", "row": {"name": "r1", "load_balancer_group": ["named-uuid", "g"]}},
    {
        "op": "insert",
        "table": "Chassis_Template_Var",
        "row": {
            "chassis": "chassis1",
            "variables": encode_map({"theirs": "1"}),
            "external_ids": encode_map({"a": "b"}),
        },
    },
)
"""Unmanaged rows, some with names that Fairlead uses too."""


NORTHBOUND = RowPlacement("ovn")


class NorthboundDeployment(SimulatedDeployment):
    """World whose dataplane is the real database."""

    def __init__(self, driver: RecordingDriver, observer: Observer) -> None:
        super().__init__()
        (site,) = self.sites
        site.driver = driver  # type: ignore[assignment]
        site.reconciler = self._make_reconciler(site)
        self.observer = observer

    @property
    def driver(self) -> RecordingDriver:  # type: ignore[override]
        return self.sites[0].driver  # type: ignore[return-value]

    async def check(self, state: State) -> None:
        wanted = expected_rows(state, NORTHBOUND)
        assert await self.driver.lines() == wanted
        assert raw_lines(await self.observer.raw()) == wanted
        assert self.driver.foreign == []
        seen = await self.observer.settle()
        self.reconciler.mark(owners_with_rows(self.snapshot))
        await self.run_until_idle()
        assert await self.observer.settle() == seen, "rewrote what was already right"
        self._check_status(state)

    async def check_after_restart(self, remote: str) -> None:
        """Check with a new process that has the model and no other memory."""
        async with RecordingDriver(remote) as other:
            await eventually(lambda: other.connected)
            world = NorthboundDeployment(other, self.observer)
            world.snapshot = self.snapshot
            assert await other.read_all() == await self.driver.read_all()
            assert await world.reconciler.plan() == {}
            assert await world.reconciler.resync() == 0

    async def repair(self) -> None:
        """Reconcile owners with drift until there are none, as a server does."""
        while self.driver.foreign:
            for owner in [self.driver.foreign.pop() for _ in list(self.driver.foreign)]:
                self.reconciler.read_again(owner)
            await self.run_until_idle()


# Cases


def memory(driver: RecordingDriver) -> dict[str, Any]:
    return {name: deepcopy(kept) for name, kept in vars(driver._replica).items() if name not in ("_mark", "variables")}


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.path.stem)
async def test_every_case_is_applied_and_removed_without_residue(story: Case, server: OvsdbServer) -> None:
    async with Observer(server) as observer, RecordingDriver(server.remote) as driver:
        await observer.write(*FOREIGN_WRITES, *written_by_others(story))
        others = others_than_ours(await observer.raw())
        await driver.wait_ready(DEADLINE)
        assert driver.said == ["ready"]
        assert await driver.read_all() == {}
        remembered = memory(driver)
        for way in paths(story.states).values():
            world = NorthboundDeployment(driver, observer)
            for state in way:
                await world.change_to(state)
                if way[0] is story.states[0]:
                    await world.check_after_restart(server.remote)
                assert others_than_ours(await observer.raw()) == others
        left = await observer.raw()
        assert {table: rows.keys() for table, rows in left.items() if table != "Chassis_Template_Var"} == {
            table: rows.keys() for table, rows in others.items() if table != "Chassis_Template_Var"
        }
        assert not any(line.partition(" ")[0] in TABLES for line in raw_lines(left)), "an element is left"
        assert others_than_ours(left) == others
        assert not any(our_variables(row) for row in left["Chassis_Template_Var"].values())
        assert await driver.read_all() == {}
        assert memory(driver) == remembered, "memory that leaks"
        assert not any(row.texts.keys() - {"theirs"} or row.marks for row in driver._replica.variables.rows.values())


# One database, two deployments


async def test_two_deployments_in_one_database_are_independent(server: OvsdbServer) -> None:
    async with RecordingDriver(server.remote, "one") as one, RecordingDriver(server.remote, "two") as two:
        await one.wait_ready(DEADLINE)
        await two.wait_ready(DEADLINE)  # each deployment has a lock of its own
        rows = [LoadBalancerGroup(name="net1"), SwitchGroup(switch="net1", group="net1")]
        for driver in (one, two):
            await driver.put(NET, LogicalSwitch(name="net1"))
            await driver.put(VIPS, *rows)
        await one.put(VIPS)
        assert await one.read_all() == {NET: by_key([LogicalSwitch(name="net1")])}
        assert await two.read_all() == {NET: by_key([LogicalSwitch(name="net1")]), VIPS: by_key(rows)}
        assert one.foreign == two.foreign == []


# Drift


MODEL = """\
network public external wire=physnet:100 203.0.113.0/24
network net1 10.0.0.0/24 fd00::/64 name=back
network net2 10.1.0.0/24
router r1 net1=10.0.0.1,fd00::1 net2=10.1.0.1 route=192.0.2.0/24:10.1.0.9 gateway:public=203.0.113.10
port vm1 net1 10.0.0.11 fd00::11
web vip=10.0.0.10 on=net1 tcp:80=a/10.0.0.11:8080,b/10.0.0.12:8080 tcp:443{allow=10.1.0.0/24}=- udp:53=a/10.0.0.11:53
six vip=fd00::10 on=net1 name=six tcp:80=a/[fd00::11]:8080
floating f1 public=203.0.113.50 r1=vm1:10.0.0.11
probes net1 10.0.0.2
watched vip=10.0.0.30 on=net1 tcp:80{monitor=TCP}=a/10.0.0.11:8080
local vip=10.0.0.40 on=net1 tcp:80{near}=a/10.0.0.11:8080,d/10.0.0.14:8080
port vm9 net1 10.0.0.200
local-ip lip net1 10.0.0.200 port=vm9 +vm1
plugged chassis1 vm1
plugged chassis2
"""
LB, GROUP = ("Load_Balancer", "web-tcp"), ("Load_Balancer_Group", "net1")
SWITCH, SWITCH2, LSP = ("Logical_Switch", "net1"), ("Logical_Switch", "net2"), ("Logical_Switch_Port", "vm1")
LRP, VIP_LRP = ("Logical_Router_Port", "lrp-r1-net1"), ("Logical_Router_Port", "lrp-vip-net1")
PORT_GROUP, ACL = ("Port_Group", "vip_net1"), ("ACL", "web-tcp-443 10.0.0.10")
ADDRESS = "fairlead:address:10.0.0.10/24"
SIX, WATCHED = Owner(Kind.LOAD_BALANCER, "six"), Owner(Kind.LOAD_BALANCER, "watched")
MONITOR = ("Load_Balancer", "watched-watched-tcp-80-monitor")
CHECK = ("Load_Balancer_Health_Check", MONITOR[1], "10.0.0.30:1")
PUBLIC, FLOATING = Owner(Kind.NETWORK, "public"), Owner(Kind.FLOATING_IP, "f1")


def make_state(model: str) -> State:
    documents, down = parse_model(model, {})
    known = {"down": down, "plugged": parse_plugged(model), "chassis": parse_chassis(model)}
    state = State(name="state", model=model, expected={}, documents=documents, **known)
    return replace(state, expected={NORTHBOUND: render_rows(state.snapshot())})


NEAR, LOCAL_IP = Owner(Kind.PER_CHASSIS_NETWORK, "net1"), Owner(Kind.LOCAL_IP, "lip")
VIP_LSP, HELD_ADDRESS = ("Logical_Switch_Port", "vip-net1"), f"{derive_mac('net1')} 10.0.0.200"
LOCAL = Owner(Kind.LOAD_BALANCER, "local")
_LOCAL_ROWS = [
    row for row in OVN.compile(make_state(MODEL).snapshot(), LOCAL).values() if isinstance(row, ChassisVariable)
]
VARIABLE = next(row.name for row in _LOCAL_ROWS if row.name.startswith("near_"))


def mutate_chassis(*mutations: Json) -> Json:
    where = [["chassis", "==", "chassis1"]]
    return {"op": "mutate", "table": "Chassis_Template_Var", "where": where, "mutations": list(mutations)}


def delete(key: tuple[str, ...]) -> Json:
    return {"op": "delete", "table": key[0], "where": [where(key)]}


def change(key: tuple[str, ...], **columns: Json) -> Json:
    return {"op": "update", "table": key[0], "where": [where(key)], "row": columns}


def mutate(key: tuple[str, ...], *mutations: Json) -> Json:
    return {"op": "mutate", "table": key[0], "where": [where(key)], "mutations": list(mutations)}


MISCHIEF: dict[str, tuple[Sequence[Json], set[Owner]]] = {
    "a load balancer goes": ([delete(LB)], {WEB}),
    "its VIPs are cleared": ([change(LB, vips=encode_map({}))], {WEB}),
    "a backend changes": ([mutate(LB, ["vips", "delete", "10.0.0.10:80"])], {WEB}),
    "its name changes": ([change(LB, name="mine")], {WEB}),
    "its title changes": (
        [
            mutate(
                LB,
                ["external_ids", "delete", "fairlead:name"],
                ["external_ids", "insert", encode_map({"fairlead:name": "y"})],
            )
        ],
        {WEB},
    ),
    "a port gets a title": ([mutate(LSP, ["external_ids", "insert", encode_map({"fairlead:name": "x"})])], {PORT}),
    "a switch loses its title": ([mutate(SWITCH, ["external_ids", "delete", "fairlead:name"])], {NET}),
    "its protocol goes": ([change(LB, protocol=["set", []])], {WEB}),
    "an option comes": ([mutate(LB, ["options", "insert", encode_map({"skip_snat": "true"})])], {WEB}),
    "fields come": ([change(LB, selection_fields=encode_set(["ip_src", "ip_dst"]))], {WEB}),
    "it leaves its group": ([mutate(GROUP, ["load_balancer", "delete", uuid(LB)])], {WEB}),
    "a group is emptied": ([change(GROUP, load_balancer=["set", []])], {WEB, SIX, WATCHED}),
    "a group is renamed": ([change(GROUP, name="net1")], {VIPS}),
    "a group leaves a switch": ([change(SWITCH, load_balancer_group=["set", []])], {VIPS, NEAR}),
    "an address goes": ([mutate(VIP_LRP, ["networks", "delete", "10.0.0.10/24"])], {WEB}),
    "an address loses its mark": ([mutate(VIP_LRP, ["external_ids", "delete", ADDRESS])], {WEB, VIPS}),
    "an address and its mark go": (
        [mutate(VIP_LRP, ["networks", "delete", "10.0.0.10/24"], ["external_ids", "delete", ADDRESS])],
        {WEB},
    ),
    "an address comes": ([mutate(VIP_LRP, ["networks", "insert", "10.0.0.99/24"])], {VIPS}),
    "an address changes hands": (
        [
            mutate(
                VIP_LRP,
                ["external_ids", "delete", ADDRESS],
                ["external_ids", "insert", encode_map({ADDRESS: "loadbalancer/six"})],
            )
        ],
        {WEB, SIX},
    ),
    "an address to answer for goes": ([mutate(VIP_LSP, ["addresses", "delete", HELD_ADDRESS])], {LOCAL_IP}),
    "an address to answer for loses its mark": (
        [mutate(VIP_LSP, ["external_ids", "delete", f"fairlead:address:{HELD_ADDRESS}"])],
        {LOCAL_IP, VIPS},
    ),
    "an address to answer for comes": (
        [mutate(VIP_LSP, ["addresses", "insert", "02:00:00:00:00:01 10.0.0.9"])],
        {VIPS},
    ),
    "an address to answer for changes hands": (
        [
            mutate(
                VIP_LSP,
                ["external_ids", "delete", f"fairlead:address:{HELD_ADDRESS}"],
                ["external_ids", "insert", encode_map({f"fairlead:address:{HELD_ADDRESS}": "local-ip/other"})],
            )
        ],
        {LOCAL_IP, Owner(Kind.LOCAL_IP, "other")},
    ),
    "all addresses of a port go": ([change(VIP_LSP, addresses=["set", []])], {VIPS, LOCAL_IP}),
    "a router port gets other networks": ([change(LRP, networks="10.0.0.7/24", mac="02:00:00:00:00:01")], {ROUTER}),
    "a switch goes, with its ports": (
        [delete(SWITCH)],
        {NET, PORT, VIPS, NEAR, Owner(Kind.PORT, "r1-net1"), Owner(Kind.PORT, "vm9"), LOCAL_IP},
    ),
    "a router is emptied": (
        [change(("Logical_Router", "r1"), ports=["set", []], static_routes=["set", []])],
        {ROUTER},
    ),
    "a wire gets another tag": ([change(("Logical_Switch_Port", "wire-public"), tag=101)], {PUBLIC}),
    "a gateway moves to another chassis": (
        [change(("Gateway_Chassis", "lrp-r1-public", "gw1"), chassis_name="gw3", priority=7)],
        {ROUTER},
    ),
    "a gateway has no chassis": (
        [change(("Logical_Router_Port", "lrp-r1-public"), gateway_chassis=["set", []])],
        {ROUTER},
    ),
    "a floating IP leads elsewhere": ([change(("NAT", "f1"), logical_ip="10.0.0.99")], {FLOATING}),
    "nothing is translated": ([change(("Logical_Router", "r1"), nat=["set", []])], {ROUTER, FLOATING}),
    "a port is disabled": ([change(LSP, enabled=False)], {PORT}),
    "a port is enabled in so many words": ([change(LSP, enabled=True)], set()),
    "a port gets addresses": ([mutate(LSP, ["addresses", "insert", encode_set(["dynamic", "unknown"])])], {PORT}),
    "a port is up": ([change(LSP, up=True)], set()),
    "a port moves": (
        [mutate(SWITCH, ["ports", "delete", uuid(LSP)]), mutate(SWITCH2, ["ports", "insert", uuid(LSP)])],
        {PORT},
    ),
    "a port is in two switches": ([mutate(SWITCH2, ["ports", "insert", uuid(LSP)])], {PORT}),
    "an ACL goes": ([mutate(PORT_GROUP, ["acls", "delete", uuid(ACL)])], {WEB}),
    "an ACL gets an option": ([change(ACL, options=encode_map({"apply-after-lb": "true"}))], {WEB}),
    "an ACL lets pass": ([change(ACL, action="allow")], {WEB}),
    "an ACL looks the other way": ([change(ACL, direction="to-lport")], {WEB}),
    "a port leaves its group": (
        [mutate(PORT_GROUP, ["ports", "delete", uuid(("Logical_Switch_Port", "r1-net2"))])],
        {VIPS},
    ),
    "a port joins a group": ([mutate(PORT_GROUP, ["ports", "insert", uuid(LSP)])], {VIPS}),
    "a health check goes": ([mutate(MONITOR, ["health_check", "delete", uuid(CHECK)])], {WATCHED}),
    "a health check is lazier": ([mutate(CHECK, ["options", "delete", "interval"])], {WATCHED}),
    "a health check is for another VIP": ([change(CHECK, vip="10.0.0.30:2")], {WATCHED}),
    "a member is probed elsewhere": ([mutate(MONITOR, ["ip_port_mappings", "delete", "10.0.0.11"])], {WATCHED}),
    "a monitor goes, with its health check": ([delete(MONITOR)], {WATCHED}),
    "a variable goes": ([mutate_chassis(["variables", "delete", VARIABLE])], {LOCAL}),
    "a variable has another value": (
        [
            mutate_chassis(
                ["variables", "delete", VARIABLE], ["variables", "insert", encode_map({VARIABLE: "10.0.0.99:80"})]
            )
        ],
        {LOCAL},
    ),
    "somebody else has a variable of theirs": (
        [mutate_chassis(["variables", "insert", encode_map({"theirs": "1"})])],
        set(),
    ),
    "a variable is nobody's": (
        [mutate_chassis(["external_ids", "delete", f"fairlead:variable:{VARIABLE}"])],
        {LOCAL},
    ),
    "the variables of a chassis go": (
        [{"op": "delete", "table": "Chassis_Template_Var", "where": [["chassis", "==", "chassis1"]]}],
        {LOCAL, LOCAL_IP},
    ),
    "a port group goes, with its ACLs": ([delete(PORT_GROUP)], {VIPS, WEB}),
    "words that mean nothing to us": (
        [mutate(LSP, ["external_ids", "insert", encode_map({"neutron:x": "y"})])],
        set(),
    ),
    "a foreign load balancer joins our group": (
        [
            {"op": "insert", "table": "Load_Balancer", "uuid-name": "x", "row": {"name": "theirs"}},
            mutate(GROUP, ["load_balancer", "insert", ["named-uuid", "x"]]),
        ],
        set(),
    ),
    "an owner that is none": (
        [mutate(LB, ["external_ids", "delete", "fairlead:owner"])],
        {WEB, Owner(Kind.LOAD_BALANCER, f"orphan-{MARK.uuid(LB)}")},
    ),
    "a key that is none": (
        [
            mutate(
                LSP,
                ["external_ids", "delete", "fairlead:key"],
                ["external_ids", "insert", encode_map({"fairlead:key": "Logical_Switch_Port"})],
            )
        ],
        {PORT, LOCAL_IP, Owner(Kind.LOAD_BALANCER, f"orphan-{MARK.uuid(LSP)}")},
    ),
    "a key without a name": (
        [
            mutate(
                LB,
                ["external_ids", "delete", "fairlead:key"],
                ["external_ids", "insert", encode_map({"fairlead:key": "Load_Balancer"})],
            )
        ],
        {WEB, Owner(Kind.LOAD_BALANCER, f"orphan-{MARK.uuid(LB)}")},
    ),
    "the owner of an address is none": (
        [
            mutate(
                VIP_LRP,
                ["external_ids", "delete", ADDRESS],
                ["external_ids", "insert", encode_map({ADDRESS: "nobody"})],
            )
        ],
        {WEB, Owner(Kind.LOAD_BALANCER, f"orphan-{MARK.uuid(VIP_LRP)}-10.0.0.10/24")},
    ),
}
HARMLESS = {"a foreign load balancer joins our group", "words that mean nothing to us"}


@pytest.mark.parametrize("mischief", MISCHIEF)
async def test_drift_is_detected_and_repaired(mischief: str, server: OvsdbServer) -> None:
    operations, owners = MISCHIEF[mischief]

    state = make_state(MODEL)
    async with Observer(server) as observer, RecordingDriver(server.remote) as driver:
        await driver.wait_ready(DEADLINE)
        world = NorthboundDeployment(driver, observer)
        await world.change_to(state)
        await observer.write(*operations)
        await observer.settle()
        await eventually(lambda: driver.foreign, f"changes of {owners}", is_enough=owners.issubset)
        await driver.ping()  # earlier updates precede the reply
        assert {*driver.foreign} == owners
        assert len(driver.foreign) == len(owners)
        await world.repair()
        if mischief in HARMLESS:
            assert await driver.lines() == sorted(state.expected[NORTHBOUND].splitlines())
        else:
            await world.check(state)
        await world.check_after_restart(server.remote)


async def test_contended_row_is_restored_with_growing_delays_and_reported(
    server: OvsdbServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is restored immediately a few times, then with growing delays; each change is logged, and the status is
    ERROR."""

    pauses, notice = list[float](), Contention.record_drift

    def note(contention: Contention, owner: Owner, now: float) -> float:
        pauses.append(notice(contention, owner, now))
        return pauses[-1]

    monkeypatch.setattr(Contention, "record_drift", note)
    snapshot = STORIES[0].states[0].snapshot()
    net = MARK.uuid(("Logical_Switch", "net1"))
    columns = {"Logical_Switch": TableMonitor(columns=("name",))}
    writes, tasks = [0], set[asyncio.Task[list[Json]]]()

    def change_back(event: Event) -> None:
        for uuid, change in (
            event.tables.get(*columns, {}).items() if isinstance(event, FullContents | ContentChanges) else ()
        ):
            row = change.get("modify") or change.get("initial") or {}
            if uuid == net and row.get("name") == "net1":
                writes[0] += 1
                where = [["_uuid", "==", encode_uuid(net)]]
                evil = {"op": "update", "table": "Logical_Switch", "where": where, "row": {"name": "evil\n"}}
                tasks.add(asyncio.ensure_future(hostile.transact([evil])))

    hostile = Client(
        Settings(remotes=parse_remotes(server.remote), database=DATABASE, tables=columns, timing=FAST_TIMING),
        change_back,
    )
    driver = OvnDriver(
        ovn_settings(server.remote),
        on_foreign_change=lambda owner, what: reconciler.note_drift(owner, what),  # noqa: PLW0108
    )
    reconciler = Reconciler(
        dataplane=OVN, driver=driver, snapshot=lambda: snapshot, clock=asyncio.get_running_loop().time
    )
    async with driver:
        await driver.wait_ready(DEADLINE)
        await reconciler.resync()
        while await reconciler.step():
            pass
        running = asyncio.create_task(reconciler.run())
        async with hostile:
            await eventually(lambda: writes[0] > FREE_REPAIRS + 3)
            await asyncio.gather(*tasks)
            await eventually(lambda: reconciler.applied(NET).error is not None)
            assert reconciler.contended() == 1
        expected = [0.0, *(MIN_PAUSE * 2**number for number in range(len(pauses)))]
        assert [*dict.fromkeys(pauses)] == expected[: len({*pauses})], "each repair waits twice as long as the last"
        assert driver.drift_counts.keys() == {("Logical_Switch", "name")}
        reconciler.retry_now()
        await eventually(lambda: reconciler.applied(NET).error is None)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert (
        "another program changed rows of network/net1: Logical_Switch net1: name was net1, is evil?" in caplog.messages
    )
    assert any("keeps changing its rows: repaired 3 times, next repair in 0.1 s" in line for line in caplog.messages)


async def test_drift_during_downtime_is_repaired_by_a_resync(server: OvsdbServer) -> None:
    """Drift that happens while no driver is connected is found by a new process: all changes that fit together."""

    state = make_state(MODEL)
    async with Observer(server) as observer:
        async with RecordingDriver(server.remote) as driver:
            await driver.wait_ready(DEADLINE)
            world = NorthboundDeployment(driver, observer)
            await world.change_to(state)
        together = [name for name in MISCHIEF if name not in {"a group is renamed", "a switch goes, with its ports"}]
        for name in together:
            with suppress(AssertionError):
                await observer.write(*MISCHIEF[name][0])
        copy = {"name": "copy", "external_ids": encode_map(MARK.external_ids(SIX, ("Load_Balancer", "six-tcp")))}
        await observer.write({"op": "insert", "table": "Load_Balancer", "row": copy})
        async with RecordingDriver(server.remote) as driver:
            await driver.wait_ready(DEADLINE)
            world.sites[0].driver = driver
            await world.restart()
            await world.repair()
            assert await driver.lines() == sorted(state.expected[NORTHBOUND].splitlines())


async def test_copy_of_a_row_is_deleted_and_the_original_stays(server: OvsdbServer) -> None:
    """Copies of rows, including Fairlead's mark, are deleted, and the original rows stay."""

    async with Observer(server) as observer, RecordingDriver(server.remote) as driver:
        await driver.wait_ready(DEADLINE)
        world = NorthboundDeployment(driver, observer)
        await world.change_to(make_state(MODEL))
        marks = encode_map(MARK.external_ids(WEB, LB))
        [made, _] = await observer.write(
            {
                "op": "insert",
                "table": "Load_Balancer",
                "uuid-name": "c",
                "row": {"name": "c", "external_ids": marks},
            },
            mutate(GROUP, ["load_balancer", "insert", ["named-uuid", "c"]]),
        )
        orphan = Owner(Kind.LOAD_BALANCER, f"orphan-{made['uuid'][1]}")
        await eventually_equal(lambda: driver.foreign, [orphan])
        rows = await driver.read(orphan)
        assert list(rows) == [LB, ("in group", "net1", "web-tcp")]
        seen = await observer.settle()
        await world.repair()
        await world.check(make_state(MODEL))
        changed = {table: list(rows) for tables in observer.changes[seen:] for table, rows in tables.items()}
        assert changed == {
            "Load_Balancer": [made["uuid"][1]],
            "Load_Balancer_Group": [MARK.uuid(GROUP)],
        }


async def test_duplicates_of_rows_with_children_are_deleted(server: OvsdbServer) -> None:
    """Copies of rows that hold others are deleted: a switch that shares ports and groups, a router with a port with
    marked addresses, a group without an owner."""

    async with Observer(server) as observer, RecordingDriver(server.remote) as driver:
        await driver.wait_ready(DEADLINE)
        world = NorthboundDeployment(driver, observer)
        await world.change_to(make_state(MODEL))
        raw = await observer.raw()

        def copy(key: tuple[str, ...], **columns: Json) -> Json:
            row = {name: value for name, value in raw[key[0]][MARK.uuid(key)].items() if name[0] != "_"}
            return {"op": "insert", "table": key[0], "row": row | columns}

        await observer.write(
            copy(SWITCH),
            {**copy(VIP_LRP, name="copy"), "uuid-name": "port"},
            copy(("Logical_Router", "vip-net1"), ports=["named-uuid", "port"], static_routes=["set", []]),
            copy(GROUP, name=join_mark(("fairlead", MARK.deployment, "nobody", "net1"))),
            copy(GROUP, name=join_mark(("fairlead", MARK.deployment, "net1"))),
        )
        await eventually_equal(lambda: len([owner for owner in driver.foreign if "orphan" in owner.id]), 4)
        await world.repair()
        await world.check(make_state(MODEL))
        counts = {table: len(rows) for table, rows in (await observer.raw()).items()}
        assert counts == {table: len(rows) + (table == GROUP[0]) for table, rows in raw.items()}


async def test_orphaned_row_returns_to_its_owner(server: OvsdbServer) -> None:
    async with Observer(server) as observer, RecordingDriver(server.remote) as driver:
        await driver.wait_ready(DEADLINE)
        world = NorthboundDeployment(driver, observer)
        await world.change_to(make_state(MODEL))
        rows = await driver.read(WEB)
        await observer.mutate(LB, ["external_ids", "insert", encode_map({"theirs": "1"})])
        await observer.mutate(LB, ["external_ids", "delete", "fairlead:owner"])
        await eventually(lambda: LB not in driver._replica.rows[WEB])
        await observer.mutate(LB, ["external_ids", "delete", "theirs"])
        await observer.mutate(LB, ["external_ids", "insert", encode_map({"fairlead:owner": str(WEB)})])
        await eventually(lambda: LB in driver._replica.rows[WEB])
        assert await driver.read(WEB) == rows
        await world.repair()
        await world.check(make_state(MODEL))


async def test_row_without_the_ownership_mark_is_not_changed(server: OvsdbServer) -> None:
    """A row that lost Fairlead's mark is not touched, and its owner stays in ERROR until it is removed."""

    row = LoadBalancer(name="web-tcp", protocol="tcp", services=())
    async with Observer(server) as observer, RecordingDriver(server.remote) as driver:
        await driver.wait_ready(DEADLINE)
        await driver.put(WEB, row)
        await observer.mutate(LB, ["external_ids", "delete", "fairlead"])
        await eventually_equal(lambda: driver.foreign, [WEB])
        before = await observer.raw()
        with pytest.raises(DriverError, match="duplicate uuid"):
            await driver.put(WEB, row)
        assert await observer.raw() == before
        await observer.write(delete(LB))
        await driver.put(WEB, row)


# Refusals


BASE: dict[Owner, tuple[OvnRow, ...]] = {
    NET: (LogicalSwitch(name="net1"),),
    NET2: (LogicalSwitch(name="net2"),),
    ROUTER: (
        LogicalRouter(name="r1"),
        LogicalRouterPort(name="lrp", router="r1", mac="02:00:00:00:00:01", networks=("10.0.0.1/24", "fd00::1/64")),
        StaticRoute(router="r1", ip_prefix="::/0", nexthop="fd00::9"),
    ),
    PORT: (LogicalSwitchPort(name="vm1", switch="net1"),),
    VIPS: (
        LoadBalancerGroup(name="net1"),
        SwitchGroup(switch="net1", group="net1"),
        RouterGroup(router="r1", group="net1"),
    ),
    WEB: (
        LoadBalancer(name="web-tcp", protocol="tcp", services=()),
        GroupMember(group="net1", load_balancer="web-tcp"),
        PortAddress(port="lrp", network="10.0.0.10/24"),
        ChassisVariable(chassis="chassis1", name="near", values=("10.0.0.11:80", "10.0.0.12:80")),
    ),
    LOCAL_IP: (
        SwitchPortAddress(port="vm1", address="02:00:00:00:00:01 10.0.0.9"),
        LogicalRouterPolicy(name="lip", router="r1", priority=7, match="ip4", action="reroute", nexthops=("10.0.0.9",)),
    ),
}
UNKNOWN_ROW = Owner(Kind.ROUTER, "r2")
NOTHING_THERE = Diff(creates={}, updates={}, deletes={})


async def put_base(driver: RecordingDriver) -> None:
    for owner, rows in BASE.items():
        await driver.put(owner, *rows)


def creates(*rows: OvnRow) -> Diff:
    return replace(NOTHING_THERE, creates=by_key(rows))


def deletes(*rows: OvnRow) -> Diff:
    return replace(NOTHING_THERE, deletes=by_key(rows))


def update(before: OvnRow, after: OvnRow) -> Diff:
    return replace(NOTHING_THERE, updates={before.key: Update(before=before, after=after)})


REFUSED: dict[str, tuple[Owner, Diff, type[DriverError], str]] = {
    "port of no switch": (
        UNKNOWN_ROW,
        creates(LogicalSwitchPort(name="p", switch="no")),
        MissingReference,
        "refers to",
    ),
    "port of no router": (
        UNKNOWN_ROW,
        creates(LogicalRouterPort(name="p", router="no", mac="02:00:00:00:00:02", networks=("10.0.0.2/24",))),
        MissingReference,
        "refers to Logical_Router no",
    ),
    "route of no router": (
        UNKNOWN_ROW,
        creates(StaticRoute(router="no", ip_prefix="::/0", nexthop="::1")),
        MissingReference,
        "refers to Logical_Router no",
    ),
    "member of no group": (
        WEB,
        creates(GroupMember(group="no", load_balancer="web-tcp")),
        MissingReference,
        "refers to Load_Balancer_Group no",
    ),
    "no member of a group": (
        WEB,
        creates(GroupMember(group="net1", load_balancer="no")),
        MissingReference,
        "refers to Load_Balancer no",
    ),
    "no group on a switch": (
        VIPS,
        creates(SwitchGroup(switch="net1", group="no")),
        MissingReference,
        "refers to Load_Balancer_Group no",
    ),
    "a group on no switch": (VIPS, creates(SwitchGroup(switch="no", group="net1")), MissingReference, "refers to"),
    "a group on no router": (VIPS, creates(RouterGroup(router="no", group="net1")), MissingReference, "refers to"),
    "address of no port": (WEB, creates(PortAddress(port="no", network="10.0.0.2/24")), MissingReference, "refers to"),
    "a port moves to no switch": (
        PORT,
        update(BASE[PORT][0], LogicalSwitchPort(name="vm1", switch="no")),
        MissingReference,
        "refers to Logical_Switch no",
    ),
    "a switch with ports goes": (NET, deletes(*BASE[NET]), MissingReference, "still has ports"),
    "a router with what is not deleted goes": (ROUTER, deletes(BASE[ROUTER][0]), MissingReference, "still has ports"),
    "a port with an address of somebody goes": (
        ROUTER,
        deletes(BASE[ROUTER][1]),
        MissingReference,
        "Logical_Router_Port lrp still has networks of other owners",
    ),
    "an address of no switch port": (
        LOCAL_IP,
        creates(SwitchPortAddress(port="no", address="02:00:00:00:00:01 10.0.0.9")),
        MissingReference,
        "refers to Logical_Switch_Port no",
    ),
    "a switch port with an address of somebody goes": (
        PORT,
        deletes(*BASE[PORT]),
        MissingReference,
        "Logical_Switch_Port vm1 still has addresses of other owners",
    ),
    "a policy of no router": (
        LOCAL_IP,
        creates(LogicalRouterPolicy(name="p", router="no", priority=1, match="ip4", action="drop")),
        MissingReference,
        "refers to Logical_Router no",
    ),
    "an address to answer for of another": (API, creates(BASE[LOCAL_IP][0]), DriverError, "belongs to local-ip/lip"),
    "a group with members goes": (VIPS, deletes(*BASE[VIPS]), MissingReference, "still has load_balancer"),
    "a load balancer goes and leaves its membership": (
        WEB,
        deletes(BASE[WEB][0]),
        MissingReference,
        "in group net1 web-tcp still refers to Load_Balancer web-tcp",
    ),
    "a row twice": (NET, creates(*BASE[NET]), DriverError, "duplicate uuid"),
    "a row of another": (UNKNOWN_ROW, creates(*BASE[NET]), DriverError, "duplicate uuid"),
    "an address of another": (API, creates(BASE[WEB][2]), DriverError, "belongs to loadbalancer/web"),
    "a variable of another": (
        API,
        creates(ChassisVariable(chassis="chassis1", name="near", values=("10.0.0.12:80",))),
        DriverError,
        "belongs to loadbalancer/web",
    ),
    "an update of a variable that has another value": (
        WEB,
        update(
            ChassisVariable(chassis="chassis1", name="near", values=("10.0.0.99:80",)),
            ChassisVariable(chassis="chassis1", name="near", values=("10.0.0.12:80",)),
        ),
        DriverError,
        "no such row to update: Chassis_Template_Var chassis1",
    ),
    "an update of what is gone": (
        NET,
        update(LogicalSwitch(name="no"), LogicalSwitch(name="no", other_config=pairs({"a": "b"}))),
        DriverError,
        "no such row to update: Logical_Switch no",
    ),
    "a protocol that OVN does not know": (
        API,
        creates(LoadBalancer(name="api", protocol="quic", services=())),
        DriverError,
        "constraint violation",
    ),
    "one name for two ports": (
        NET2,
        creates(LogicalSwitchPort(name="vm1", switch="net2")),
        DriverError,
        "duplicate uuid",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_rejected_change_has_no_effect(case: str, server: OvsdbServer) -> None:
    owner, refused, error, words = REFUSED[case]

    async with Observer(server) as observer, RecordingDriver(server.remote) as driver:
        await driver.wait_ready(DEADLINE)
        await put_base(driver)
        before, seen = await observer.raw(), await observer.settle()
        extra = LogicalSwitch(name="extra")
        refused_whole = replace(refused, creates={extra.key: extra, **refused.creates})
        with pytest.raises(error, match=words) as caught:
            await driver.apply(owner, refused_whole)
        assert type(caught.value) is error
        assert (await observer.raw(), await observer.settle()) == (before, seen)
        assert driver.foreign == []


async def test_attached_group_cannot_be_deleted(server: OvsdbServer) -> None:
    async with RecordingDriver(server.remote) as driver:
        await driver.wait_ready(DEADLINE)
        await put_base(driver)
        await driver.put(WEB)
        with pytest.raises(MissingReference, match="referential integrity violation"):
            await driver.apply(VIPS, deletes(BASE[VIPS][0]))
        with pytest.raises(MissingReference, match="referential integrity violation"):
            await driver.apply(VIPS, deletes(*BASE[VIPS][:2]))
        await driver.put(VIPS)


async def test_deletion_of_absent_rows_succeeds(server: OvsdbServer) -> None:
    async with Observer(server) as observer, RecordingDriver(server.remote) as driver:
        await driver.wait_ready(DEADLINE)
        await put_base(driver)
        for owner, rows in reversed(BASE.items()):
            await driver.apply(owner, deletes(*reversed(rows)))
            await driver.apply(owner, deletes(*reversed(rows)))
        assert await driver.read_all() == {}
        assert has_no_rows(await observer.raw())
        assert driver.foreign == []


# The driver and the fake: same refusals, same effects


def random_rows(owner: Owner, dice: random.Random) -> Rows:
    """Return a random subset of the rows that this owner may have; many refer to rows that may be missing."""

    def some(*rows: OvnRow) -> list[OvnRow]:
        return [row for row in rows if dice.random() < 0.6]

    name, pick = owner.id, dice.choice
    rows: list[OvnRow] = []
    match owner.kind:
        case Kind.NETWORK:
            rows = some(LogicalSwitch(name=name, other_config=pick([(), pairs({"mcast_snoop": "true", "x": "1"})])))
        case Kind.ROUTER:
            networks = tuple(sorted(dice.sample(["10.0.0.1/24", "10.1.0.1/24", "fd00::1/64"], dice.randint(1, 3))))
            rows = some(
                LogicalRouter(name=name, enabled=pick([True, False]), options=pick([(), pairs({"a": "b"})])),
                LogicalRouterPort(
                    name=f"lrp-{name}",
                    router=pick(["r1", "r2"]),
                    mac=pick(["02:00:00:00:00:01", "02:00:00:00:00:02"]),
                    networks=networks,
                    enabled=pick([True, False]),
                ),
                StaticRoute(router=name, ip_prefix="::/0", nexthop=pick(["fd00::1", "fd00::2"])),
                StaticRoute(router=pick(["r1", "r2"]), ip_prefix=f"10.{name[1]}.0.0/16", nexthop="10.0.0.9"),
            )
        case Kind.PORT:
            rows = some(
                LogicalSwitchPort(
                    name=name,
                    switch=pick(["n1", "n2"]),
                    type=pick(["", "router"]),
                    addresses=pick([(), ("router",), ("02:00:00:00:00:01 10.0.0.1", "unknown")]),
                    port_security=pick([(), ("02:00:00:00:00:01",)]),
                    options=pick([(), pairs({"router-port": "x"}), pairs({"router-port": "y", "z": "w"})]),
                    enabled=pick([True, False]),
                )
            )
        case Kind.LOCAL_IP:
            rows = some(
                *(
                    SwitchPortAddress(port=pick(["p1", "p2"]), address=f"02:00:00:00:00:01 {address}")
                    for address in ("10.0.0.9", "10.0.0.10")
                ),
                LogicalRouterPolicy(
                    name=f"{name} a",
                    router=pick(["r1", "r2"]),
                    priority=pick([1, 2]),
                    match=pick(["ip4", "ip6"]),
                    action="reroute",
                    nexthops=pick([(), ("10.0.0.1",)]),
                ),
            )
        case Kind.VIP_NETWORK:
            rows = some(
                LoadBalancerGroup(name=name),
                *(SwitchGroup(switch=switch, group=name) for switch in ("n1", "n2")),
                *(RouterGroup(router=router, group=name) for router in ("r1", "r2")),
            )
        case Kind.LOAD_BALANCER:
            vips = dice.sample(["10.0.0.10:80", "10.0.0.10:81", "[fd00::10]:80"], dice.randint(0, 3))
            backends = [(), ("10.0.0.11:80",), ("10.0.0.11:80", "10.0.0.12:80", "10.0.0.11:80")]
            rows = some(
                LoadBalancer(
                    name=f"{name}-tcp",
                    protocol=pick(["tcp", "udp"]),
                    services=tuple(VirtualService(vip=vip, backends=pick(backends)) for vip in sorted(vips)),
                    selection_fields=pick([(), ("ip_src",), ("ip_dst", "ip_src")]),
                    options=pick([(), pairs({"reject": "true"}), pairs({"reject": "false", "affinity_timeout": "5"})]),
                    ip_port_mappings=pick([(), pairs({"10.0.0.11": "p1:10.0.0.2"})]),
                ),
                LoadBalancerHealthCheck(
                    load_balancer=f"{name}-tcp", vip="10.0.0.10:80", options=pick([(), pairs({"interval": "5"})])
                ),
                ChassisVariable(chassis="c1", name=f"near_{name}", values=pick(backends[1:])),
                ChassisVariable(chassis="c2", name="near", values=("10.0.0.11:80",)),
                GroupMember(group="v1", load_balancer=f"{name}-tcp"),
                GroupMember(group="v2", load_balancer=f"{name}-tcp"),
                PortAddress(port=pick(["lrp-r1", "lrp-r2"]), network=pick(["10.0.0.10/24", "fd00::10/64"])),
            )
    return by_key(rows)


@pytest.mark.parametrize("seed", range(6))
async def test_fake_driver_and_ovsdb_server_agree_on_random_changes(seed: int, server: OvsdbServer) -> None:
    dice = random.Random(seed)
    kinds = {Kind.NETWORK: "n", Kind.ROUTER: "r", Kind.PORT: "p", Kind.VIP_NETWORK: "v", Kind.LOAD_BALANCER: "b"}
    kinds[Kind.LOCAL_IP] = "l"
    owners = [Owner(kind, f"{letter}{number}") for kind, letter in kinds.items() for number in (1, 2)]

    async def outcome(driver: FakeDriver | OvnDriver, owner: Owner, change: Diff) -> type[Exception] | None:
        try:
            await driver.apply(owner, change)
        except DriverError as error:
            return type(error)
        return None

    fake, done = FakeDriver(references), 0
    async with RecordingDriver(server.remote) as driver:
        await driver.wait_ready(DEADLINE)
        for _ in range(500):
            owner = dice.choice(owners)
            wanted = random_rows(owner, dice) if dice.random() < 0.8 else NO_ROWS
            change = diff(wanted, await fake.read(owner))
            expected = await outcome(fake, owner, change)
            assert await outcome(driver, owner, change) == expected, f"{owner}\n{change}"
            assert await driver.read_all() == await fake.read_all()
            done += expected is None
        assert driver.foreign == []
    assert 100 < done < 400, "the dice give too little of either"
    async with RecordingDriver(server.remote) as fresh:
        await fresh.wait_ready(DEADLINE)
        assert await fresh.read_all() == await fake.read_all()


# Minimal writes


def test_transaction_writes_only_changed_columns() -> None:
    before = LoadBalancer(name="web", protocol="tcp", services=(VirtualService(vip="a:1", backends=("b:1",)),))
    after = replace(before, services=(VirtualService(vip="a:1", backends=("b:1", "b:2")),))
    key, switch = ("Load_Balancer", "web"), LogicalSwitchPort(name="p", switch="n", options=(("a", "b"),))
    encoder = Encoder(mark=MARK, lock="l", owner=WEB, uuid_of=MARK.uuid)
    [_, _, written] = encoder.encode(update(before, after)).operations
    assert written == change(key, vips=encode_map({"a:1": "b:1,b:2"}))
    [*_, written] = encoder.encode(update(switch, replace(switch, enabled=False))).operations
    assert written == change(("Logical_Switch_Port", "p"), enabled=False)


async def test_vip_change_updates_one_entry_of_one_row(server: OvsdbServer) -> None:
    """A VIP's change is one update of its own entry, without a moment in which it is missing."""

    before = make_state(MODEL)
    after = make_state(MODEL.replace("b/10.0.0.12:8080", "c/10.0.0.13:8080"))
    async with Observer(server) as observer, RecordingDriver(server.remote) as driver:
        await driver.wait_ready(DEADLINE)
        world = NorthboundDeployment(driver, observer)
        await world.change_to(before)
        old, seen = await observer.raw(), await observer.settle()
        await world.change_to(after)
        new, vip = await observer.raw(), "10.0.0.10:80"
        identity = MARK.uuid(LB)
        entry = decode_map(new["Load_Balancer"][identity]["vips"])[vip]
        assert observer.changes[seen:] == [
            {"Load_Balancer": {identity: {"modify": {"vips": encode_map({vip: entry})}}}}
        ]
        old["Load_Balancer"][identity]["vips"] = new["Load_Balancer"][identity]["vips"]
        old["Load_Balancer"][identity]["_version"] = new["Load_Balancer"][identity]["_version"]
        assert old == new


async def test_networks_of_other_owners_stay_when_a_router_port_changes(server: OvsdbServer) -> None:
    async with Observer(server) as observer, RecordingDriver(server.remote) as driver:
        await driver.wait_ready(DEADLINE)
        await put_base(driver)
        seen = await observer.settle()
        router, port, route = BASE[ROUTER]
        assert isinstance(port, LogicalRouterPort)
        moved = replace(port, networks=("10.0.0.2/24", "fd00::1/64"), enabled=False)
        await driver.put(ROUTER, router, moved, route)
        await observer.settle()
        [tables] = observer.changes[seen:]
        [columns] = tables["Logical_Router_Port"].values()
        assert columns == {"modify": {"enabled": False, "networks": encode_set(["10.0.0.1/24", "10.0.0.2/24"])}}
        assert by_key(BASE[WEB]) == await driver.read(WEB)
        assert driver.foreign == []


@pytest.mark.parametrize("others", [1, 500])
async def test_update_size_of_a_load_balancer_is_independent_of_the_others(others: int, server: OvsdbServer) -> None:
    """The bytes on the wire for one more load balancer are independent of the number on the network."""

    async with Observer(server) as observer, RecordingDriver(server.remote) as driver:
        await driver.wait_ready(DEADLINE)
        await put_base(driver)
        owners = [Owner(Kind.LOAD_BALANCER, f"lb{number}") for number in range(others + 1)]
        rows = [balancer_rows(number, owner.id) for number, owner in enumerate(owners)]
        await asyncio.gather(*(driver.put(owner, *rows[n]) for n, owner in enumerate(owners[:-1])))
        seen = await observer.settle()
        await driver.put(owners[-1], *rows[-1])
        await driver.put(owners[-1])
        await observer.settle()
        assert [len(msgspec.json.encode(change)) < 1500 for change in observer.changes[seen:]] == [True, True]


def balancer_rows(number: int, name: str) -> tuple[OvnRow, ...]:
    vip = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    backends = tuple(f"10.9.0.{member % 3}:8080" for member in range(16))
    return (
        LoadBalancer(
            name=f"{name}-tcp",
            protocol="tcp",
            services=(VirtualService(vip=f"{vip}:80", backends=backends),),
            options=pairs({"reject": "true"}),
        ),
        GroupMember(group="net1", load_balancer=f"{name}-tcp"),
        PortAddress(port="lrp", network=f"{vip}/8"),
    )


async def test_replica_returns_the_row_objects_of_the_writer(server: OvsdbServer) -> None:
    async with RecordingDriver(server.remote) as driver:
        await driver.wait_ready(DEADLINE)
        await put_base(driver)
        before, after = BASE[WEB][0], LoadBalancer(name="web-tcp", protocol="udp", services=())
        assert (await driver.read(WEB))[before.key] is before
        await driver.put(WEB, after, *BASE[WEB][1:])
        rows = await driver.read(WEB)
        assert rows[after.key] is after
        assert all(rows[row.key] is row for row in BASE[WEB][1:])


# Network failures


class Proxy:
    """Proxy between a driver and its server. `fault` is called for every transaction of the driver."""

    def __init__(self, server: OvsdbServer, fault: Callable[[], str] = lambda: "") -> None:
        self.server = server
        self.path = server.folder / "proxy.sock"
        self.remote = f"unix:{self.path}"
        self.fault = fault
        self.tasks: set[asyncio.Task[None]] = set()
        self.listener: asyncio.Server | None = None
        self.held: list[Callable[[], None]] = []

    async def __aenter__(self) -> "Proxy":
        self.listener = await asyncio.start_unix_server(self.accept, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.listener:
            self.listener.close()
            await self.listener.wait_closed()
        await self.cut()

    async def cut(self) -> None:
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self.tasks.add(task)
        from_server, to_server = await asyncio.open_unix_connection(str(self.server.folder / "db.sock"))
        doomed: list[str] = []
        copies = [
            asyncio.create_task(self.ask(reader, to_server, doomed)),
            asyncio.create_task(self.answer(from_server, writer, doomed)),
        ]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # cancelled by `cut`
        finally:
            for copy in copies:
                copy.cancel()
            writer.transport.abort()
            to_server.transport.abort()
            await asyncio.wait(copies)
            self.tasks.discard(task)

    async def ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: list[str]) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 20):
                if b'"transact"' in data:
                    doomed[:] = [self.fault()]
                    if doomed == ["before"]:
                        return
                writer.write(data)
                await writer.drain()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: list[str]) -> None:
        """Forward messages with a fault: `after` drops updates of the commit, `between` only its reply; `late` delays
        the reply."""
        framer = Framer()
        with suppress(OSError):
            while data := await reader.read(1 << 20):
                for message in framer.feed(data):
                    match message:
                        case Reply(id=int()) if doomed in (["after"], ["between"]):
                            return
                        case Reply(id=int()) if doomed == ["late"]:
                            self.held.append(partial(writer.write, encode(message)))
                        case Notification() if doomed == ["after"]:
                            continue
                        case _:
                            writer.write(encode(message))
                await writer.drain()


def encode(message: object) -> bytes:
    """Encode a message as a server does: a notification has the id null."""
    return msgspec.json.encode({"id": None, **msgspec.to_builtins(message)})


def random_model(dice: random.Random) -> str:
    lines = ["network net1 10.0.0.0/24", "network net2 10.1.0.0/24", "router r1 net1=10.0.0.1 net2=10.1.0.1"]
    for number in range(6):
        if dice.random() < 0.7:
            members = [f"m{member}/10.0.0.{100 + member}:80" for member in range(4) if dice.random() < 0.6]
            listeners = [f"{kind}:80={','.join(members) or '-'}" for kind in ("tcp", "udp") if dice.random() < 0.6]
            net = dice.choice([1, 2])
            lines.append(f"lb{number} vip=10.{net - 1}.0.{10 + number} on=net{net} {' '.join(listeners)}")
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["server", "clustered"])
async def test_lost_replies_neither_duplicate_nor_lose_changes(kind: str, request: pytest.FixtureRequest) -> None:
    server: OvsdbServer = request.getfixturevalue(kind)
    dice = random.Random(7)
    faults: list[str] = []

    def fault() -> str:
        faults.append(dice.choice(["", "", "before", "after", "between"]))
        return faults[-1]

    async def rest(world: NorthboundDeployment, resyncs: list[int]) -> None:
        """Run the reconciler as the server does: with a resync whenever the driver is ready again."""
        while True:
            await world.driver.wait_ready(DEADLINE)
            if len(resyncs) < world.driver.said.count("ready"):
                resyncs.append(await world.reconciler.resync(force=True))
                world.reconciler.retry_now()
            if not await world.reconciler.step():
                due = world.reconciler.next_due()
                if due is None:
                    return
                world.now = due

    resyncs: list[int] = []
    async with Observer(server) as observer, Proxy(server, fault) as proxy, RecordingDriver(proxy.remote) as driver:
        world = NorthboundDeployment(driver, observer)
        documents: object = {}
        for _ in range(25):
            model = random_model(dice)
            documents, down = parse_model(model, documents)  # type: ignore[arg-type]
            state = State(name="", model=model, expected={}, documents=documents, down=down)
            world.reconciler.mark(world._change(state))
            await rest(world, resyncs)
            assert raw_lines(await observer.raw()) == sorted(render_rows(world.snapshot).splitlines())
            assert await driver.lines() == sorted(render_rows(world.snapshot).splitlines())
        world.reconciler.mark(world._change(EMPTY_STATE))
        await rest(world, resyncs)
        assert has_no_rows(await observer.raw())
        assert driver.foreign == []
    assert len(faults) > 150
    assert min(faults.count(name) for name in ("before", "after", "between")) > 20


async def test_drift_during_an_apply_is_repaired(server: OvsdbServer) -> None:
    """Drift during an apply is repaired, even if its update arrives while the reconciler records its own success."""

    states = [make_state(MODEL), make_state(MODEL.replace("b/10.0.0.12:8080", "c/10.0.0.13:8080"))]
    fault = ""
    async with (
        Observer(server) as observer,
        Proxy(server, lambda: fault) as proxy,
        RecordingDriver(proxy.remote) as driver,
    ):
        await driver.wait_ready(DEADLINE)
        world = NorthboundDeployment(driver, observer)
        await world.change_to(states[0])
        world.reconciler.mark(world._change(states[1]))
        fault = "late"
        resting = asyncio.create_task(world.run_until_idle())
        await eventually(lambda: bool(proxy.held))
        await observer.write(delete(("Load_Balancer", "web-udp")))
        await eventually(lambda: ("Load_Balancer", "web-udp") not in driver._replica.rows[WEB])
        assert driver.foreign == []
        assert not resting.done()
        fault = ""
        proxy.held.pop()()
        await resting
        await eventually_equal(lambda: driver.foreign, [WEB])
        await world.repair()
        await world.check(states[1])


async def test_late_commit_after_a_timeout_is_detected_as_drift(server: OvsdbServer) -> None:
    """A transaction that committed after its timeout is detected like drift, so the owner is read again."""

    async with Observer(server) as observer, RecordingDriver(server.remote) as driver:
        await driver.wait_ready(DEADLINE)
        driver._timeout = 0.05
        server.send(signal.SIGSTOP)
        with pytest.raises(Unavailable, match="request timed out"):
            await driver.put(NET, *BASE[NET])
        server.send(signal.SIGCONT)
        await eventually_equal(lambda: driver.foreign, [NET])
        assert await driver.read(NET) == by_key(BASE[NET])
        await observer.settle()


# Several servers


async def test_standby_becomes_leader_after_the_leader_disconnects(server: OvsdbServer) -> None:
    async with Proxy(server) as proxy, RecordingDriver(server.remote) as second:
        await second.wait_ready(DEADLINE)
        async with RecordingDriver(proxy.remote) as first:
            await eventually(lambda: first.connected)
            await second.put(NET, *BASE[NET])
            await eventually(lambda: bool(first._replica.rows))
            assert await first.read(NET) == by_key(BASE[NET])
            assert (first.ready, first.has_lock, first.foreign, first.said) == (False, False, [NET], [])
            with pytest.raises(Standby, match="another server holds the lock"):
                await first.put(NET)
            await second.close()
            await first.wait_ready(DEADLINE)
            assert first.said == ["ready"]
            await first.put(NET)
            second.start()
            await eventually(lambda: second.connected)
            assert not second.ready
            await proxy.cut()  # the first connection ends
            await second.wait_ready(DEADLINE)
            await second.put(NET2, *BASE[NET2])
            await eventually(lambda: first.connected)
            with pytest.raises(Unavailable, match="another server holds the lock"):
                await first.put(NET, *BASE[NET])
            assert await first.read_all() == {NET2: by_key(BASE[NET2])}
            assert first.said in [["ready", reason] for reason in KILL_ERRORS]
        assert second.said == ["ready", "closed", "ready"]


async def test_stolen_lock_fails_the_next_transaction(server: OvsdbServer) -> None:
    """The assertion in the transaction detects a stolen lock before the driver receives the update."""

    async with RecordingDriver(server.remote) as driver:
        await driver.wait_ready(DEADLINE)
        put = diff(by_key(BASE[NET]), await driver.read(NET))
        with socket.socket(socket.AF_UNIX) as thief:
            thief.connect(str(server.folder / "db.sock"))
            thief.sendall(msgspec.json.encode({"id": 1, "method": "steal", "params": [MARK.default_lock]}))
            thief.recv(1000)
            assert driver.ready
            with pytest.raises(Unavailable, match="another server holds the lock"):
                await driver.apply(NET, put)
            await eventually(lambda: not driver.ready)
            assert driver.said == ["ready", f"lost the lock {MARK.default_lock}"]
        await driver.wait_ready(DEADLINE)
        await driver.put(NET, *BASE[NET])


async def test_taken_lock_is_reported_to_the_previous_leader_and_returns_later(server: OvsdbServer) -> None:
    async with RecordingDriver(server.remote) as first:
        await first.wait_ready(DEADLINE)
        async with RecordingDriver(server.remote) as second:
            await eventually(lambda: second.connected)
            await second.ping()
            with pytest.raises(Standby):
                await second.put(NET, *BASE[NET])
            await second.take_lock()
            assert second.ready
            await second.put(NET, *BASE[NET])
            await eventually(lambda: not first.ready)
            with pytest.raises(Standby):
                await first.put(NET2, *BASE[NET2])
            assert first.said == ["ready", f"lost the lock {MARK.default_lock}"]
        await first.wait_ready(DEADLINE)
        await first.put(NET2, *BASE[NET2])


# Database outages


async def test_driver_reconnects_after_a_server_restart(server: OvsdbServer) -> None:
    state = make_state(MODEL)
    async with RecordingDriver(server.remote) as driver:
        await driver.wait_ready(DEADLINE)
        async with Observer(server) as observer:
            world = NorthboundDeployment(driver, observer)
            await world.change_to(state)
        server.stop()
        await eventually(lambda: not driver.ready)
        for attempt in (driver.read_all(), driver.read(WEB), driver.put(WEB)):
            with pytest.raises(Unavailable, match="not connected"):
                await attempt
        await driver.apply(WEB, NOTHING_THERE)  # no changes need no database
        with pytest.raises(TimeoutError):
            await driver.wait_ready(0.05)
        server.start()
        await driver.wait_ready(DEADLINE)
        assert driver.said in [["ready", reason, "ready"] for reason in KILL_ERRORS]
        assert len(driver.abilities) == 2, "asked at each connect: it may be a newer OVN"
        assert driver.foreign == []
        assert await world.reconciler.resync() == 0
        async with Observer(server) as observer:
            world.observer = observer
            await world.check(state)


async def test_lost_database_contents_are_written_again(server: OvsdbServer) -> None:
    state = make_state(MODEL)
    async with RecordingDriver(server.remote) as driver:
        await driver.wait_ready(DEADLINE)
        async with Observer(server) as observer:
            world = NorthboundDeployment(driver, observer)
            await world.change_to(state)
            owners = {*driver._replica.rows}
            await observer.write(*({"op": "delete", "table": table, "where": []} for table in TABLES))
            await eventually(lambda: not driver._replica.rows)
            assert {*driver.foreign} == owners
            assert await world.reconciler.resync() > 5
            driver.foreign.clear()
            await world.run_until_idle()
            await world.check(state)


# Codec


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
NAME = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
SET = st.sets(TEXT, max_size=4).map(lambda texts: tuple(sorted(texts)))
PAIRS = st.dictionaries(TEXT, TEXT, max_size=4).map(pairs)
BACKEND = st.text(string.ascii_lowercase + "0123456789[]:.", min_size=1, max_size=8)
SERVICES = st.dictionaries(TEXT, st.lists(BACKEND, max_size=5), max_size=3).map(
    lambda vips: tuple(VirtualService(vip=vip, backends=tuple(vips[vip])) for vip in sorted(vips))
)
EXCLUSIVE = st.one_of(
    st.builds(LogicalSwitch, name=NAME, other_config=PAIRS),
    st.builds(
        LogicalSwitchPort,
        name=NAME,
        switch=NAME,
        type=TEXT,
        addresses=SET,
        port_security=SET,
        options=PAIRS,
        enabled=st.booleans(),
    ),
    st.builds(LogicalRouter, name=NAME, enabled=st.booleans(), options=PAIRS),
    st.builds(LogicalRouterPort, name=NAME, router=NAME, mac=TEXT, networks=SET.filter(bool), enabled=st.booleans()),
    st.builds(StaticRoute, router=NAME, ip_prefix=TEXT, nexthop=TEXT),
    st.builds(
        LogicalRouterPolicy,
        name=NAME,
        router=NAME,
        priority=st.integers(0, 32767),
        match=TEXT,
        action=TEXT,
        nexthops=SET,
    ),
    st.builds(
        LoadBalancer,
        name=NAME,
        protocol=TEXT,
        services=SERVICES,
        selection_fields=SET,
        options=PAIRS,
        ip_port_mappings=PAIRS,
    ),
    st.builds(LoadBalancerHealthCheck, load_balancer=NAME, vip=TEXT, options=PAIRS),
)


@given(EXCLUSIVE)
def test_encoded_row_decodes_to_the_same_row(row: OvnRow) -> None:
    columns = msgspec.json.decode(msgspec.json.encode(encode_columns(row)))  # type: ignore[arg-type]
    holder = next((getattr(row, name) for name in ("switch", "router", "load_balancer") if hasattr(row, name)), "")
    assert decode_row(row.key, columns, holder) == row
    texts = dict.fromkeys(("name", "type", "mac", "ip_prefix", "nexthop", "vip", "match", "action"), "")
    sent = {
        column: value for column, value in columns.items() if value not in (["set", []], ["map", []], texts.get(column))
    }
    assert decode_row(row.key, sent, holder) == row


@given(st.lists(TEXT, min_size=1, max_size=5))
def test_joined_text_splits_into_its_parts(parts: list[str]) -> None:
    text = join_mark(parts)
    assert split_mark(text) == tuple(parts)
    assert text.count(",") == len(parts) - 1


@given(TEXT, NAME, NAME)
def test_group_name_encodes_its_owner(deployment: str, identity: str, name: str) -> None:
    mark, owner, row = Mark(deployment), Owner(Kind.VIP_NETWORK, identity), LoadBalancerGroup(name=name)
    columns = {"name": mark.group_name(owner, name)}
    claim = mark.read("Load_Balancer_Group", mark.uuid(row.key), columns)
    assert claim is not None
    assert (claim.owner, claim.key, claim.is_orphan) == (owner, row.key, False)
    assert decode_row(row.key, columns, "") == row
    assert Mark(deployment + "x").read("Load_Balancer_Group", mark.uuid(row.key), columns) is None


@pytest.mark.parametrize("name", ["a,b", "100%", "with space", "ü€😀", 'quo"te', "a/b:c", "fd00::1", "\\"])
async def test_names_with_special_characters_survive_the_database(name: str, server: OvsdbServer) -> None:
    rows: tuple[OvnRow, ...] = (
        LogicalSwitch(name=name),
        LogicalSwitchPort(name=name, switch=name, addresses=(name,), options=((name, name),), enabled=False),
        LogicalRouter(name=name, enabled=False),
        LogicalRouterPort(name=name, router=name, mac=name, networks=(name,), enabled=False),
        StaticRoute(router=name, ip_prefix=name, nexthop=name),
        LoadBalancer(name=name, protocol="sctp", services=(VirtualService(vip=name, backends=("a", "b", "a")),)),
        LoadBalancerGroup(name=name),
        GroupMember(group=name, load_balancer=name),
        SwitchGroup(switch=name, group=name),
        RouterGroup(router=name, group=name),
        PortAddress(port=name, network=name + "/24"),
        SwitchPortAddress(port=name, address=name + " 10.0.0.1"),
        LogicalRouterPolicy(name=name, router=name, priority=1, match=name, action="drop"),
    )
    owner = Owner(Kind.ROUTER, name)
    async with RecordingDriver(server.remote) as driver:
        await driver.wait_ready(DEADLINE)
        await driver.put(owner, *rows)
        assert await driver.read_all() == {owner: by_key(rows)}
        async with RecordingDriver(server.remote) as fresh:
            await eventually(lambda: fresh.connected)
            assert await fresh.read_all() == {owner: by_key(rows)}
        await driver.put(owner)
        assert await driver.read_all() == {}

"""Packet trace in OVN: sender and neighbours from the databases, the rest from ovn-trace(8).

Read-only. The deciding load balancer or ACL is found by the logical flow, which refers to its Northbound row
(`stage-hint`); the mark of a managed row has its owner.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface
from typing import Any

from fairlead.dataplane.ovn_trace import (
    OPTIONS,
    NeighbourPort,
    Packet,
    Sender,
    Step,
    TraceVerdict,
    Untraceable,
    choose_mac,
    choose_next_hop,
    compose_microflow,
    judge,
)
from fairlead.drivers.ovsdb.client import Client, Settings, Tls
from fairlead.drivers.ovsdb.remotes import Remote
from fairlead.drivers.ovsdb.values import Json, decode_map, decode_uuids, encode_uuid
from fairlead.model.documents.addresses import IPAddress
from fairlead.runtime.subprocesses import kill

COMMAND_TIMEOUT = 30.0
"""Seconds for connecting, for a query, and for ovn-trace, which reads all logical flows first."""
NO_CHASSIS = "ovn-trace does not support decisions per chassis"
NAME_KEYS = ("neutron:port_name", "fairlead:name")
"""external_ids keys with the display name of a port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracerSettings:
    northbound: tuple[Remote, ...]
    southbound: tuple[Remote, ...]
    tls: Tls | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    port: str
    """Name of a logical switch port, which is the port's id in the API, or its display name."""
    destination: IPAddress
    packet: Packet
    source: IPAddress | None = None
    via: IPAddress | None = None
    """Gateway of the sender, if it is not the default guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceResult:
    microflow: str
    trace: str
    verdict: TraceVerdict
    row: Mapping[str, str]
    """Deciding row in the Northbound database: `table`, `uuid`, `name`, and its marks; empty if there is none."""


async def trace(settings: TracerSettings, question: TraceRequest) -> TraceResult:
    """Trace a packet. Raises Untraceable, DriverError and OSError."""
    async with (
        _connected(settings.southbound, "OVN_Southbound", settings.tls) as southbound,
        _connected(settings.northbound, "OVN_Northbound", settings.tls) as northbound,
    ):
        binding = await _binding(southbound, northbound, question.port)
        sender = _sender(binding, question)
        await _check_traceable(southbound, northbound, binding["logical_port"], question.destination)
        neighbours = [each async for each in _neighbours(southbound, binding["datapath"])]
        next_hop = question.via or choose_next_hop(neighbours, sender.address, question.destination)
        microflow = compose_microflow(sender, question.destination, question.packet, choose_mac(neighbours, next_hop))
        text = await _ovn_trace(settings, microflow)
        verdict = judge(text, sender.port_id)
        row = await _row(southbound, northbound, verdict.step) if verdict.step else {}
        return TraceResult(microflow=microflow, trace=text, verdict=verdict, row=row)


@asynccontextmanager
async def _connected(remotes: tuple[Remote, ...], database: str, tls: Tls | None) -> AsyncIterator[Client]:
    client = Client(Settings(remotes=remotes, database=database, tables={}, tls=tls), lambda _: None)
    client.start()
    try:
        await client.wait_connected(COMMAND_TIMEOUT)
        yield client
    except TimeoutError:
        where = ", ".join(map(str, remotes))
        raise Untraceable(f"cannot connect to {database} at {where}: connection timed out") from None
    finally:
        await client.close()


async def _select(client: Client, table: str, columns: Sequence[str], *where: Json) -> list[dict[str, Any]]:
    operation = {"op": "select", "table": table, "where": list(where), "columns": list(columns)}
    [result] = await client.transact([operation], COMMAND_TIMEOUT)
    rows: list[dict[str, Any]] = result["rows"]
    return rows


_BINDING = ("logical_port", "datapath", "type", "mac", "options")


async def _binding(southbound: Client, northbound: Client, port: str) -> dict[str, Any]:
    found = await _select(southbound, "Port_Binding", _BINDING, ["logical_port", "==", port])
    if found:
        return found[0]
    names = set[str]()
    for key in NAME_KEYS:
        named = ["external_ids", "includes", ["map", [[key, port]]]]
        names |= {row["name"] for row in await _select(northbound, "Logical_Switch_Port", ("name",), named)}
    if len(names) > 1:
        raise Untraceable(f"port name {port} is ambiguous: {', '.join(sorted(names))}; use an id")
    for name in names:
        for row in await _select(southbound, "Port_Binding", _BINDING, ["logical_port", "==", name]):
            return row
    raise Untraceable(f"port {port} does not exist in OVN; use the port's id")


def _sender(binding: Mapping[str, Any], question: TraceRequest) -> Sender:
    port: str = binding["logical_port"]
    version = question.destination.version
    for entry in _texts(binding["mac"]):
        mac, *addresses = entry.split()
        own = [found for each in addresses if (found := ip_address(each.partition("/")[0])).version == version]
        if question.source is not None:
            own = [question.source]
        if ":" in mac and own:
            return Sender(port_id=port, mac=mac, address=own[0])
    raise Untraceable(f"port {port} has no MAC with an IPv{version} address in OVN; set --source")


async def _check_traceable(southbound: Client, northbound: Client, port: str, destination: IPAddress) -> None:
    """Reject addresses that depend on the chassis. Raises Untraceable.

    ovn-trace(8) has no template variables and treats every port as resident, so its result would be wrong.
    """
    for policy in await _select(northbound, "Logical_Router_Policy", ("match",)):
        if f"dst == {destination} && is_chassis_resident(" in policy["match"]:
            raise Untraceable(f"each chassis chooses separately for {destination} (a Local IP); {NO_CHASSIS}")
    for binding in await _select(southbound, "Port_Binding", ("chassis",), ["logical_port", "==", port]):
        for chassis in decode_uuids(binding["chassis"]):
            nodes = await _select(southbound, "Chassis", ("name",), ["_uuid", "==", encode_uuid(chassis)])
            for name in (node["name"] for node in nodes):
                rows = await _select(northbound, "Chassis_Template_Var", ("variables",), ["chassis", "==", name])
                if any(str(destination) in decode_map(row["variables"]).values() for row in rows):
                    what = f"{name} chooses separately for {destination} (members near the client, or a Local IP)"
                    raise Untraceable(f"{what}; {NO_CHASSIS}")


async def _neighbours(southbound: Client, datapath: Json) -> AsyncIterator[NeighbourPort]:
    for port in await _select(southbound, "Port_Binding", _BINDING, ["datapath", "==", datapath]):
        peer = decode_map(port["options"]).get("peer")
        peers = await _select(southbound, "Port_Binding", _BINDING, ["logical_port", "==", peer]) if peer else []
        for entry in (entry for row in (*peers, port) for entry in _texts(row["mac"])):
            mac, *addresses = entry.split()
            if ":" in mac:
                known = tuple(ip_interface(address) for address in addresses)
                yield NeighbourPort(mac=mac, addresses=known, of_router=bool(peer))


def _texts(column: Json) -> list[str]:
    """Return the non-empty texts."""
    return [text for text in (column[1] if isinstance(column, list) else [column]) if text.strip()]


async def _ovn_trace(settings: TracerSettings, microflow: str) -> str:
    words = ["ovn-trace", f"--db={','.join(map(str, settings.southbound))}", "--no-leader-only"]
    words += ["--no-friendly-names", *OPTIONS]
    if settings.tls is not None:
        words += ["-p", settings.tls.private_key, "-c", settings.tls.certificate, "-C", settings.tls.ca]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, microflow, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT):
            output, complaint = await process.communicate()
    except TimeoutError:
        raise Untraceable(f"ovn-trace timed out after {COMMAND_TIMEOUT:.0f} s") from None
    finally:
        await kill(process)
    if process.returncode != 0:
        raise Untraceable(f"ovn-trace: {complaint.decode(errors='replace').strip()}")
    return output.decode()


async def _row(southbound: Client, northbound: Client, step: Step) -> Mapping[str, str]:
    """Find the Northbound row of a flow, which refers to it by the first digits of its UUID."""
    where = [["pipeline", "==", step.pipeline], ["table_id", "==", step.table], ["priority", "==", step.priority]]
    flows = await _select(southbound, "Logical_Flow", ("_uuid", "external_ids"), *where)
    ids = [decode_map(flow["external_ids"]) for flow in flows if flow["_uuid"][1].startswith(step.uuid)]
    hint = ids[0].get("stage-hint", "") if ids else ""
    for table in ("ACL",) if "_acl" in step.stage else ("Load_Balancer",):
        for row in await _select(northbound, table, ("_uuid", "name", "external_ids")) if hint else ():
            if row["_uuid"][1].startswith(hint):
                name = row["name"] if isinstance(row["name"], str) else ""
                return {"table": table, "uuid": row["_uuid"][1], "name": name, **decode_map(row["external_ids"])}
    return {}

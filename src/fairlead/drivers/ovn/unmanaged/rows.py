"""Columns of unmanaged Northbound rows as values. No I/O.

Only required fields are kept, because Neutron writes some 1,500 bytes per port. A "modify" of a map has only changed
keys, so the kept keys are sufficient to apply it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from sys import intern
from typing import Any, TypeAlias

from fairlead.drivers.ovsdb.values import Json, decode_map, decode_optional, decode_set, decode_uuids

MAX_TEXT_LENGTH = 1000
"""Maximum characters of a kept text. Longer ones are truncated with a digest appended, so different texts differ."""
_LISTENS = re.compile(r"(?:lxd|incus)-net[0-9]{1,20}-lb-([0-9a-f.:]{2,39})-(?:tcp|udp)")
_Read: TypeAlias = Callable[[Json, Any], Iterator[tuple[str, Any]]]
"""Converts a column value (a difference for sets and maps) and the previous row to field values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRow:
    name: str = ""
    title: str = ""
    """Display name of the network."""
    mtu: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchPortRow:
    name: str = ""
    type: str = ""
    addresses: frozenset[str] = frozenset()
    dynamic: str = ""
    """Addresses that OVN allocated."""
    enabled: bool = True
    tag: int | None = None
    router_port: str = ""
    wire: str = ""
    chassis: str = ""
    """Requested chassis."""
    title: str = ""
    device_id: str = ""
    device_owner: str = ""
    project_id: str = ""
    cidrs: str = ""
    host: str = ""
    lxd_location: str = ""
    incus_location: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRow:
    name: str = ""
    enabled: bool = True
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterPortRow:
    name: str = ""
    mac: str = ""
    networks: frozenset[str] = frozenset()
    subnet_ids: str = ""
    is_gateway: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NatRow:
    type: str = ""
    external_ip: str = ""
    logical_ip: str = ""
    floating_ip_id: str = ""
    port_id: str = ""
    network_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRow:
    prefix: str = ""
    nexthop: str = ""
    subnet_id: str = ""
    """Subnet of a default route through its gateway."""
    is_gateway: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DhcpOptionsRow:
    cidr: str = ""
    router: str = ""
    mtu: str = ""
    subnet_id: str = ""
    network_id: str = ""
    port_id: str = ""
    """Port, for options of a single port."""
    lxd_switch: str = ""
    incus_switch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerRow:
    """Load balancer or forward of LXD or Incus."""

    listen: str = ""
    """Listen address from the name; "" for other programs' rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalRow:
    ignore_lsp_down: str = ""


UnmanagedRow: TypeAlias = (
    SwitchRow | SwitchPortRow | RouterRow | RouterPortRow | NatRow | RouteRow | DhcpOptionsRow | BalancerRow | GlobalRow
)


def _bounded(text: str) -> str:
    """Truncate and share a text, because many rows have equal ones."""
    if len(text) > MAX_TEXT_LENGTH:
        text = f"{text[: MAX_TEXT_LENGTH // 2]}…{sha256(text.encode(errors='replace')).hexdigest()}"
    return intern(text)


def _text(name: str) -> _Read:
    def read(value: Json, before: object) -> Iterator[tuple[str, Any]]:
        yield name, _bounded(decode_optional(value) or "")

    return read


def _listen(value: Json, before: object) -> Iterator[tuple[str, Any]]:
    found = _LISTENS.fullmatch(decode_optional(value) or "")
    yield "listen", found[1] if found else ""


def _enabled(value: Json, before: object) -> Iterator[tuple[str, Any]]:
    """No value is true."""
    yield "enabled", decode_optional(value) is not False


def _number(name: str) -> _Read:
    def read(value: Json, before: object) -> Iterator[tuple[str, Any]]:
        yield name, decode_optional(value)

    return read


def _texts(name: str) -> _Read:
    def read(value: Json, before: object) -> Iterator[tuple[str, Any]]:
        changed = frozenset(map(_bounded, decode_set(value)))
        yield name, getattr(before, name) ^ changed

    return read


def _read_map_keys(**fields: str) -> _Read:
    """Read keys of a map into fields; a missing key is ""."""
    names = {word: name for name, word in fields.items()}

    def read(value: Json, before: object) -> Iterator[tuple[str, Any]]:
        for word, text in decode_map(value).items():
            name = names.get(word)
            if name is not None:
                bounded = _bounded(text)
                yield name, "" if getattr(before, name) == bounded else bounded

    return read


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmanagedTable:
    empty: UnmanagedRow
    columns: Mapping[str, _Read]
    holds: Mapping[str, str] = field(default_factory=dict)
    """Column with child rows -> their table."""


TABLES: Mapping[str, UnmanagedTable] = {
    "NB_Global": UnmanagedTable(
        empty=GlobalRow(), columns={"options": _read_map_keys(ignore_lsp_down="ignore_lsp_down")}
    ),
    "Logical_Switch": UnmanagedTable(
        empty=SwitchRow(),
        columns={
            "name": _text("name"),
            "external_ids": _read_map_keys(title="neutron:network_name", mtu="neutron:mtu"),
        },
        holds={"ports": "Logical_Switch_Port"},
    ),
    "Logical_Switch_Port": UnmanagedTable(
        empty=SwitchPortRow(),
        columns={
            "name": _text("name"),
            "type": _text("type"),
            "addresses": _texts("addresses"),
            "dynamic_addresses": _text("dynamic"),
            "enabled": _enabled,
            "tag": _number("tag"),
            "options": _read_map_keys(router_port="router-port", wire="network_name", chassis="requested-chassis"),
            "external_ids": _read_map_keys(
                title="neutron:port_name",
                device_id="neutron:device_id",
                device_owner="neutron:device_owner",
                project_id="neutron:project_id",
                cidrs="neutron:cidrs",
                host="neutron:host_id",
                lxd_location="lxd_location",
                incus_location="incus_location",
            ),
        },
    ),
    "Logical_Router": UnmanagedTable(
        empty=RouterRow(),
        columns={
            "name": _text("name"),
            "enabled": _enabled,
            "external_ids": _read_map_keys(title="neutron:router_name"),
        },
        holds={"ports": "Logical_Router_Port", "static_routes": "Logical_Router_Static_Route", "nat": "NAT"},
    ),
    "Logical_Router_Port": UnmanagedTable(
        empty=RouterPortRow(),
        columns={
            "name": _text("name"),
            "mac": _text("mac"),
            "networks": _texts("networks"),
            "external_ids": _read_map_keys(subnet_ids="neutron:subnet_ids", is_gateway="neutron:is_ext_gw"),
        },
    ),
    "NAT": UnmanagedTable(
        empty=NatRow(),
        columns={
            "type": _text("type"),
            "external_ip": _text("external_ip"),
            "logical_ip": _text("logical_ip"),
            "external_ids": _read_map_keys(
                floating_ip_id="neutron:fip_id", port_id="neutron:fip_port_id", network_id="neutron:fip_network_id"
            ),
        },
    ),
    "Logical_Router_Static_Route": UnmanagedTable(
        empty=RouteRow(),
        columns={
            "ip_prefix": _text("prefix"),
            "nexthop": _text("nexthop"),
            "external_ids": _read_map_keys(subnet_id="neutron:subnet_id", is_gateway="neutron:is_ext_gw"),
        },
    ),
    "Load_Balancer": UnmanagedTable(empty=BalancerRow(), columns={"name": _listen}),
    "DHCP_Options": UnmanagedTable(
        empty=DhcpOptionsRow(),
        columns={
            "cidr": _text("cidr"),
            "options": _read_map_keys(router="router", mtu="mtu"),
            "external_ids": _read_map_keys(
                subnet_id="subnet_id",
                network_id="neutron:network_id",
                port_id="port_id",
                lxd_switch="lxd_switch",
                incus_switch="incus_switch",
            ),
        },
    ),
}


def read_row(table: str, before: UnmanagedRow, columns: Mapping[str, Json]) -> UnmanagedRow:
    """Apply column values to a row; for a known row they are differences (ovsdb-server(7), 4.1.14)."""
    found = dict[str, Any]()
    for column, value in columns.items():
        read = TABLES[table].columns.get(column)
        if read is not None:
            found.update(read(value, before))
    return replace(before, **found) if found else before


def read_held(table: str, columns: Mapping[str, Json]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (table, UUIDs) of the row's children; for a known row those added or removed."""
    for column, held in TABLES[table].holds.items():
        if column in columns:
            yield held, decode_uuids(columns[column])

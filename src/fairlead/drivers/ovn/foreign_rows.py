"""What is read of rows that others wrote into the Northbound database: their columns as values. No I/O.

Only what is needed is kept: Neutron writes some 1,500 bytes about each port. Of a map a "modify" tells the keys that
changed, so those that are kept are all that has to be known of it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from sys import intern
from typing import Any, TypeAlias

from fairlead.drivers.ovsdb.values import Json, decode_map, decode_optional, decode_set, decode_uuids

LONGEST_TEXT = 1000
"""Characters of a text that are kept. A longer one is kept as its beginning and its digest: no two look the same."""
_LISTENS = re.compile(r"(?:lxd|incus)-net[0-9]{1,20}-lb-([0-9a-f.:]{2,39})-(?:tcp|udp)")
_Read: TypeAlias = Callable[[Json, Any], Iterator[tuple[str, Any]]]
"""Takes a column's value, or of a set or map the difference, and the row before: gives fields with their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    name: str = ""
    title: str = ""
    """What people call the network."""
    mtu: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchPort:
    name: str = ""
    type: str = ""
    addresses: frozenset[str] = frozenset()
    dynamic: str = ""
    """Addresses that OVN chose."""
    enabled: bool = True
    tag: int | None = None
    router_port: str = ""
    wire: str = ""
    chassis: str = ""
    """On which it is asked for."""
    title: str = ""
    device_id: str = ""
    device_owner: str = ""
    project_id: str = ""
    cidrs: str = ""
    host: str = ""
    lxd_location: str = ""
    incus_location: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    name: str = ""
    enabled: bool = True
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterPort:
    name: str = ""
    mac: str = ""
    networks: frozenset[str] = frozenset()
    subnet_ids: str = ""
    is_gateway: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nat:
    type: str = ""
    external_ip: str = ""
    logical_ip: str = ""
    floating_ip_id: str = ""
    port_id: str = ""
    network_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    prefix: str = ""
    nexthop: str = ""
    subnet_id: str = ""
    """Of a route to the gateway of this subnet."""
    is_gateway: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dhcp:
    cidr: str = ""
    router: str = ""
    mtu: str = ""
    subnet_id: str = ""
    network_id: str = ""
    port_id: str = ""
    """Of options that one port has for itself."""
    lxd_switch: str = ""
    incus_switch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balancer:
    """A load balancer or a forward of LXD or Incus."""

    listen: str = ""
    """The address, which its name has; empty in rows of other programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Global:
    ignore_lsp_down: str = ""


Row: TypeAlias = Switch | SwitchPort | Router | RouterPort | Nat | Route | Dhcp | Balancer | Global


def _bounded(text: str) -> str:
    """Many rows have the same texts: one of each is kept."""
    if len(text) > LONGEST_TEXT:
        text = f"{text[: LONGEST_TEXT // 2]}…{sha256(text.encode(errors='replace')).hexdigest()}"
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


def _words(**fields: str) -> _Read:
    """Of a map: field -> the key that it is. One that is not there is the empty text."""
    names = {word: name for name, word in fields.items()}

    def read(value: Json, before: object) -> Iterator[tuple[str, Any]]:
        for word, text in decode_map(value).items():
            name = names.get(word)
            if name is not None:
                bounded = _bounded(text)
                yield name, "" if getattr(before, name) == bounded else bounded

    return read


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    empty: Row
    columns: Mapping[str, _Read]
    holds: Mapping[str, str] = field(default_factory=dict)
    """Its columns that have the rows which go with it -> the table of these."""


TABLES: Mapping[str, Table] = {
    "NB_Global": Table(empty=Global(), columns={"options": _words(ignore_lsp_down="ignore_lsp_down")}),
    "Logical_Switch": Table(
        empty=Switch(),
        columns={
            "name": _text("name"),
            "external_ids": _words(title="neutron:network_name", mtu="neutron:mtu"),
        },
        holds={"ports": "Logical_Switch_Port"},
    ),
    "Logical_Switch_Port": Table(
        empty=SwitchPort(),
        columns={
            "name": _text("name"),
            "type": _text("type"),
            "addresses": _texts("addresses"),
            "dynamic_addresses": _text("dynamic"),
            "enabled": _enabled,
            "tag": _number("tag"),
            "options": _words(router_port="router-port", wire="network_name", chassis="requested-chassis"),
            "external_ids": _words(
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
    "Logical_Router": Table(
        empty=Router(),
        columns={
            "name": _text("name"),
            "enabled": _enabled,
            "external_ids": _words(title="neutron:router_name"),
        },
        holds={"ports": "Logical_Router_Port", "static_routes": "Logical_Router_Static_Route", "nat": "NAT"},
    ),
    "Logical_Router_Port": Table(
        empty=RouterPort(),
        columns={
            "name": _text("name"),
            "mac": _text("mac"),
            "networks": _texts("networks"),
            "external_ids": _words(subnet_ids="neutron:subnet_ids", is_gateway="neutron:is_ext_gw"),
        },
    ),
    "NAT": Table(
        empty=Nat(),
        columns={
            "type": _text("type"),
            "external_ip": _text("external_ip"),
            "logical_ip": _text("logical_ip"),
            "external_ids": _words(
                floating_ip_id="neutron:fip_id", port_id="neutron:fip_port_id", network_id="neutron:fip_network_id"
            ),
        },
    ),
    "Logical_Router_Static_Route": Table(
        empty=Route(),
        columns={
            "ip_prefix": _text("prefix"),
            "nexthop": _text("nexthop"),
            "external_ids": _words(subnet_id="neutron:subnet_id", is_gateway="neutron:is_ext_gw"),
        },
    ),
    "Load_Balancer": Table(empty=Balancer(), columns={"name": _listen}),
    "DHCP_Options": Table(
        empty=Dhcp(),
        columns={
            "cidr": _text("cidr"),
            "options": _words(router="router", mtu="mtu"),
            "external_ids": _words(
                subnet_id="subnet_id",
                network_id="neutron:network_id",
                port_id="port_id",
                lxd_switch="lxd_switch",
                incus_switch="incus_switch",
            ),
        },
    ),
}


def read_row(table: str, before: Row, columns: Mapping[str, Json]) -> Row:
    """The row with these values of its columns; or, if it was there before, with these differences (ovsdb-server(7),
    4.1.14)."""
    found = dict[str, Any]()
    for column, value in columns.items():
        read = TABLES[table].columns.get(column)
        if read is not None:
            found.update(read(value, before))
    return replace(before, **found) if found else before


def read_held(table: str, columns: Mapping[str, Json]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(table, UUIDs) of the rows that go with this one; of one that was there before those that came or went."""
    for column, held in TABLES[table].holds.items():
        if column in columns:
            yield held, decode_uuids(columns[column])

"""The tables of the OVN Northbound database (ovn-nb(5)) that have rows of ours, each declared once.

A table is what a row's fields are called there and in which form they are, and who holds it: some rows exist only in a
column of another. A shared column is a set whose elements are rows of ours, of whichever owner. Who refers to whom,
what is watched, written, compared and deleted first follows from this.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from fairlead.dataplane.ovn import (
    GatewayChassis,
    GroupMember,
    LoadBalancer,
    LoadBalancerGroup,
    LoadBalancerHealthCheck,
    LogicalRouter,
    LogicalRouterPort,
    LogicalSwitch,
    LogicalSwitchPort,
    Nat,
    OvnRow,
    PortAddress,
    RouterGroup,
    StaticRoute,
    SwitchGroup,
    SwitchPortAddress,
)
from fairlead.dataplane.ovn_chassis import ChassisVariable
from fairlead.dataplane.ovn_rules import Acl, LogicalRouterPolicy, PortGroup, PortGroupPort, Qos
from fairlead.dataplane.rows import Key


class Form(Enum):
    """How a field is a column's value."""

    TEXT = auto()
    NUMBER = auto()
    TEXT_OR_NONE = auto()
    """No value is the empty text."""
    NUMBER_OR_NONE = auto()
    TEXTS = auto()
    PAIRS = auto()
    ENABLED = auto()
    """No value is true."""
    SERVICES = auto()
    """Load_Balancer:vips."""
    TITLE = auto()
    """A word of `external_ids`."""
    RATE = auto()
    """QoS:bandwidth."""
    DISPLACED = auto()
    """Another one."""
    MARK = auto()
    """The name in it says whose the row is."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    form: Form = Form.TEXT
    field: str = ""
    """Of the row; the column's name unless said."""
    read: bool = True
    """False for what follows from other fields: it is written, and never looked at."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The row without which one cannot be, and goes with it."""

    table: str
    column: str
    field: str
    """Of the row that is held: the holder's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    name: str
    row: type
    columns: tuple[Column, ...]
    holder: Holder | None = None
    key_parts: int = 2
    """The table and the row's name, unless rows have none of their own."""
    named_by_key: bool = False
    """No column has its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Rows that are one element of a column of a row which others share."""

    row: type
    table: str
    column: str
    holder: str
    """The field that names the row whose column it is."""
    element: str
    """The field that is the element, or names the row that is."""
    target: str | None
    """The table of the rows that are elements; None where they are texts."""
    owned_by_holder: bool = False
    """Whether an element belongs to the owner of the row that holds it. Otherwise it belongs to the owner of the row
    that it refers to."""
    needed: bool = False
    """Whether the column has one element at least (ovn-nb(5))."""
    value: str = ""
    """The field with the element's value, in a column that is a map: then elements are marked each for itself, and the
    row that holds them is nobody's. It is made with the first element, and found by the column `holder`."""


FOREIGN_TABLES = frozenset({"Logical_Switch", "Logical_Router", "Logical_Switch_Port"})
"""Rows of others in which ours may be, or that ours refer to. The name of one is `<name>@<UUID>`."""
_FOREIGN = re.compile(r"(?:.*)@([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.DOTALL)


def foreign_name(name: str, uuid: str) -> str:
    """How rows of ours call a row of somebody else, whose name may be another's too."""
    return f"{name}@{uuid}"


def foreign_uuid(key: Key) -> str | None:
    """Of the row of somebody else that has this key; None for one of ours: none of our names has the sign."""
    if key[0] not in FOREIGN_TABLES or "@" not in key[1]:
        return None
    found = _FOREIGN.fullmatch(key[1])
    return found and found[1]


_WORD = "external_ids:"
TITLE = f"{_WORD}fairlead:name"
INSTEAD = f"{_WORD}fairlead:instead-of"
WORDS: Mapping[str, str] = {column: column.removeprefix(_WORD) for column in (TITLE, INSTEAD)}
"""What is a column of a row here, and there a word of its `external_ids`."""
_NAME, _TITLE = Column("name"), Column(TITLE, Form.TITLE, "title")
_OPTIONS, _ENABLED = Column("options", Form.PAIRS), Column("enabled", Form.ENABLED)

TABLES: Mapping[str, Table] = {
    table.name: table
    for table in (
        Table(
            name="Logical_Switch",
            row=LogicalSwitch,
            columns=(_NAME, _TITLE, Column("other_config", Form.PAIRS)),
        ),
        Table(
            name="Logical_Switch_Port",
            row=LogicalSwitchPort,
            holder=Holder("Logical_Switch", "ports", "switch"),
            columns=(
                *(_NAME, _TITLE, Column("type"), Column("addresses", Form.TEXTS), Column("port_security", Form.TEXTS)),
                *(_OPTIONS, Column("tag", Form.NUMBER_OR_NONE), Column("tag_request", Form.NUMBER_OR_NONE), _ENABLED),
            ),
        ),
        Table(name="Logical_Router", row=LogicalRouter, columns=(_NAME, _TITLE, _ENABLED, _OPTIONS)),
        Table(
            name="Logical_Router_Port",
            row=LogicalRouterPort,
            holder=Holder("Logical_Router", "ports", "router"),
            columns=(_NAME, Column("mac"), Column("networks", Form.TEXTS), _ENABLED, _OPTIONS),
        ),
        Table(
            name="Gateway_Chassis",
            row=GatewayChassis,
            holder=Holder("Logical_Router_Port", "gateway_chassis", "port"),
            columns=(
                *(Column("name", read=False), Column("chassis_name", field="chassis")),
                Column("priority", Form.NUMBER),
            ),
            key_parts=3,
        ),
        Table(
            name="NAT",
            row=Nat,
            holder=Holder("Logical_Router", "nat", "router"),
            columns=(Column("type"), Column("external_ip"), Column("logical_ip")),
            named_by_key=True,
        ),
        Table(
            name="Logical_Router_Static_Route",
            row=StaticRoute,
            holder=Holder("Logical_Router", "static_routes", "router"),
            columns=(Column("ip_prefix"), Column("nexthop"), Column("policy", Form.TEXT_OR_NONE)),
            key_parts=4,
        ),
        Table(
            name="Logical_Router_Policy",
            row=LogicalRouterPolicy,
            holder=Holder("Logical_Router", "policies", "router"),
            columns=(
                Column("priority", Form.NUMBER),
                Column("match"),
                Column("action"),
                Column("nexthops", Form.TEXTS),
            ),
            named_by_key=True,
        ),
        Table(
            name="Load_Balancer",
            row=LoadBalancer,
            columns=(
                *(_NAME, _TITLE, Column("protocol", Form.TEXT_OR_NONE), Column("vips", Form.SERVICES, "services")),
                *(Column("selection_fields", Form.TEXTS), _OPTIONS, Column("ip_port_mappings", Form.PAIRS)),
                Column(INSTEAD, Form.DISPLACED, "instead_of"),
            ),
        ),
        Table(
            name="Load_Balancer_Health_Check",
            row=LoadBalancerHealthCheck,
            holder=Holder("Load_Balancer", "health_check", "load_balancer"),
            columns=(Column("vip"), _OPTIONS),
            key_parts=3,
        ),
        Table(name="Load_Balancer_Group", row=LoadBalancerGroup, columns=(Column("name", Form.MARK),)),
        Table(name="Port_Group", row=PortGroup, columns=(_NAME,)),
        Table(
            name="ACL",
            row=Acl,
            holder=Holder("Port_Group", "acls", "group"),
            columns=(
                *(Column("direction"), Column("priority", Form.NUMBER), Column("match"), Column("action"), _OPTIONS),
            ),
            named_by_key=True,
        ),
        Table(
            name="QoS",
            row=Qos,
            holder=Holder("Logical_Switch", "qos_rules", "switch"),
            columns=(
                *(Column("direction"), Column("priority", Form.NUMBER), Column("match")),
                Column("bandwidth", Form.RATE, "rate"),
            ),
            named_by_key=True,
        ),
    )
}
"""By name. The names of ACLs, QoS rows, policies and NAT entries are in their keys alone."""

SHARED: tuple[Shared, ...] = (
    Shared(
        row=GroupMember,
        table="Load_Balancer_Group",
        column="load_balancer",
        holder="group",
        element="load_balancer",
        target="Load_Balancer",
    ),
    Shared(
        row=SwitchGroup,
        table="Logical_Switch",
        column="load_balancer_group",
        holder="switch",
        element="group",
        target="Load_Balancer_Group",
    ),
    Shared(
        row=RouterGroup,
        table="Logical_Router",
        column="load_balancer_group",
        holder="router",
        element="group",
        target="Load_Balancer_Group",
    ),
    Shared(
        row=PortAddress,
        table="Logical_Router_Port",
        column="networks",
        holder="port",
        element="network",
        target=None,
        needed=True,
    ),
    Shared(
        row=SwitchPortAddress,
        table="Logical_Switch_Port",
        column="addresses",
        holder="port",
        element="address",
        target=None,
    ),
    Shared(
        row=PortGroupPort,
        table="Port_Group",
        column="ports",
        holder="group",
        element="port",
        target="Logical_Switch_Port",
        owned_by_holder=True,
    ),
    Shared(
        row=ChassisVariable,
        table="Chassis_Template_Var",
        column="variables",
        holder="chassis",
        element="name",
        target=None,
        value="values",
    ),
)

TABLE_OF: Mapping[type, Table] = {table.row: table for table in TABLES.values()}
SHARED_OF: Mapping[type, Shared] = {shared.row: shared for shared in SHARED}
SHARED_AT: Mapping[tuple[str, str], Shared] = {(shared.table, shared.column): shared for shared in SHARED}
SHARED_TEXTS: Mapping[str, Shared] = {
    shared.table: shared for shared in SHARED if shared.target is None and not shared.value
}
"""By table, the column of texts that has its row's own, which are a field of the same name, and those of others, each
with a mark beside it."""
_CHILDREN = [(table.holder.table, table.holder.column) for table in TABLES.values() if table.holder is not None]
CHILDREN = frozenset(_CHILDREN)
"""(table, column) of those that hold the rows without which these could not be."""
HELD: Mapping[str, tuple[str, ...]] = {
    name: tuple(
        column
        for table, column in (*_CHILDREN, *((each.table, each.column) for each in SHARED if each.target))
        if table == name
    )
    for name in TABLES
}
"""The columns with elements of several owners: rows, or references to rows. A change of one element must not look like
a change of the others."""


def references(row: OvnRow) -> tuple[Key, ...]:
    """The rows that must exist before this one can, and as long as it does: ours."""
    return tuple(key for key in all_references(row) if foreign_uuid(key) is None)


def all_references(row: OvnRow) -> tuple[Key, ...]:
    """And those of others."""
    shared = SHARED_OF.get(type(row))
    if shared is not None and shared.value:
        return ()
    if shared is not None:
        holder = (shared.table, getattr(row, shared.holder))
        return (holder,) if shared.target is None else (holder, (shared.target, getattr(row, shared.element)))
    held = TABLE_OF[type(row)].holder
    return () if held is None else ((held.table, getattr(row, held.field)),)

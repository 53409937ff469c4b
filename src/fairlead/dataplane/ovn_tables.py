"""Tables of the OVN Northbound database (ovn-nb(5)) with managed rows, each declared once.

A table declares the column and format of each field of a row, and its holder, because some rows exist only in a column
of another row. A shared column is a set with elements that are managed rows of any owner. References, monitored
columns, writes, comparison and deletion order are derived from these declarations.
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
    """Format of a field as a column value."""

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
    """Key of `external_ids`."""
    RATE = auto()
    """QoS:bandwidth."""
    STOCK_ROWS = auto()
    """Key of `external_ids` for `LoadBalancer.instead_of`."""
    MARK = auto()
    """Name that contains the ownership mark."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    form: Form = Form.TEXT
    field: str = ""
    """Field of the row; "" if it has the column's name."""
    read: bool = True
    """False for a column derived from other fields: written, but never compared."""


@dataclass(frozen=True, slots=True)
class ParentRow:
    """Parent row that a row needs and is deleted with."""

    table: str
    column: str
    field: str
    """Field of the held row that has the parent's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedTable:
    name: str
    row: type
    columns: tuple[Column, ...]
    parent: ParentRow | None = None
    key_parts: int = 2
    """Parts of a key: the table and the row's name, or more for rows without a name."""
    named_by_key: bool = False
    """Whether the name is only in the key, and in no column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedElement:
    """Rows that are one element of a column of a shared row."""

    row: type
    table: str
    column: str
    holder: str
    """Field that names the row with the column."""
    element: str
    """Field that is the element, or the name of the row that is."""
    target: str | None
    """Table of the rows that are elements; None for texts."""
    owned_by_holder: bool = False
    """Whether an element belongs to the owner of the row that holds it, and not to that of the row it refers to."""
    needed: bool = False
    """Whether the column needs at least one element (ovn-nb(5))."""
    value: str = ""
    """Field with the element's value, in a map column.

    Each element has its own mark then, and the row that holds them has no owner: it is created with the first element
    and found by the column `holder`.
    """


UNMANAGED_TABLES = frozenset({"Logical_Switch", "Logical_Router", "Logical_Switch_Port"})
"""Tables with unmanaged rows that hold managed rows, or that managed rows refer to, as `<name>@<UUID>`."""
_UNMANAGED = re.compile(r"(?:.*)@([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.DOTALL)


def unmanaged_name(name: str, uuid: str) -> str:
    """Name that managed rows use for an unmanaged row. The UUID is needed because its name may not be unique."""
    return f"{name}@{uuid}"


def unmanaged_uuid(key: Key) -> str | None:
    """Return the UUID of an unmanaged row with this key; None for a managed row, which has no `@` in its name."""
    if key[0] not in UNMANAGED_TABLES or "@" not in key[1]:
        return None
    found = _UNMANAGED.fullmatch(key[1])
    return found and found[1]


_WORD = "external_ids:"
TITLE_COLUMN = f"{_WORD}fairlead:name"
STOCK_ROWS_COLUMN = f"{_WORD}fairlead:instead-of"
EXTERNAL_ID_COLUMNS: Mapping[str, str] = {
    column: column.removeprefix(_WORD) for column in (TITLE_COLUMN, STOCK_ROWS_COLUMN)
}
"""Columns of managed rows that are stored as keys of `external_ids`."""
_NAME, _TITLE = Column("name"), Column(TITLE_COLUMN, Form.TITLE, "title")
_OPTIONS, _ENABLED = Column("options", Form.PAIRS), Column("enabled", Form.ENABLED)

TABLES: Mapping[str, ManagedTable] = {
    table.name: table
    for table in (
        ManagedTable(
            name="Logical_Switch",
            row=LogicalSwitch,
            columns=(_NAME, _TITLE, Column("other_config", Form.PAIRS)),
        ),
        ManagedTable(
            name="Logical_Switch_Port",
            row=LogicalSwitchPort,
            parent=ParentRow("Logical_Switch", "ports", "switch"),
            columns=(
                *(_NAME, _TITLE, Column("type"), Column("addresses", Form.TEXTS), Column("port_security", Form.TEXTS)),
                *(_OPTIONS, Column("tag", Form.NUMBER_OR_NONE), Column("tag_request", Form.NUMBER_OR_NONE), _ENABLED),
            ),
        ),
        ManagedTable(name="Logical_Router", row=LogicalRouter, columns=(_NAME, _TITLE, _ENABLED, _OPTIONS)),
        ManagedTable(
            name="Logical_Router_Port",
            row=LogicalRouterPort,
            parent=ParentRow("Logical_Router", "ports", "router"),
            columns=(_NAME, Column("mac"), Column("networks", Form.TEXTS), _ENABLED, _OPTIONS),
        ),
        ManagedTable(
            name="Gateway_Chassis",
            row=GatewayChassis,
            parent=ParentRow("Logical_Router_Port", "gateway_chassis", "port"),
            columns=(
                *(Column("name", read=False), Column("chassis_name", field="chassis")),
                Column("priority", Form.NUMBER),
            ),
            key_parts=3,
        ),
        ManagedTable(
            name="NAT",
            row=Nat,
            parent=ParentRow("Logical_Router", "nat", "router"),
            columns=(Column("type"), Column("external_ip"), Column("logical_ip")),
            named_by_key=True,
        ),
        ManagedTable(
            name="Logical_Router_Static_Route",
            row=StaticRoute,
            parent=ParentRow("Logical_Router", "static_routes", "router"),
            columns=(Column("ip_prefix"), Column("nexthop"), Column("policy", Form.TEXT_OR_NONE)),
            key_parts=4,
        ),
        ManagedTable(
            name="Logical_Router_Policy",
            row=LogicalRouterPolicy,
            parent=ParentRow("Logical_Router", "policies", "router"),
            columns=(
                Column("priority", Form.NUMBER),
                Column("match"),
                Column("action"),
                Column("nexthops", Form.TEXTS),
            ),
            named_by_key=True,
        ),
        ManagedTable(
            name="Load_Balancer",
            row=LoadBalancer,
            columns=(
                *(_NAME, _TITLE, Column("protocol", Form.TEXT_OR_NONE), Column("vips", Form.SERVICES, "services")),
                *(Column("selection_fields", Form.TEXTS), _OPTIONS, Column("ip_port_mappings", Form.PAIRS)),
                Column(STOCK_ROWS_COLUMN, Form.STOCK_ROWS, "instead_of"),
            ),
        ),
        ManagedTable(
            name="Load_Balancer_Health_Check",
            row=LoadBalancerHealthCheck,
            parent=ParentRow("Load_Balancer", "health_check", "load_balancer"),
            columns=(Column("vip"), _OPTIONS),
            key_parts=3,
        ),
        ManagedTable(name="Load_Balancer_Group", row=LoadBalancerGroup, columns=(Column("name", Form.MARK),)),
        ManagedTable(name="Port_Group", row=PortGroup, columns=(_NAME,)),
        ManagedTable(
            name="ACL",
            row=Acl,
            parent=ParentRow("Port_Group", "acls", "group"),
            columns=(
                *(Column("direction"), Column("priority", Form.NUMBER), Column("match"), Column("action"), _OPTIONS),
            ),
            named_by_key=True,
        ),
        ManagedTable(
            name="QoS",
            row=Qos,
            parent=ParentRow("Logical_Switch", "qos_rules", "switch"),
            columns=(
                *(Column("direction"), Column("priority", Form.NUMBER), Column("match")),
                Column("bandwidth", Form.RATE, "rate"),
            ),
            named_by_key=True,
        ),
    )
}
"""Tables by name. Names of ACLs, QoS rows, policies and NAT entries exist only in their keys."""

SHARED: tuple[SharedElement, ...] = (
    SharedElement(
        row=GroupMember,
        table="Load_Balancer_Group",
        column="load_balancer",
        holder="group",
        element="load_balancer",
        target="Load_Balancer",
    ),
    SharedElement(
        row=SwitchGroup,
        table="Logical_Switch",
        column="load_balancer_group",
        holder="switch",
        element="group",
        target="Load_Balancer_Group",
    ),
    SharedElement(
        row=RouterGroup,
        table="Logical_Router",
        column="load_balancer_group",
        holder="router",
        element="group",
        target="Load_Balancer_Group",
    ),
    SharedElement(
        row=PortAddress,
        table="Logical_Router_Port",
        column="networks",
        holder="port",
        element="network",
        target=None,
        needed=True,
    ),
    SharedElement(
        row=SwitchPortAddress,
        table="Logical_Switch_Port",
        column="addresses",
        holder="port",
        element="address",
        target=None,
    ),
    SharedElement(
        row=PortGroupPort,
        table="Port_Group",
        column="ports",
        holder="group",
        element="port",
        target="Logical_Switch_Port",
        owned_by_holder=True,
    ),
    SharedElement(
        row=ChassisVariable,
        table="Chassis_Template_Var",
        column="variables",
        holder="chassis",
        element="name",
        target=None,
        value="values",
    ),
)

TABLE_OF: Mapping[type, ManagedTable] = {table.row: table for table in TABLES.values()}
SHARED_OF: Mapping[type, SharedElement] = {shared.row: shared for shared in SHARED}
SHARED_AT: Mapping[tuple[str, str], SharedElement] = {(shared.table, shared.column): shared for shared in SHARED}
SHARED_TEXTS: Mapping[str, SharedElement] = {
    shared.table: shared for shared in SHARED if shared.target is None and not shared.value
}
"""Table -> column of texts with the row's own (a field of the same name) and those of other owners, each with a
mark."""
_CHILDREN = [(table.parent.table, table.parent.column) for table in TABLES.values() if table.parent is not None]
CHILDREN = frozenset(_CHILDREN)
"""(table, column) pairs that hold child rows."""
SHARED_COLUMNS: Mapping[str, tuple[str, ...]] = {
    name: tuple(
        column
        for table, column in (*_CHILDREN, *((each.table, each.column) for each in SHARED if each.target))
        if table == name
    )
    for name in TABLES
}
"""Columns with elements of several owners: rows, or references to rows. Changes of other elements are no drift."""


def references(row: OvnRow) -> tuple[Key, ...]:
    """Return the keys of the managed rows that have to exist as long as this row does."""
    return tuple(key for key in all_references(row) if unmanaged_uuid(key) is None)


def all_references(row: OvnRow) -> tuple[Key, ...]:
    """Return the keys of all rows, also unmanaged ones, that have to exist as long as this row does."""
    shared = SHARED_OF.get(type(row))
    if shared is not None and shared.value:
        return ()
    if shared is not None:
        holder = (shared.table, getattr(row, shared.holder))
        return (holder,) if shared.target is None else (holder, (shared.target, getattr(row, shared.element)))
    held = TABLE_OF[type(row)].parent
    return () if held is None else ((held.table, getattr(row, held.field)),)

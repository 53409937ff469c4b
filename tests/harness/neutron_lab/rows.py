"""The Northbound database as rows of plain JSON: Neutron's rows, with and without Fairlead's.

`northbound.json` is one request to an OVSDB server (`ovsdb-client transact`) that fills an empty database with the rows
of a Neutron 29 for a small cloud: n1 (IPv4, and IPv6 without router advertisements), n2 (no DHCP, SLAAC), n3 (stateful
DHCPv6, no router), a VLAN as a tenant's network, a flat external network, a network shared by another project, a router
with a gateway, bound machines, VIP ports as made by Octavia and OVN's stock provider, and floating IPs.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from fairlead.lab import Lab

RECORDED = Path(__file__).parents[2] / "neutron_lab" / "northbound.json"
DATABASE = "OVN_Northbound"
UNCOMPARED_TABLES = {"Connection", "SSL"}
"""Tables about the database server itself."""
OWNER_KEY = "fairlead"
Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = dict[str, dict[str, Row]]
"""Rows by table and UUID."""


def read_recording() -> Rows:
    rows: Rows = {}
    for operation in json.loads(RECORDED.read_text())[1:]:
        rows.setdefault(operation["table"], {})[operation.get("uuid", "")] = operation["row"]
    return rows


def read(lab: Lab) -> Rows:
    """All rows without empty columns, as in the recording."""
    schema = json.loads(lab.exec("central", ["ovsdb-client", "get-schema", lab.northbound, DATABASE]))
    tables = sorted(set(schema["tables"]) - UNCOMPARED_TABLES)
    request = [DATABASE, *({"op": "select", "table": table, "where": []} for table in tables)]
    answers = json.loads(lab.exec("central", ["ovsdb-client", "transact", lab.northbound, json.dumps(request)]))
    return {
        table: {row["_uuid"][1]: _non_empty_columns(row) for row in answer["rows"]}
        for table, answer in zip(tables, answers, strict=True)
        if answer["rows"]
    }


def shape(rows: Rows) -> dict[str, set[str]]:
    """Non-empty columns of each table, and the keys of its maps."""
    return {table: {word for row in each.values() for word in _columns_and_keys(row)} for table, each in rows.items()}


def without_ours(rows: Rows) -> Rows:
    """Rows of other programs, without Fairlead's elements in their columns.

    NB_Global is left out, because it always changes.
    """
    left = without(rows, {identity for each in rows.values() for identity, row in each.items() if _is_ours(row)})
    return {table: each for table, each in left.items() if table != "NB_Global"}


def without(rows: Rows, gone: set[str]) -> Rows:
    """Rows without these and without references to them."""
    return {
        table: left
        for table, each in rows.items()
        if (
            left := {identity: _without_references(row, gone) for identity, row in each.items() if identity not in gone}
        )
    }


def read_neutron_rows(lab: Lab) -> Rows:
    """Current rows of Neutron, without values that change by themselves."""
    return without_revisions(without_ours(read(lab)))


def without_revisions(rows: Rows) -> Rows:
    """Rows without revision numbers. Neutron's maintenance process updates them minutes after a change."""
    return {
        table: {
            identity: {column: _without_revision(value) for column, value in row.items()}
            for identity, row in each.items()
        }
        for table, each in rows.items()
    }


def _without_revision(value: Any) -> Any:
    if not (isinstance(value, list) and value[0] == "map"):
        return value
    return ["map", [pair for pair in value[1] if pair[0] != "neutron:revision_number"]]


def differences(before: Rows, after: Rows) -> list[str]:
    """Differences as text: row, column, old and new value."""
    return [
        f"{table} {identity}: {column} was {old.get(column)}, is {new.get(column)}"
        for table in sorted({*before, *after})
        for identity in sorted({*before.get(table, {}), *after.get(table, {})})
        for old, new in [(before.get(table, {}).get(identity, {}), after.get(table, {}).get(identity, {}))]
        for column in sorted({*old, *new})
        if old.get(column) != new.get(column)
    ]


def _is_ours(row: Row) -> bool:
    """Whether the row has Fairlead's mark, by which the driver finds it after a restart. Groups have only a name."""
    return OWNER_KEY in _mapping(row.get("external_ids")) or str(row.get("name", "")).startswith(f"{OWNER_KEY},")


def _without_references(row: Row, gone: set[str]) -> Row:
    left = {column: _without(value, gone) for column, value in row.items()}
    return {column: value for column, value in left.items() if not _is_nothing(value)}


def _without(value: Any, gone: set[str]) -> Any:
    """Set of references without some of them; a set of one is encoded as the element."""
    atoms = value[1] if isinstance(value, list) and value[0] == "set" else [value]
    left = [atom for atom in atoms if not (isinstance(atom, list) and atom[0] == "uuid" and atom[1] in gone)]
    if len(left) == len(atoms):
        return value
    return left[0] if len(left) == 1 else ["set", left]


def _non_empty_columns(row: Row) -> Row:
    return {column: value for column, value in sorted(row.items()) if column[0] != "_" and not _is_nothing(value)}


def _is_nothing(value: Any) -> bool:
    return value in (["set", []], ["map", []], "", False, 0)


def _columns_and_keys(row: Row) -> Iterable[str]:
    for column, value in row.items():
        yield column
        yield from (f"{column}:{key}" for key in _mapping(value))


def _mapping(value: Any) -> Mapping[str, str]:
    return dict(value[1]) if isinstance(value, list) and value[0] == "map" else {}

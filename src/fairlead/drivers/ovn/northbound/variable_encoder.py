"""Encoder of template variables as operations of one transaction: keys of a map shared by all users of OVN. No I/O.

Elements are inserted and deleted individually, all of a chassis in one operation. The row of a chassis is created with
its first element, by any owner, and kept when it is empty: ovn-controller of OVN 23.03 fails an assertion
(`template_vars_update`) when the row of its chassis is deleted and re-created.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from fairlead.dataplane.ovn_chassis import ChassisVariable
from fairlead.dataplane.ovn_tables import SHARED_OF
from fairlead.dataplane.rows import Diff, Key, Row
from fairlead.drivers.ovn.northbound.marks import Mark, variable_mark_key
from fairlead.drivers.ovsdb.values import Json, encode_map, encode_set
from fairlead.model.documents.owner import Owner

_PLACE = SHARED_OF[ChassisVariable]


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableEncoder:
    mark: Mark
    owner: Owner
    known_chassis: Container[str]
    """Chassis that have a row."""

    def encode(self, change: Diff) -> Iterator[Json]:
        """Yield the operations for the variables in the diff; the caller waits for the previous values of updates."""
        updated = (update.after for update in change.updates.values())
        wanted, gone = _by_chassis([*change.creates.values(), *updated]), _by_chassis(change.deletes.values())
        for chassis in sorted({*wanted, *gone}):
            if wanted[chassis] and chassis not in self.known_chassis:
                row = {_PLACE.holder: chassis, "external_ids": encode_map(self.mark.shared_row_ids)}
                yield {"op": "insert", "table": _PLACE.table, "row": row}
            yield self._mutate(chassis, wanted[chassis], gone[chassis])

    def _mutate(self, chassis: str, wanted: list[ChassisVariable], gone: list[ChassisVariable]) -> Json:
        """Replace keys by deleting them first, because an insert does not change an existing key (RFC 7047, 5.1)."""
        names = [row.name for row in (*wanted, *gone)]
        marks: dict[str, str] = {}
        for row in wanted:
            marks |= self.mark.variable_mark(self.owner, row.name)
        mutations = [
            [_PLACE.column, "delete", encode_set(names)],
            [_PLACE.column, "insert", encode_map({row.name: row.text for row in wanted})],
            ["external_ids", "delete", encode_set(map(variable_mark_key, names))],
            ["external_ids", "insert", encode_map(marks)],
        ]
        where = [[_PLACE.holder, "==", chassis]]
        return {"op": "mutate", "table": _PLACE.table, "where": where, "mutations": mutations}


def without_variables(rows: Mapping[Key, Row]) -> dict[Key, Row]:
    return {key: row for key, row in rows.items() if not isinstance(row, ChassisVariable)}


def wait_for_variable(row: ChassisVariable) -> Json:
    """Operation that fails immediately unless the variable has this value."""
    where = [[_PLACE.holder, "==", row.chassis], [_PLACE.column, "includes", encode_map({row.name: row.text})]]
    wanted = {"columns": [_PLACE.holder], "until": "==", "rows": [{_PLACE.holder: row.chassis}]}
    return {"op": "wait", "timeout": 0, "table": _PLACE.table, "where": where, **wanted}


def _by_chassis(rows: Iterable[Row]) -> defaultdict[str, list[ChassisVariable]]:
    found = defaultdict[str, list[ChassisVariable]](list)
    for row in rows:
        if isinstance(row, ChassisVariable):
            found[row.chassis].append(row)
    return found

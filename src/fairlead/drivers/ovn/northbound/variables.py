"""Managed template variables in the replica: one row per chassis, shared with other users of OVN.

An element of Chassis_Template_Var:variables is managed if `external_ids` of its row have a mark with its name and
owner.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fairlead.dataplane.ovn_chassis import ChassisVariable
from fairlead.drivers.ovn.northbound.marks import Mark, read_variable_mark
from fairlead.drivers.ovsdb.values import Json, decode_map
from fairlead.model.documents.owner import Owner

COLUMN = "variables"
_EMPTY_MAP: Json = ["map", []]


@dataclass(slots=True)
class _Row:
    chassis: str
    texts: dict[str, str] = field(default_factory=dict)
    """All variables by name, including unmanaged ones, because a mark may arrive after its variable."""
    marks: dict[str, str] = field(default_factory=dict)
    """Name -> owner, as text of the mark."""


class Variables:
    """Contents of the table, by chassis."""

    def __init__(self, mark: Mark) -> None:
        self._mark = mark
        self.rows: dict[str, _Row] = {}
        """Rows by UUID."""
        self._chassis: dict[str, str] = {}
        """Chassis -> UUID of its row."""

    def __contains__(self, chassis: object) -> bool:
        """Whether the chassis has a row, of any creator."""
        return chassis in self._chassis

    def learn(self, uuid: str, change: Mapping[str, Json]) -> Collection[str]:
        """Apply a change, and return the names of variables that may have changed."""
        match change:
            case {"initial": columns} | {"insert": columns}:
                row = self.rows[uuid] = _Row(columns.get("chassis", ""))
                self._chassis[row.chassis] = uuid
                return _patch(row, columns)
            case {"modify": columns} if uuid in self.rows:
                return _patch(self.rows[uuid], columns)
            case {"delete": _} if uuid in self.rows:
                row = self.rows.pop(uuid)
                if self._chassis.get(row.chassis) == uuid:
                    del self._chassis[row.chassis]
                return row.marks.keys()
            case _:
                return ()

    def place(self, chassis: str, name: str) -> tuple[str, str, str]:
        """Return the replica's place of the variable."""
        return self._chassis.get(chassis, ""), COLUMN, name

    def find(self, uuid: str, name: str) -> tuple[Owner, ChassisVariable] | None:
        """Return the variable and its owner; None if it is missing or unmanaged."""
        row = self.rows.get(uuid)
        if row is None or name not in row.texts or name not in row.marks:
            return None
        owner = self._mark.read_variable_owner(row.marks[name], f"{uuid}-{name}")
        values = tuple(row.texts[name].split(","))
        return None if owner is None else (owner, ChassisVariable(chassis=row.chassis, name=name, values=values))


def _patch(row: _Row, difference: Mapping[str, Json]) -> Collection[str]:
    changed = set[str]()
    for name, text in decode_map(difference.get(COLUMN, _EMPTY_MAP)).items():
        _toggle(row.texts, name, text)
        changed.add(name)
    for word, text in decode_map(difference.get("external_ids", _EMPTY_MAP)).items():
        if (marked := read_variable_mark(word)) is not None:
            _toggle(row.marks, marked, text)
            changed.add(marked)
    return changed


def _toggle(mapping: dict[str, str], key: str, text: str) -> None:
    """Apply one pair as `patch_map` does, without copying all values of a chassis."""
    if mapping.get(key) == text:
        del mapping[key]
    else:
        mapping[key] = text

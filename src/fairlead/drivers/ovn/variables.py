"""The values of template variables that are ours, as the replica keeps them: a row a chassis, shared with others.

An element of Chassis_Template_Var:variables is ours if `external_ids` of its row say so beside it, by its name; whose
it is stands there too.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fairlead.dataplane.ovn_chassis import ChassisVariable
from fairlead.drivers.ovn.marks import Mark, read_variable_mark
from fairlead.drivers.ovsdb.values import Json, decode_map
from fairlead.model.owner import Owner

COLUMN = "variables"
_EMPTY_MAP: Json = ["map", []]


@dataclass(slots=True)
class _Row:
    chassis: str
    texts: dict[str, str] = field(default_factory=dict)
    """Of all variables by name, those of others too: what is ours may be said later than what it is."""
    marks: dict[str, str] = field(default_factory=dict)
    """Name -> whose it is, as a mark says it."""


class Variables:
    """What the database said of each chassis."""

    def __init__(self, mark: Mark) -> None:
        self._mark = mark
        self.rows: dict[str, _Row] = {}
        """By UUID."""
        self._chassis: dict[str, str] = {}
        """Chassis -> the UUID of its row."""

    def __contains__(self, chassis: object) -> bool:
        """Whether the chassis has a row, whoever made it."""
        return chassis in self._chassis

    def learn(self, uuid: str, change: Mapping[str, Json]) -> Collection[str]:
        """Take what the database says. Answers the names of the variables that may have changed."""
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
        """By which the replica knows the variable."""
        return self._chassis.get(chassis, ""), COLUMN, name

    def find(self, uuid: str, name: str) -> tuple[Owner, ChassisVariable] | None:
        """The variable, and its owner; None if there is none that is ours."""
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
    """As `patch_map`, without a copy of all values of a chassis."""
    if mapping.get(key) == text:
        del mapping[key]
    else:
        mapping[key] = text

"""JSON form of rows and of planned changes in the operator API."""

from collections.abc import Mapping

from fairlead.api.http.front_end import JsonObject
from fairlead.api.http.openapi import TEXT, TEXTS
from fairlead.dataplane.rows import Diff, Rows
from fairlead.model.documents.owner import Owner
from fairlead.model.registry.display_names import with_display_names
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps
from fairlead.schema import Schema, array_schema, object_schema

BY_KEY: Schema = {"type": "object", "additionalProperties": TEXT}
CHANGED: Mapping[str, Schema] = {
    "create": TEXTS,
    "update": {"type": "array", "items": array_schema(TEXT, 2)},
    "delete": TEXTS,
}
_BY_DATAPLANE: Schema = {"type": "object", "additionalProperties": object_schema(CHANGED, CHANGED)}
PLANNED = object_schema({**CHANGED, "dataplanes": _BY_DATAPLANE}, [*CHANGED, "dataplanes"])


def texts(snapshot: Snapshot, rows: Rows) -> JsonObject:
    """Return the text of each row by the text of its key."""
    return {" ".join(key): with_display_names(snapshot, str(rows[key])) for key in sorted(rows)}


def changed(snapshot: Snapshot, change: Diff) -> JsonObject:
    def named(row: object) -> str:
        return with_display_names(snapshot, str(row))

    return {
        "create": [named(row) for row in change.creates.values()],
        "update": [[named(update.before), named(update.after)] for update in change.updates.values()],
        "delete": [named(row) for row in change.deletes.values()],
    }


def plans(snapshot: Snapshot, changes: Mapping[str, Mapping[Owner, Diff]]) -> Steps[dict[str, JsonObject]]:
    """Return the planned changes by owner, for all dataplanes. For an empty dataplane that is the whole model."""
    found: dict[str, dict[str, JsonObject]] = {}
    for dataplane, its in changes.items():
        for owner, change in its.items():
            found.setdefault(str(owner), {})[dataplane] = changed(snapshot, change)
            yield
    plans: dict[str, JsonObject] = {}
    for name, by_dataplane in found.items():
        plans[name] = _planned(by_dataplane)
        yield
    return plans


def _planned(changes: Mapping[str, JsonObject]) -> JsonObject:
    """Return the changes of all dataplanes merged, and by dataplane."""
    together = {word: [row for change in changes.values() for row in change[word]] for word in CHANGED}
    return {**together, "dataplanes": changes}

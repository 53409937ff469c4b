"""Operator API of the desired rows of nodes, where the model determines them.

The actual rows are known only to the node: `fairlead agent --plan` compares the two.
"""

from collections.abc import Iterator, Mapping

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import ApiError, JsonObject, Services, json_response
from fairlead.api.http.openapi import NUMBER, TEXT, Operation
from fairlead.api.operator.rows import BY_KEY, texts
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.interface import Dataplane
from fairlead.dataplane.rows import Rows
from fairlead.model.documents.agent import Agent
from fairlead.model.documents.owner import Owner
from fairlead.model.registry.changeset import owners_with_rows
from fairlead.model.snapshot import Snapshot
from fairlead.reconciler.dataplanes import Dataplanes
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import Steps
from fairlead.schema import Schema, object_schema, or_null

MAX_NODES = 32
"""Maximum nodes with rows in one response; a request can name a further one."""
MAX_ROWS = 100_000
"""Maximum rows of one node in a response."""
AGENT: Schema = {"type": "string", "enum": ["heard", "silent", "none"]}
_NODE: Mapping[str, Schema] = {"rows": BY_KEY, "agent": AGENT, "error": or_null(TEXT)}
NODES: Mapping[str, Schema] = {
    "nodes": {"type": "object", "additionalProperties": object_schema(_NODE, _NODE)},
    "left_out": NUMBER,
}
"""Schema: chassis -> desired rows of an owner, state of the agent, and error of the last apply; and the number of
omitted chassis."""
_BY_OWNER: Schema = {"type": "object", "additionalProperties": BY_KEY}
_OF_NODE = object_schema({"dataplanes": {"type": "object", "additionalProperties": _BY_OWNER}}, ["dataplanes"])


def routes(services: Services, dataplanes: Dataplanes) -> list[Operation]:
    async def list_rows(request: Request) -> Response:
        """List the desired rows of a chassis, by dataplane and owner, for dataplanes where the model determines
        them."""
        name, snapshot = request.path_params["chassis"], services.model.snapshot
        return json_response({"dataplanes": await run_in_steps(_rows_of_node(snapshot, dataplanes, name))})

    return [Operation("GET", "/chassis/{chassis}/rows", list_rows, gives={200: _OF_NODE}, fails=[404, 409])]


def nodes_of(
    snapshot: Snapshot, dataplanes: Dataplanes, owner: Owner, only: str | None
) -> Steps[dict[str, JsonObject]]:
    """Return the desired rows of an owner by dataplane and node, or only for node `only`. Raises ApiError for a node
    without rows."""
    found: dict[str, JsonObject] = {}
    for each in dataplanes.nodes:
        views = dict(_views(each, snapshot))
        names = [name for name in views if only in (None, name)]
        if not each.concerns(snapshot, owner) or not names:
            continue
        shown: dict[str, JsonObject] = {}
        for name in names[:MAX_NODES]:
            rows = yield from _compile(each, views[name], owner)
            shown[name] = _node(snapshot, each, owner, name, rows)
        found[each.name] = {"nodes": shown, "left_out": len(names) - len(shown)}
    if only is not None and not found:
        raise _no_such_host(only)
    return found


def _rows_of_node(snapshot: Snapshot, dataplanes: Dataplanes, name: str) -> Steps[JsonObject]:
    """Return all desired rows of a node. Raises ApiError."""
    views = {each: dict(_views(each, snapshot)).get(name) for each in dataplanes.nodes}
    found: dict[str, JsonObject] = {}
    left = MAX_ROWS
    for dataplane, view in views.items():
        if view is None:
            continue
        its = found.setdefault(dataplane.name, {})
        for owner in owners_with_rows(snapshot):
            if not dataplane.concerns(snapshot, owner):
                continue
            rows = yield from _compile(dataplane, view, owner)
            if rows:
                its[str(owner)] = texts(snapshot, rows)
            left -= len(rows)
            if left < 0:
                raise ApiError(409, f"host {name} has more than {MAX_ROWS} rows: request those of one owner")
            yield
    if not found:
        raise _no_such_host(name)
    return found


def _no_such_host(name: str) -> ApiError:
    return ApiError(404, f"host {name[:100]} does not exist; list hosts with `fairlead chassis host list`")


def _views(dataplane: Dataplane, snapshot: Snapshot) -> Iterator[tuple[str, Snapshot]]:
    yield from () if dataplane.views is None else dataplane.views(snapshot)


def _compile(dataplane: Dataplane, view: Snapshot, owner: Owner) -> Steps[Rows]:
    """Compile an owner; an unsupported one has no rows here, because its load balancer reports the error."""
    try:
        return (yield from dataplane.compile_in_steps(view, owner))
    except Unsupported:
        return {}


def _node(snapshot: Snapshot, dataplane: Dataplane, owner: Owner, name: str, rows: Rows) -> JsonObject:
    agent = snapshot.agents.get(name)
    error = _error(agent, dataplane, owner)
    life = "none" if agent is None else "heard" if agent.is_responsive else "silent"
    return {"rows": texts(snapshot, rows), "agent": life, "error": error}


def _error(agent: Agent | None, dataplane: Dataplane, owner: Owner) -> str | None:
    """Return the node's error of its last attempt to apply the owner."""
    asked = dataplane.name, str(owner)
    unapplied = () if agent is None else agent.apply_failures
    return next((each.error for each in unapplied if (each.dataplane, each.owner) == asked), None)

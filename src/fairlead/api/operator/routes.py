"""Operator API: planned changes, applied state, probe results, and resync.

Its clients are `fairlead plan`, `show` and `resync`. Administrators only. Errors: {"error": sentence}.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import ApiError, JsonObject, Services, json_response
from fairlead.api.http.front_end_builder import SENTENCE, ApiFrontEnd, sentence
from fairlead.api.http.openapi import FLAG, NUMBER, TEXT, TEXTS, Operation, ReadConsistency
from fairlead.api.operator import chassis, flows, hosts, node_rows
from fairlead.api.operator.node_rows import NODES, nodes_of
from fairlead.api.operator.rows import BY_KEY, PLANNED, plans, texts
from fairlead.changes.identity import Identity
from fairlead.changes.refusal import Refused
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.rows import Diff
from fairlead.drivers.interface import DriverError
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.status import AppliedState, ProvisioningStatus, derive_provisioning_status
from fairlead.model.documents.unmanaged import is_unmanaged
from fairlead.model.queries.health_table import HealthRow, health_table
from fairlead.model.queries.probes import Monitored, find_monitored, why_unknown
from fairlead.model.queries.reasons import explain_down
from fairlead.model.registry.display_names import (
    describe_monitored,
    describe_owner,
    display_name,
    find_parts_named,
    with_display_names,
)
from fairlead.model.registry.kinds import has_rows
from fairlead.model.snapshot import Snapshot
from fairlead.reconciler.dataplanes import Central, Dataplanes, DataplaneState
from fairlead.reconciler.owner_states import Statistics
from fairlead.reconciler.resync import MassDelete
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import Steps
from fairlead.schema import Schema, enum_schema, object_schema, or_null
from fairlead.store.interface import StoreError


def _each(schema: Schema) -> Schema:
    """Return the schema of an object keyed by the text of an owner or row key."""
    return {"type": "object", "additionalProperties": schema}


APPLIED: Mapping[str, Schema] = {"applied": NUMBER, "error": or_null(TEXT)}
ROWS: Mapping[str, Schema] = {"desired": BY_KEY, "actual": BY_KEY}
BY_DATAPLANE: Mapping[str, Schema] = {
    **APPLIED,
    **ROWS,
    **NODES,
}
"""Schema of a dataplane: a central one has rows, one of nodes has nodes with their desired rows."""
OWNER: Mapping[str, Schema] = {
    "owner": TEXT,
    "name": TEXT,
    "generation": NUMBER,
    **APPLIED,
    "status": enum_schema(ProvisioningStatus),
    "down": _each(TEXT),
    "unknown": _each(TEXT),
    **ROWS,
    "dataplanes": _each(object_schema(BY_DATAPLANE, [])),
}
RESYNCED = object_schema({"changed": NUMBER, "dataplanes": _each(NUMBER)}, ["changed", "dataplanes"])
_FIGURES = dict.fromkeys(("waiting", *(field.name for field in fields(Statistics))), NUMBER)
UNMANAGED_NETWORKS: Mapping[str, Schema] = {
    "heard": FLAG,
    "unreadable": NUMBER,
    "documents": _each(_each(NUMBER)),
    "hindrances": TEXTS,
}
"""Schema of unmanaged networks: whether they are followed, the number of unreadable rows, the number of objects by
writer and kind, and settings of other writers that block load balancers."""
_PARTS: Mapping[str, Schema] = {**_FIGURES, "followed": object_schema(UNMANAGED_NETWORKS, UNMANAGED_NETWORKS)}
STATISTICS = object_schema({**_FIGURES, "dataplanes": _each(object_schema(_PARTS, _PARTS))}, [*_FIGURES, "dataplanes"])


_TEXTS = (
    "owner",
    "owner_name",
    "id",
    "member",
    "address",
    "monitor",
    "by",
    "chassis",
    "prober",
    "status",
    "why",
    "error",
)
_PROBED: Mapping[str, Schema] = {
    **dict.fromkeys(_TEXTS, TEXT),
    "number": NUMBER,
    "since": or_null(TEXT),
    "latency": or_null({"type": "number"}),
}
HEALTH = object_schema({"health": {"type": "array", "items": object_schema(_PROBED, _PROBED)}}, ["health"])


MAX_NAMED_PARTS = 3
"""Maximum parts of load balancers named in one error."""


def make_front_end(services: Services, dataplanes: Dataplanes) -> Starlette:
    handlers = _Handlers(services, dataplanes)
    planned = object_schema({"plan": _each(PLANNED)}, ["plan"])
    shown = object_schema(OWNER, OWNER)
    return FRONT_END.build(
        [
            Operation("GET", "/statistics", handlers.statistics, gives={200: STATISTICS}),
            Operation("GET", "/health", handlers.health, gives={200: HEALTH}),
            Operation("GET", "/plan", handlers.plan, gives={200: planned}, fails=[503]),
            Operation(
                "GET",
                "/owners/{owner:path}",
                handlers.show,
                query={"chassis": TEXT},
                gives={200: shown},
                fails=[409, 503],
            ),
            Operation("POST", "/resync", handlers.resync, query={"force": FLAG}, gives={200: RESYNCED}),
            *chassis.routes(services),
            *hosts.routes(services),
            *flows.routes(services, dataplanes),
            *node_rows.routes(services, dataplanes),
        ]
    )


@dataclass(frozen=True, slots=True)
class _Handlers:
    _services: Services
    _dataplanes: Dataplanes

    async def plan(self, _: Request) -> Response:
        changes = dict[str, Mapping[Owner, Diff]]()
        for each in self._dataplanes.central:
            with _driver_errors(each):
                changes[each.dataplane.name] = await each.reconciler.plan()
        return json_response({"plan": await run_in_steps(plans(self._services.model.snapshot, changes))})

    async def health(self, _: Request) -> Response:
        rows = await run_in_steps(health_table(self._services.model.snapshot))
        return json_response({"health": [_probed_row(row) for row in rows]})

    async def show(self, request: Request) -> Response:
        """Show the rows of an owner. With `chassis`, rows on nodes are limited to this node."""
        owner = await run_in_steps(_find_owner(self._services.model.snapshot, request.path_params["owner"]))
        rows = await self._rows(owner)
        snapshot = self._services.model.snapshot
        if not rows and snapshot.find(owner) is None:
            titles = " or ".join(each.dataplane.title for each in self._dataplanes.central)
            raise ApiError(404, f"{owner} exists neither in the model nor in {titles or 'any dataplane'}")
        theirs = snapshot.find(owner)
        if not rows and is_unmanaged(theirs):
            row = with_display_names(snapshot, theirs.row)
            raise ApiError(404, f"{owner} is managed by {theirs.writer.value} as {row}: Fairlead writes no rows for it")
        nodes = await run_in_steps(nodes_of(snapshot, self._dataplanes, owner, request.query_params.get("chassis")))
        generation = snapshot.generations.get(owner, snapshot.revision)
        applied = self._services.applied(owner)
        return json_response(
            {
                "owner": str(owner),
                "name": display_name(snapshot, owner),
                "generation": generation,
                **_encode_applied(applied),
                "status": derive_provisioning_status(generation, applied),
                "down": _down(snapshot, owner),
                "unknown": _unknown(snapshot, owner),
                **{which: _together(rows, which) for which in ROWS},
                "dataplanes": _by_dataplane(self._dataplanes, owner, rows, nodes),
            }
        )

    async def resync(self, request: Request) -> Response:
        force = request.query_params.get("force", "").lower() in ("true", "1")
        mended: dict[str, int] = {}
        for each in self._dataplanes.central:
            with _driver_errors(each):
                mended[each.dataplane.name] = await each.reconciler.resync(force=force)
        return json_response({"changed": sum(mended.values()), "dataplanes": mended})

    async def statistics(self, _: Request) -> Response:
        figures = {
            each.dataplane.name: {"waiting": len(each.reconciler), **asdict(each.reconciler.statistics)}
            for each in self._dataplanes.central
        }
        total = {name: sum(each[name] for each in figures.values()) for name in _FIGURES}
        followed = {each.dataplane.name: _encode_unmanaged(each.condition()) for each in self._dataplanes.central}
        dataplanes = {name: {**each, "followed": followed[name]} for name, each in figures.items()}
        return json_response({**total, "dataplanes": dataplanes})

    async def _rows(self, owner: Owner) -> dict[str, JsonObject]:
        """Return desired and actual rows by dataplane, without empty ones."""
        rows: dict[str, JsonObject] = {}
        for each in self._dataplanes.central:
            with _driver_errors(each):
                desired, actual = await each.reconciler.compare(owner)
            if desired or actual:
                snapshot = self._services.model.snapshot
                rows[each.dataplane.name] = {
                    "desired": texts(snapshot, desired),
                    "actual": texts(snapshot, actual),
                }
        return rows


@contextmanager
def _driver_errors(central: Central) -> Iterator[None]:
    """Convert an error of a central dataplane to ApiError 503."""
    try:
        yield
    except DriverError as error:
        raise ApiError(503, f"{central.dataplane.title} is unavailable: {error}") from None


def _find_owner(snapshot: Snapshot, text: str) -> Steps[Owner]:
    """Find an owner by `kind/id`, or by the name or id of an object that has rows. Raises ApiError."""
    try:
        owner = Owner.parse(text)
    except ValueError:
        pass
    else:
        if not has_rows(owner.kind):
            raise ApiError(404, f"{owner} has no rows, because objects of this kind are not applied to a dataplane")
        return owner
    named = []
    for owner in snapshot.generations:
        if has_rows(owner.kind) and text in (owner.id, getattr(snapshot.find(owner), "name", None)):
            named.append(owner)
        yield
    if not named:
        raise ApiError(404, (yield from _not_found_text(snapshot, text)))
    if len(named) > 1:
        raise ApiError(409, f"'{text}' is ambiguous: {', '.join(map(str, sorted(named, key=str)))}")
    return named[0]


def _not_found_text(snapshot: Snapshot, text: str) -> Steps[str]:
    """Explain why no owner has this name or id; it may be a part of a load balancer, which is shown with it."""
    found, others = list[str](), 0
    for balancer in snapshot.load_balancers.values():
        for part in find_parts_named(balancer, text):
            if len(found) < MAX_NAMED_PARTS:
                found.append(f"{part} of {describe_owner(snapshot, Owner(Kind.LOAD_BALANCER, balancer.id))}")
            else:
                others += 1
        yield
    if not found:
        return f"'{text}' does not exist: specify kind/id, an id or a name"
    more = f" and {others} more" if others else ""
    return f"'{text}' has no rows of its own: it is {', '.join(found)}{more}; show the load balancer"


def _encode_unmanaged(now: DataplaneState) -> JsonObject:
    documents: dict[str, dict[str, int]] = {}
    for (writer, kind), count in sorted(now.imported.items()):
        documents.setdefault(writer, {})[kind] = count
    return {
        "heard": now.imports_networks,
        "unreadable": now.unreadable,
        "documents": documents,
        "hindrances": list(now.blockers),
    }


def _encode_applied(applied: AppliedState) -> JsonObject:
    return {"applied": applied.generation, "error": applied.error}


def _by_dataplane(
    dataplanes: Dataplanes, owner: Owner, rows: Mapping[str, JsonObject], nodes: Mapping[str, JsonObject]
) -> JsonObject:
    """Return applied state and rows by dataplane, for central dataplanes and nodes."""
    found: dict[str, JsonObject] = {}
    for name, applied in sorted(dataplanes.known(owner).items()):
        found[name] = {**_encode_applied(applied), "desired": {}, "actual": {}}
    for each in dataplanes.central:
        name = each.dataplane.name
        if name in rows:  # rows may be left over from another provider
            found[name] = {**found.get(name, _encode_applied(each.applied(owner))), **rows[name]}
    return {name: {**found.get(name, {}), **nodes.get(name, {})} for name in {**found, **nodes}}


def _together(rows: Mapping[str, JsonObject], which: str) -> JsonObject:
    """Merge the rows of all dataplanes; with several, the key is prefixed by the dataplane's name."""
    return {
        f"{name} {key}" if len(rows) > 1 else key: text
        for name, each in rows.items()
        for key, text in each[which].items()
    }


def _down(snapshot: Snapshot, owner: Owner) -> JsonObject:
    """Return the members of a load balancer or replicas of a Local IP that are down, with the reason."""
    return _encode_health(snapshot, owner, explain_down)


def _unknown(snapshot: Snapshot, owner: Owner) -> JsonObject:
    """Return the monitored members or replicas whose health is unknown, with the reason."""
    return _encode_health(snapshot, owner, _unknown_reasons)


def _unknown_reasons(snapshot: Snapshot, probing: Monitored) -> Mapping[str, str]:
    return {identity: health.explanation for identity, health in why_unknown(snapshot, probing).items()}


def _probed_row(row: HealthRow) -> JsonObject:
    return {**asdict(row), "since": row.since.isoformat() if row.since else None}


def _encode_health(
    snapshot: Snapshot, owner: Owner, ask: Callable[[Snapshot, Monitored], Mapping[str, str]]
) -> JsonObject:
    probing = find_monitored(snapshot, owner)
    if probing is None:
        return {}
    why = ask(snapshot, probing)
    return {f"{identity} {text}": why[identity] for identity, text in describe_monitored(snapshot, probing, why)}


def _only_admin(who: Identity) -> None:
    if not who.is_admin:
        raise ApiError(403, "the operator API requires role admin")


FRONT_END = ApiFrontEnd(
    path="/operator",
    title="Fairlead: operator",
    error=SENTENCE,
    fault=sentence,
    error_texts={
        Refused: hosts.refusal_of,
        MassDelete: lambda _, error: ApiError(409, f"{error}; to delete them, use --force"),
        StoreError: lambda _, error: ApiError(503, f"the store is unavailable: {error}"),
        Unsupported: lambda _, error: ApiError(409, str(error)),
    },
    authorize=_only_admin,
    consistency=ReadConsistency.PREFERRED,
)

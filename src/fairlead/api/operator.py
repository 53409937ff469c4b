"""The operator's door: what Fairlead would do, what it has done, and the order to look at everything again.

`fairlead plan`, `show` and `resync` are its clients. Administrators only. Errors: {"error": sentence}.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.door import ApiError, JsonObject, Services, identity, json_response
from fairlead.api.fields import Schema, array_schema, object_schema, or_null, words_schema
from fairlead.api.openapi import FLAG, NUMBER, TEXT, TEXTS, Operation, with_document
from fairlead.api.steps import in_steps
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.rows import Diff, Rows
from fairlead.drivers.interface import DriverError
from fairlead.model.health import Health
from fairlead.model.kinds import has_rows
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.names import describe_member, name_of
from fairlead.model.owner import Kind, Owner
from fairlead.model.probes import why_down, why_unknown
from fairlead.model.snapshot import Snapshot
from fairlead.model.status import ProvisioningStatus, derive_provisioning_status
from fairlead.model.steps import Steps
from fairlead.reconciler.loop import MassDelete, Reconciler, Statistics
from fairlead.store.interface import StoreError


def _each(schema: Schema) -> Schema:
    """By the text of an owner, or of a row's key."""
    return {"type": "object", "additionalProperties": schema}


PLANNED = object_schema(
    {"create": TEXTS, "update": {"type": "array", "items": array_schema(TEXT, 2)}, "delete": TEXTS},
    ["create", "update", "delete"],
)
SHOWN: Mapping[str, Schema] = {
    "owner": TEXT,
    "name": TEXT,
    "generation": NUMBER,
    "applied": NUMBER,
    "error": or_null(TEXT),
    "status": words_schema(ProvisioningStatus),
    "down": _each(TEXT),
    "unknown": _each(TEXT),
    "desired": _each(TEXT),
    "actual": _each(TEXT),
}
RESYNCED = object_schema({"changed": NUMBER}, ["changed"])
_FIGURES = dict.fromkeys(("waiting", *(field.name for field in fields(Statistics))), NUMBER)
STATISTICS = object_schema(_FIGURES, _FIGURES)


def make_door(services: Services, reconciler: Reconciler) -> Starlette:
    async def plan(request: Request) -> Response:
        _only_admin(request)
        found = await reconciler.plan()
        return json_response({"plan": {str(owner): _diff(change) for owner, change in found.items()}})

    async def show(request: Request) -> Response:
        _only_admin(request)
        owner = await in_steps(_find_owner(services.model.snapshot, request.path_params["owner"]))
        desired, actual = await reconciler.compare(owner)
        if not desired and not actual and services.model.snapshot.find(owner) is None:
            raise ApiError(404, f"there is no {owner}, neither in the model nor in OVN")
        generation = services.model.snapshot.generations.get(owner, services.model.snapshot.revision)
        applied = services.applied(owner)
        return json_response(
            {
                "owner": str(owner),
                "name": name_of(services.model.snapshot, owner),
                "generation": generation,
                "applied": applied.generation,
                "error": applied.error,
                "status": derive_provisioning_status(generation, applied),
                "down": _down(services.model.snapshot, owner),
                "unknown": _unknown(services.model.snapshot, owner),
                "desired": _texts(desired),
                "actual": _texts(actual),
            }
        )

    async def resync(request: Request) -> Response:
        _only_admin(request)
        force = request.query_params.get("force", "").lower() in ("true", "1")
        return json_response({"changed": await reconciler.resync(force=force)})

    async def statistics(request: Request) -> Response:
        _only_admin(request)
        return json_response({"waiting": len(reconciler), **asdict(reconciler.statistics)})

    routes = with_document(
        "Fairlead: operator",
        object_schema({"error": TEXT}, ["error"]),
        [
            Operation("GET", "/statistics", statistics, gives={200: STATISTICS}),
            Operation(
                "GET", "/plan", plan, gives={200: object_schema({"plan": _each(PLANNED)}, ["plan"])}, fails=[503]
            ),
            Operation("GET", "/owners/{owner:path}", show, gives={200: object_schema(SHOWN, SHOWN)}, fails=[409, 503]),
            Operation("POST", "/resync", resync, query={"force": FLAG}, gives={200: RESYNCED}),
        ],
    )
    handlers = {
        ApiError: _api_error,
        DriverError: _unavailable,
        MassDelete: _mass_delete,
        StoreError: _store_error,
        Unsupported: _unsupported,
        HTTPException: _http_error,
    }
    return Starlette(routes=routes, exception_handlers=handlers)  # type: ignore[arg-type]


def _find_owner(snapshot: Snapshot, text: str) -> Steps[Owner]:
    """`kind/id`, or the name or id of a load balancer, network, router or port. Raises ApiError."""
    try:
        owner = Owner.parse(text)
    except ValueError:
        pass
    else:
        if not has_rows(owner.kind):
            raise ApiError(404, f"{owner} has no rows: it only says what load balancers may be")
        return owner
    named = []
    for owner in snapshot.generations:
        if has_rows(owner.kind) and text in (owner.id, getattr(snapshot.find(owner), "name", None)):
            named.append(owner)
        yield
    if not named:
        raise ApiError(404, f"nothing is called '{text}'; an owner is kind/id, an id or a name")
    if len(named) > 1:
        raise ApiError(409, f"'{text}' is several: {', '.join(map(str, sorted(named, key=str)))}")
    return named[0]


def _diff(change: Diff) -> JsonObject:
    return {
        "create": [str(row) for row in change.creates.values()],
        "update": [[str(update.before), str(update.after)] for update in change.updates.values()],
        "delete": [str(row) for row in change.deletes.values()],
    }


def _down(snapshot: Snapshot, owner: Owner) -> JsonObject:
    """The members of a load balancer that their health monitor calls down, and why."""
    balancer = _balancer(snapshot, owner)
    return {} if balancer is None else _members(balancer, why_down(snapshot, balancer))


def _unknown(snapshot: Snapshot, owner: Owner) -> JsonObject:
    """Those that have a health monitor, and of which nobody knows whether they answer, and why not."""
    balancer = _balancer(snapshot, owner)
    return {} if balancer is None else _members(balancer, why_unknown(snapshot, balancer))


def _balancer(snapshot: Snapshot, owner: Owner) -> LoadBalancer | None:
    return snapshot.load_balancers.get(owner.id) if owner.kind is Kind.LOAD_BALANCER else None


def _members(balancer: LoadBalancer, why: Mapping[str, Health]) -> JsonObject:
    members = (member for pool in balancer.pools for member in pool.members if member.id in why)
    return {" ".join([member.id, *describe_member(member)]): why[member.id].value for member in members}


def _texts(rows: Rows) -> Mapping[str, str]:
    return {" ".join(key): str(rows[key]) for key in sorted(rows)}


def _only_admin(request: Request) -> None:
    if not identity(request).is_admin:
        raise ApiError(403, "this is for administrators")


async def _api_error(request: Request, error: ApiError) -> Response:
    return json_response({"error": error.message}, error.status)


async def _unavailable(request: Request, error: DriverError) -> Response:
    return json_response({"error": f"OVN cannot be asked: {error}"}, 503)


async def _store_error(request: Request, error: StoreError) -> Response:
    return json_response({"error": f"the store cannot be read: {error}"}, 503)


async def _mass_delete(request: Request, error: MassDelete) -> Response:
    return json_response({"error": f"{error}; say --force if that is meant"}, 409)


async def _unsupported(request: Request, error: Unsupported) -> Response:
    return json_response({"error": str(error)}, 409)


async def _http_error(request: Request, error: HTTPException) -> Response:
    response = json_response({"error": error.detail}, error.status_code)
    response.headers.update(error.headers or {})
    return response

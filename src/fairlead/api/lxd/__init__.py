"""LXD and Incus API front end for networks and load balancers, below /1.0."""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from fairlead.api.http.front_end import ApiError, NotApplied, Services
from fairlead.api.http.front_end_builder import ApiFrontEnd
from fairlead.api.lxd import balancers, certificates, events, forwards, networks, operations, projects, server_info
from fairlead.api.lxd.authentication import make_lxd_authentication
from fairlead.api.lxd.caller import check_trusted
from fairlead.api.lxd.envelope import FAULT, PREFIX, fault, sync
from fairlead.api.lxd.errors import bad_field, error_of, missing_field, not_applied, unknown_field, unsupported_error
from fairlead.changes.refusal import Refused
from fairlead.compilers.unsupported import Unsupported
from fairlead.schema import BadField, MissingField, UnknownField

__all__ = ["FRONT_END", "make_front_end", "make_lxd_authentication", "make_standalone_app", "refusal"]
PARTS = (server_info, projects, certificates, operations, events, networks, balancers, forwards)
"""Modules with routes."""


def make_front_end(services: Services) -> Starlette:
    listening = WebSocketRoute("/events", events.serve_events)
    door = FRONT_END.build([route for part in PARTS for route in part.routes(services)], before=[listening])
    door.state.services = services
    door.state.events = events.EventBus()
    return door


def make_standalone_app(routes: Sequence[BaseRoute]) -> Starlette:
    """Make an application of the front end alone, for its own listening sockets, with the version list that clients
    expect at /."""

    async def versions(_: Request) -> Response:
        return sync([PREFIX])

    async def not_found(_: Request, __: Exception) -> Response:
        return refusal("not found", 404)

    return Starlette(routes=[Route("/", versions), *routes], exception_handlers={HTTPException: not_found})


def refusal(message: str, status: int) -> Response:
    return fault(ApiError(status, message))


def _not_served(_: Request, error: HTTPException) -> ApiError:
    return ApiError(error.status_code, "not found" if error.status_code == 404 else error.detail)


FRONT_END = ApiFrontEnd(
    path=PREFIX,
    title="Fairlead: networks and load balancers (LXD and Incus)",
    error=FAULT,
    fault=fault,
    error_texts={
        Refused: lambda _, error: error_of(error.why),
        Unsupported: lambda _, error: unsupported_error(error),
        NotApplied: lambda _, error: not_applied("network", error),
        BadField: lambda _, error: bad_field(error),
        MissingField: lambda _, error: missing_field(error),
        UnknownField: lambda _, error: unknown_field(error),
        HTTPException: _not_served,
    },
    authorize=check_trusted,
)

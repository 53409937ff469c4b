"""The door of LXD's and Incus' clients: their API of networks and load balancers, below /1.0."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request

from fairlead.api.building import Door
from fairlead.api.door import ApiError, Services
from fairlead.api.fields import BadField, MissingField, UnknownField
from fairlead.api.lxd import balancers, certificates, forwards, networks, operations, projects, server_info
from fairlead.api.lxd.caller import check_trusted
from fairlead.api.lxd.envelope import FAULT, PREFIX, fault
from fairlead.api.lxd.errors import bad_field, missing_field, say, say_unsupported, unknown_field
from fairlead.api.lxd.events import Events
from fairlead.changes.refusal import Refused
from fairlead.compilers.unsupported import Unsupported

PARTS = (server_info, projects, certificates, operations, networks, balancers, forwards)
"""Each gives its routes."""


def make_door(services: Services) -> Starlette:
    door = DOOR.build([route for part in PARTS for route in part.routes(services)])
    door.state.services = services
    door.state.events = Events()
    return door


def _not_served(_: Request, error: HTTPException) -> ApiError:
    return ApiError(error.status_code, "not found" if error.status_code == 404 else error.detail)


DOOR = Door(
    path=PREFIX,
    title="Fairlead: networks and load balancers (LXD and Incus)",
    error=FAULT,
    fault=fault,
    words={
        Refused: lambda _, error: say(error.why),
        Unsupported: lambda _, error: say_unsupported(error),
        BadField: lambda _, error: bad_field(error),
        MissingField: lambda _, error: missing_field(error),
        UnknownField: lambda _, error: unknown_field(error),
        HTTPException: _not_served,
    },
    admits=check_trusted,
)

"""Web application: all API front ends behind one access control.

/network         Neutron
/load-balancer   Octavia v2
/operator        state and operations of Fairlead
/agent           agents of the nodes
/plugin          services that own load balancers, as Octavia
/1.0             networks and load balancers of LXD and Incus
/v3, /projects   the minimum of Keystone that clients need
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead.api import lxd, network, octavia, plugin
from fairlead.api.agents import authentication
from fairlead.api.agents import routes as agent_routes
from fairlead.api.http.access_control import BASIC, HEALTH_PATHS, AccessControl, AccessPolicy, ConcurrencyLimits
from fairlead.api.http.authentication import Authenticate
from fairlead.api.http.front_end import ApiError, Services, json_response
from fairlead.api.http.front_end_builder import ApiFrontEnd, sentence
from fairlead.api.http.identity_api import identity_routes, version_document
from fairlead.api.keystone.tokens import KeystoneTokens
from fairlead.api.operator import routes as operator_routes
from fairlead.api.operator.metrics import Metrics
from fairlead.reconciler.dataplanes import Dataplanes
from fairlead.runtime.loop_lag import LoopLag

IDENTITY = ("projects", "v3")
"""First path segments of the Keystone API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applications:
    """One application per set of listening sockets. They share the front ends and the per-project request limits."""

    all: ASGIApp
    """All API front ends."""
    lxd: ASGIApp
    """LXD front end only, for its own listening sockets."""
    nodes: ASGIApp
    """Agent front end only, for its own listening sockets."""


def make_app(
    services: Services,
    dataplanes: Dataplanes,
    authenticate: Authenticate,
    *,
    names: frozenset[str] | None = None,
    challenge: str = BASIC,
    loop_lag: LoopLag | None = None,
) -> Applications:
    """`names` are the valid Host headers where these are checked (`callers.names_of`). `challenge` is the
    WWW-Authenticate header."""
    doors = {
        network.FRONT_END: network.make_front_end(services),
        octavia.FRONT_END: octavia.make_front_end(services),
        operator_routes.FRONT_END: operator_routes.make_front_end(services, dataplanes),
        agent_routes.FRONT_END: agent_routes.make_front_end(services),
        plugin.FRONT_END: plugin.make_front_end(services),
        lxd.FRONT_END: lxd.make_front_end(services),
    }
    told_apart = frozenset({*IDENTITY, *(door.path.strip("/") for door in doors)})
    tokens = authenticate if isinstance(authenticate, KeystoneTokens) else None
    metrics = Metrics(services, dataplanes, loop_lag or LoopLag(), told_apart, tokens)

    async def index(request: Request) -> Response:
        root = str(request.base_url).rstrip("/")
        where = {"doors": {door.path.strip("/"): f"{root}{door.path}" for door in doors}}
        return json_response({**where, **version_document(root)})

    lxd_routes = [
        Route(lxd.FRONT_END.path, _Root(doors[lxd.FRONT_END], lxd.FRONT_END.path)),
        _FrontEndMount(lxd.FRONT_END.path, app=_with_scope(doors[lxd.FRONT_END], lxd.FRONT_END.path, services)),
    ]
    routes = [
        Route("/", index),
        *identity_routes(services),
        *metrics.routes(),
        *lxd_routes,
        *(
            _FrontEndMount(door.path, app=_with_scope(app, door.path, services))
            for door, app in doors.items()
            if door is not lxd.FRONT_END
        ),
    ]
    public = frozenset({"", *HEALTH_PATHS, *(path for door in doors for path in door.public)})
    turns = ConcurrencyLimits()

    def enter(app: ASGIApp, way: AccessPolicy) -> ASGIApp:
        return AccessControl(app, way, services.new_id, metrics.observe, turns)

    way = AccessPolicy(
        authenticate=authenticate, names=names, public=public, fault=_fault_of(doors), challenge=challenge
    )
    own = AccessPolicy(authenticate=lxd.make_lxd_authentication(services), public=frozenset(), refusal=lxd.refusal)
    agents_door = _FrontEndMount(
        agent_routes.FRONT_END.path,
        app=_with_scope(doors[agent_routes.FRONT_END], agent_routes.FRONT_END.path, services),
    )
    of_agents = AccessPolicy(
        authenticate=authentication.make_agent_authentication(services, services.socket_chassis),
        public=frozenset(f"{agent_routes.FRONT_END.path}/{each}" for each in authentication.PUBLIC),
        fault=_fault_of(doors),
    )
    return Applications(
        nodes=enter(Starlette(routes=[agents_door]), of_agents),
        all=enter(Starlette(routes=routes), way),
        lxd=enter(lxd.make_standalone_app(lxd_routes), own),
    )


def _fault_of(doors: Iterable[ApiFrontEnd]) -> Callable[[str, ApiError], Response]:
    """Return a function that formats an error for the front end of a path, or as a plain sentence outside of any."""
    faults = {door.path: door.fault for door in doors}

    def fault(path: str, error: ApiError) -> Response:
        door = "/" + path.lstrip("/").partition("/")[0]
        return faults.get(door, sentence)(error)

    return fault


FRONT_ENDS = (
    network.FRONT_END,
    octavia.FRONT_END,
    operator_routes.FRONT_END,
    agent_routes.FRONT_END,
    plugin.FRONT_END,
    lxd.FRONT_END,
)


def format_error(path: str, error: ApiError) -> Response:
    """Format an error for a server that has no API front ends running."""
    return _fault_of(FRONT_ENDS)(path, error)


class _FrontEndMount(Mount):
    """Mount of a front end. It also matches paths that contain a line break, for which the front end returns 404."""

    def __init__(self, path: str, app: ASGIApp) -> None:
        super().__init__(path, app)
        self.path_regex = re.compile(self.path_regex.pattern, re.DOTALL)


class _Root:
    """Serve the root of a front end for clients that omit the trailing slash."""

    def __init__(self, app: ASGIApp, path: str) -> None:
        self._app, self._path = app, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        where = {"root_path": self._path, "path": f"{self._path}/", "door_path": self._path}
        await self._app({**scope, **where}, receive, send)


def _with_scope(app: ASGIApp, path: str, services: Services) -> ASGIApp:
    """Pass the front end its base path, for links, and for authenticated callers the function that reads the store.
    Public documents are in no store."""

    async def door(scope: Scope, receive: Receive, send: Send) -> None:
        of_known = {"refresh": services.model.refresh} if "turn" in scope else {}
        await app({**scope, "door_path": path, **of_known}, receive, send)

    return door

"""The one web application: every door at its path, behind one way to say who calls.

/network         Neutron's names
/load-balancer   Octavia v2
/operator        what Fairlead does and has done
/agent           what the nodes count
/v3, /projects   what clients ask Keystone, as far as they cannot do without
"""

import logging
import re
from collections.abc import Callable
from time import perf_counter
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead.api import agents, network, octavia, operator
from fairlead.api.auth import Authenticate
from fairlead.api.door import House, Identity, json_response
from fairlead.api.identity import identity_routes, version_document
from fairlead.api.metrics import Dataplane, Metrics
from fairlead.reconciler.loop import CAUSE, Reconciler

LOG = logging.getLogger(__name__)


PUBLIC = frozenset(
    {
        "",
        "/healthz",
        "/readyz",
        "/network",
        "/network/v2.0",
        "/network/openapi.json",
        "/load-balancer",
        "/load-balancer/v2",
        "/load-balancer/v2.0",
        "/load-balancer/openapi.json",
        "/operator/openapi.json",
        "/agent/openapi.json",
    }
)
"""For everybody: version documents, as in every OpenStack service, and whether the server is well."""
STRANGER = Identity(user="", project_id="", roles=frozenset())


def make_app(
    house: House, reconciler: Reconciler, authenticate: Authenticate, dataplane: Callable[[], Dataplane]
) -> ASGIApp:
    metrics = Metrics(house, reconciler, dataplane)
    doors = {
        "/network": network.make_door(house),
        "/load-balancer": octavia.make_door(house),
        "/operator": operator.make_door(house, reconciler),
        "/agent": agents.make_door(house),
    }

    async def index(request: Request) -> Response:
        root = str(request.base_url).rstrip("/")
        where = {"doors": {path.strip("/"): f"{root}{path}" for path in doors}}
        return json_response({**where, **version_document(root)})

    routes = [
        Route("/", index),
        *identity_routes(house),
        *metrics.routes(),
        *(_Door(path, app=_door(door, path)) for path, door in doors.items()),
    ]
    return _identified(Starlette(routes=routes), authenticate, house.new_id, metrics)


class _Door(Mount):
    """All that is below its path, even with a line break in it: the door says that there is no such thing."""

    def __init__(self, path: str, app: ASGIApp) -> None:
        super().__init__(path, app)
        self.path_regex = re.compile(self.path_regex.pattern, re.DOTALL)


def _door(app: ASGIApp, path: str) -> ASGIApp:
    """Tell the door where it is, for the links that it answers."""

    async def door(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "door_path": path}, receive, send)

    return door


def _identified(app: ASGIApp, authenticate: Authenticate, new_id: Callable[[], str], metrics: Metrics) -> ASGIApp:
    """Put the caller and an id into every request, the id into every answer too; 401 for a caller without a name."""

    async def identified(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        request_id, began = f"req-{new_id()}", perf_counter()
        headers = dict(scope["headers"])
        CAUSE.set(request_id)

        async def send_with_id(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                took = perf_counter() - began
                if scope["method"] != "GET" or message["status"] >= 400:  # type: ignore[operator]
                    who = scope.get("caller", "")
                    news = {
                        "request": request_id,
                        "method": scope["method"],
                        "path": scope["raw_path"].decode("latin-1"),  # as it came: no line break in it
                        "user": who,
                        "status": message["status"],
                        "milliseconds": round(took * 1000, 1),
                    }
                    words = "%(request)s %(method)s %(path)s by %(user)r: %(status)s in %(milliseconds)s ms"
                    LOG.log(_level(scope["path"], message["status"]), words, news, extra={"fields": news})  # type: ignore[arg-type]
                metrics.observe(scope["path"], scope["method"], message["status"], took)  # type: ignore[arg-type]
                message["headers"] = [*message["headers"], (b"x-openstack-request-id", request_id.encode())]  # type: ignore[misc]
            await send(message)

        if _comes_from_elsewhere(headers.get(b"origin")):
            await json_response({"error": "a web page of another site may not call"}, 403)(scope, receive, send_with_id)  # type: ignore[arg-type]
            return
        if scope["path"].rstrip("/") in PUBLIC:
            await app({**scope, "identity": STRANGER, "request_id": request_id}, receive, send_with_id)  # type: ignore[arg-type]
            return
        caller = await authenticate(_header(headers, b"authorization"), _header(headers, b"x-project-id"))
        scope["caller"] = caller.user if caller else ""
        if caller is None:
            await _unauthorized()(scope, receive, send_with_id)  # type: ignore[arg-type]
            return
        await app({**scope, "identity": caller, "request_id": request_id}, receive, send_with_id)  # type: ignore[arg-type]

    return identified


def _level(path: str, status: int) -> int:
    """What each node tells every few seconds is worth a line only if it goes wrong."""
    return logging.DEBUG if path.startswith("/agent/") and status < 400 else logging.INFO


def _comes_from_elsewhere(origin: bytes | None) -> bool:
    """Browsers say which site a page is of (RFC 6454); no other client does. Without this check any page that an
    operator looks at could write through a server that asks nobody who he is."""
    if origin is None:
        return False
    try:
        host = urlsplit(origin.decode("latin-1")).hostname
    except ValueError:  # "http://[": no browser writes that
        return True
    return host not in ("localhost", "127.0.0.1", "::1")


def _unauthorized() -> Response:
    """Keystone's middleware answers in these words (keystonemiddleware, auth_token)."""
    error = {
        "error": {"code": 401, "title": "Unauthorized", "message": "The request you have made requires authentication."}
    }
    response = json_response(error, 401)
    response.headers["www-authenticate"] = 'Basic realm="fairlead"'
    return response


def _header(headers: dict[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")

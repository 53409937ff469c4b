"""Octavia v2 API front end, served under each path prefix that clients use."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount

from fairlead.api.http.front_end import ApiError, Services, base_url, json_response
from fairlead.api.http.front_end_builder import ApiFrontEnd
from fairlead.api.http.openapi import Operation
from fairlead.api.octavia.discovery import version_document, versions_document
from fairlead.api.octavia.errors import FAULT, fault
from fairlead.api.octavia.options import feature_name
from fairlead.api.octavia.refusals import error_of
from fairlead.api.octavia.routes import machine_routes, resource_routes
from fairlead.changes.refusal import Refused
from fairlead.compilers.unsupported import Unsupported

PREFIX = "/v2.0/lbaas"
ALIASES = ("/v2/lbaas", "/v2", "/v2.0")
"""Further prefixes that clients use; the OpenAPI document lists the resources once."""
MACHINES, MACHINES_ALIAS = "/v2.0/octavia", "/v2/octavia"
"""Octavia's prefix of the amphora API."""


def make_front_end(services: Services) -> Starlette:
    async def versions(request: Request) -> Response:
        """List the API versions."""
        return json_response(versions_document(base_url(request)))

    async def version(request: Request) -> Response:
        """Show the newest API version."""
        return json_response(version_document(base_url(request)))

    def version_route(path: str) -> Operation:
        return Operation("GET", path, version, gives={200: {"type": "object"}})

    resources, machines = resource_routes(services), machine_routes()
    documented = [
        Operation("GET", "/", versions, gives={200: {"type": "object"}}),
        version_route("/v2"),
        version_route("/v2.0"),
        Mount(PREFIX, routes=resources),
        Mount(MACHINES, routes=machines),
    ]
    slashes = [version_route(path) for prefix in (PREFIX, *ALIASES) for path in (prefix, prefix + "/")]
    aliases = [Mount(MACHINES_ALIAS, routes=machines), *(Mount(prefix, routes=resources) for prefix in ALIASES)]
    return FRONT_END.build(documented, before=slashes, after=aliases)


def _unsupported_error(_: Request, error: Unsupported) -> ApiError:
    asked = f"{feature_name(error.feature)}{error.advice}"
    return ApiError(501, f"Provider '{error.provider}' does not support a requested option: {asked}")


FRONT_END = ApiFrontEnd(
    path="/load-balancer",
    title="Fairlead: load balancers (Octavia v2)",
    versions=frozenset({"", "/v2", "/v2.0"}),
    error=FAULT,
    fault=lambda error: fault(error.status, error.message),
    error_texts={
        Refused: lambda _, error: error_of(error.why),
        Unsupported: _unsupported_error,
        HTTPException: lambda request, error: ApiError(
            error.status_code, f"{request.method} {request.url.path}: {error.detail}"
        ),
    },
)

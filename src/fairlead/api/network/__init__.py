"""Neutron API front end, at /v2.0 as its clients expect."""

from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount

from fairlead.api.http.front_end import ApiError, Services, base_url, json_response
from fairlead.api.http.front_end_builder import ApiFrontEnd
from fairlead.api.http.openapi import Operation
from fairlead.api.network.availability import availability_routes
from fairlead.api.network.discovery import discovery_routes, version_document, versions_document
from fairlead.api.network.errors import FAULT, fault
from fairlead.api.network.floatingips import FLOATING_IPS
from fairlead.api.network.handlers import collection_routes, router_routes
from fairlead.api.network.local_ip_routes import local_ip_routes
from fairlead.api.network.networks import NETWORKS
from fairlead.api.network.policy import forbidden_error
from fairlead.api.network.ports import PORTS
from fairlead.api.network.quotas import quota_routes
from fairlead.api.network.refusals import error_of
from fairlead.api.network.routers import ROUTERS
from fairlead.api.network.subnets import SUBNETS
from fairlead.changes.access import NotAllowed
from fairlead.changes.refusal import Refused
from fairlead.compilers.unsupported import Unsupported
from fairlead.schema import Schema

VERSION = "/v2.0"


def make_front_end(services: Services) -> Starlette:
    async def versions(request: Request) -> Response:
        """List the API versions."""
        return json_response(versions_document(base_url(request)))

    async def version(request: Request) -> Response:
        """Show the API version and its resources."""
        return json_response(version_document(base_url(request)))

    resources = [
        *router_routes(services),
        *collection_routes(services, NETWORKS),
        *collection_routes(services, SUBNETS),
        *collection_routes(services, PORTS),
        *collection_routes(services, ROUTERS),
        *collection_routes(services, FLOATING_IPS),
        *local_ip_routes(services),
        *availability_routes(services),
        *quota_routes(services),
        *discovery_routes(),
    ]
    found: Mapping[int, Schema] = {200: {"type": "object"}}
    documented = [
        Operation("GET", "/", versions, gives=found),
        Operation("GET", VERSION, version, gives=found),
        Mount(VERSION, routes=resources),
    ]
    slash = Operation("GET", VERSION + "/", version, gives=found)
    return FRONT_END.build(documented, before=[slash])


def _rejection_error(request: Request, error: Refused) -> ApiError:
    if isinstance(error.why, NotAllowed):
        return forbidden_error(error.why, getattr(request.state, "asked", None))
    return error_of(error.why)


def _http_error(request: Request, error: HTTPException) -> ApiError:
    kinds = {
        404: ("HTTPNotFound", "The resource could not be found."),
        405: ("HTTPMethodNotAllowed", f"The method {request.method} is not allowed for this resource."),
    }
    kind, message = kinds.get(error.status_code, ("HTTPError", error.detail))
    return ApiError(error.status_code, message, kind)


def _internal_error(_: Request, __: Exception) -> ApiError:
    text = "Request Failed: internal server error while processing your request."
    return ApiError(500, text, "HTTPInternalServerError")


FRONT_END = ApiFrontEnd(
    path="/network",
    title="Fairlead: networks (Neutron)",
    versions=frozenset({"", "/v2.0"}),
    error=FAULT,
    fault=lambda error: fault(error.status, error.kind, error.message),
    error_texts={
        Refused: _rejection_error,
        Unsupported: lambda _, error: ApiError(501, f"This is not supported: {error}", "HTTPNotImplemented"),
        HTTPException: _http_error,
        Exception: _internal_error,
    },
)

"""The load-balancer door: Octavia v2, under each prefix that its clients use."""

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from fairlead.api.door import ApiError, House, base_url, json_response
from fairlead.api.octavia.discovery import version_document, versions_document
from fairlead.api.octavia.errors import fault
from fairlead.api.octavia.views import resource_routes
from fairlead.compilers.unsupported import Unsupported
from fairlead.store.interface import StoreError

LOG = logging.getLogger(__name__)
PREFIXES = ("/v2/lbaas", "/v2.0/lbaas", "/v2/octavia", "/v2.0/octavia", "/v2", "/v2.0")


def make_door(house: House) -> ASGIApp:
    async def versions(request: Request) -> Response:
        return json_response(versions_document(base_url(request)))

    async def version(request: Request) -> Response:
        return json_response(version_document(base_url(request)))

    routes = [Route("/", versions)]
    routes += [Route(path + slash, version) for path in PREFIXES for slash in ("", "/")]
    resources = resource_routes(house)
    mounts = [Mount(prefix, routes=resources) for prefix in PREFIXES]
    handlers = {
        ApiError: _api_error,
        Unsupported: _unsupported,
        StoreError: _store_error,
        HTTPException: _http_error,
        Exception: _unexpected,
    }
    return Starlette(routes=[*routes, *mounts], exception_handlers=handlers)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)  # noqa: S101 - Starlette picks the handler by the class
    return fault(error.status, error.message)


async def _unsupported(request: Request, error: Exception) -> Response:
    assert isinstance(error, Unsupported)  # noqa: S101 - Starlette picks the handler by the class
    return fault(501, f"Provider '{error.provider}' does not support a requested option: {error.option}")


async def _store_error(request: Request, error: Exception) -> Response:
    LOG.error("%s %s: %s", request.method, request.url.path, error)
    response = fault(503, f"The change could not be stored, and nothing was written: {error}")
    response.headers["retry-after"] = "1"
    return response


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - Starlette picks the handler by the class
    return fault(error.status_code, f"{request.method} {request.url.path}: {error.detail}")


async def _unexpected(request: Request, error: Exception) -> Response:
    LOG.error("%s %s %s failed", request.scope.get("request_id", ""), request.method, request.url.path, exc_info=error)
    return fault(500, "The server made a mistake; its log says more under this request's id.")

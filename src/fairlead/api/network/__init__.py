"""The network door: Neutron's names, at /v2.0 as its clients expect them."""

import logging
from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount

from fairlead.api.door import ApiError, Services, base_url, json_response
from fairlead.api.fields import Schema
from fairlead.api.network.availability import availability_routes
from fairlead.api.network.discovery import discovery_routes, version_document, versions_document
from fairlead.api.network.errors import FAULT, fault, say
from fairlead.api.network.floatingips import FLOATING_IPS
from fairlead.api.network.networks import NETWORKS
from fairlead.api.network.policy import say_not_allowed
from fairlead.api.network.ports import PORTS
from fairlead.api.network.quotas import quota_routes
from fairlead.api.network.routers import ROUTERS
from fairlead.api.network.subnets import SUBNETS
from fairlead.api.network.views import collection_routes, router_routes
from fairlead.api.openapi import Operation, with_document
from fairlead.changes.access import NotAllowed
from fairlead.changes.refusal import Refused
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.allowance import QuotaExceeded
from fairlead.store.interface import StoreError

LOG = logging.getLogger(__name__)
VERSION = "/v2.0"


def make_door(services: Services) -> Starlette:
    async def versions(request: Request) -> Response:
        """Every version, as clients discover them."""
        return json_response(versions_document(base_url(request)))

    async def version(request: Request) -> Response:
        """The version, and what there is below it."""
        return json_response(version_document(base_url(request)))

    resources = [
        *router_routes(services),
        *collection_routes(services, NETWORKS),
        *collection_routes(services, SUBNETS),
        *collection_routes(services, PORTS),
        *collection_routes(services, ROUTERS),
        *collection_routes(services, FLOATING_IPS),
        *availability_routes(services),
        *quota_routes(services),
        *discovery_routes(),
    ]
    found: Mapping[int, Schema] = {200: {"type": "object"}}
    documented = with_document(
        "Fairlead: networks (Neutron)",
        FAULT,
        [
            Operation("GET", "/", versions, gives=found),
            Operation("GET", VERSION, version, gives=found),
            Mount(VERSION, routes=resources),
        ],
    )
    slash = Operation("GET", VERSION + "/", version, gives=found)
    handlers = {
        ApiError: _api_error,
        Refused: _refused,
        QuotaExceeded: _over_quota,
        Unsupported: _unsupported,
        StoreError: _store_error,
        HTTPException: _http_error,
        Exception: _unexpected,
    }
    return Starlette(routes=[slash, *documented], exception_handlers=handlers)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)  # noqa: S101 - Starlette picks the handler by the class
    return fault(error.status, error.kind, error.message)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)  # noqa: S101 - Starlette picks the handler by the class
    if isinstance(error.why, NotAllowed):
        return await _api_error(request, say_not_allowed(error.why, getattr(request.state, "asked", None)))
    return await _api_error(request, say(error.why))


async def _over_quota(request: Request, error: Exception) -> Response:
    assert isinstance(error, QuotaExceeded)  # noqa: S101 - Starlette picks the handler by the class
    return fault(409, "OverQuota", f"Quota exceeded for resources: {sorted(what.value for what in error.over)}.")


async def _unsupported(request: Request, error: Exception) -> Response:
    assert isinstance(error, Unsupported)  # noqa: S101 - Starlette picks the handler by the class
    return fault(501, "HTTPNotImplemented", f"This is not supported: {error}")


async def _store_error(request: Request, error: Exception) -> Response:
    LOG.error("%s %s: %s", request.method, request.url.path, error)
    response = fault(503, "ServiceUnavailable", f"The change could not be stored, and nothing was written: {error}")
    response.headers["retry-after"] = "1"
    return response


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - Starlette picks the handler by the class
    kinds = {
        404: ("HTTPNotFound", "The resource could not be found."),
        405: ("HTTPMethodNotAllowed", f"The method {request.method} is not allowed for this resource."),
    }
    kind, message = kinds.get(error.status_code, ("HTTPError", error.detail))
    response = fault(error.status_code, kind, message)
    response.headers.update(error.headers or {})
    return response


async def _unexpected(request: Request, error: Exception) -> Response:
    LOG.error("%s %s %s failed", request.scope.get("request_id", ""), request.method, request.url.path, exc_info=error)
    text = "Request Failed: internal server error while processing your request."
    return fault(500, "HTTPInternalServerError", text)

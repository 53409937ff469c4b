"""The load-balancer door: Octavia v2, under each prefix that its clients use."""

import logging
from dataclasses import replace
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount

from fairlead.api.door import ApiError, Services, base_url, json_response
from fairlead.api.octavia.discovery import version_document, versions_document
from fairlead.api.octavia.errors import FAULT, fault, say
from fairlead.api.octavia.quotas import NAMES, check_probes
from fairlead.api.octavia.routes import machine_routes, resource_routes
from fairlead.api.openapi import Operation, with_document
from fairlead.changes.refusal import Refused
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.allowance import QuotaExceeded
from fairlead.store.interface import StoreError

LOG = logging.getLogger(__name__)
PREFIX = "/v2.0/lbaas"
ALIASES = ("/v2/lbaas", "/v2", "/v2.0")
"""Where clients look too; the document shows the resources once."""
MACHINES, MACHINES_ALIAS = "/v2.0/octavia", "/v2/octavia"
"""Where Octavia has its amphorae, and nothing else."""


def make_door(services: Services) -> Starlette:
    async def versions(request: Request) -> Response:
        """Every version, as clients discover them."""
        return json_response(versions_document(base_url(request)))

    async def version(request: Request) -> Response:
        """The newest version."""
        return json_response(version_document(base_url(request)))

    def version_route(path: str) -> Operation:
        return Operation("GET", path, version, gives={200: {"type": "object"}})

    resources, machines = (
        resource_routes(replace(services, admit=partial(check_probes, services.probes))),
        machine_routes(),
    )
    documented = with_document(
        "Fairlead: load balancers (Octavia v2)",
        FAULT,
        [
            Operation("GET", "/", versions, gives={200: {"type": "object"}}),
            version_route("/v2"),
            version_route("/v2.0"),
            Mount(PREFIX, routes=resources),
            Mount(MACHINES, routes=machines),
        ],
    )
    slashes = [version_route(path) for prefix in (PREFIX, *ALIASES) for path in (prefix, prefix + "/")]
    aliases = [Mount(MACHINES_ALIAS, routes=machines), *(Mount(prefix, routes=resources) for prefix in ALIASES)]
    handlers = {
        ApiError: _api_error,
        Refused: _refused,
        QuotaExceeded: _over_quota,
        Unsupported: _unsupported,
        StoreError: _store_error,
        HTTPException: _http_error,
        Exception: _unexpected,
    }
    return Starlette(routes=[*slashes, *documented, *aliases], exception_handlers=handlers)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)  # noqa: S101 - Starlette picks the handler by the class
    return fault(error.status, error.message)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)  # noqa: S101 - Starlette picks the handler by the class
    return await _api_error(request, say(error.why))


async def _over_quota(request: Request, error: Exception) -> Response:
    assert isinstance(error, QuotaExceeded)  # noqa: S101 - Starlette picks the handler by the class
    return fault(403, f"Quota has been met for resources: {NAMES[error.over[0]]}")


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
    response = fault(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    response.headers.update(error.headers or {})
    return response


async def _unexpected(request: Request, error: Exception) -> Response:
    LOG.error("%s %s %s failed", request.scope.get("request_id", ""), request.method, request.url.path, exc_info=error)
    return fault(500, "The server made a mistake; its log says more under this request's id.")

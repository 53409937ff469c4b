"""Builder of an API front end: routes with their OpenAPI document, admission, and every error in the front end's
format.

A front end adds its routes, its error format and its texts. Handlers raise exceptions and never build error responses.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from fairlead.api.http.front_end import ApiError, json_response
from fairlead.api.http.openapi import DOCUMENT, ReadConsistency, operations, with_document
from fairlead.changes.balancers import PartPending
from fairlead.changes.identity import Identity
from fairlead.changes.refusal import Refused
from fairlead.schema import Schema, object_schema
from fairlead.store.interface import OutcomeUnknown, RetriesExhausted, StoreError, TooLarge
from fairlead.store.read_barrier import StoreStale

LOG = logging.getLogger(__name__)
ErrorText: TypeAlias = Callable[[Request, Any], ApiError]
"""Function that turns an exception into the error for the caller."""
Handler: TypeAlias = Callable[[Request, Exception], Awaitable[Response]]
RETRY_SECONDS = "1"
"""Retry-After of a change that could not be stored, in seconds."""


def _itself(_: Request, error: ApiError) -> ApiError:
    return error


def _not_stored(_: Request, error: StoreError) -> ApiError:
    if isinstance(error, TooLarge):
        return ApiError(
            413, f"Nothing was written, because the change is too large for the store: {error}", "RequestTooLarge"
        )
    if isinstance(error, RetriesExhausted):
        return ApiError(409, f"Nothing was written: {error}", "Conflict")
    if isinstance(error, StoreStale):
        return ApiError(503, f"The request was not processed: {error}", "ServiceUnavailable")
    if isinstance(error, OutcomeUnknown):
        return ApiError(
            503,
            f"The outcome of the change is unknown: read the object before you repeat the change: {error}",
            "ServiceUnavailable",
        )
    return ApiError(503, f"The store is unavailable, so nothing was written: {error}", "ServiceUnavailable")


def _not_served(_: Request, error: HTTPException) -> ApiError:
    return ApiError(error.status_code, error.detail)


def _mistake(_: Request, __: Exception) -> ApiError:
    return ApiError(500, "Internal server error; the server's log has the details under this request's id.")


ERROR_TEXTS: Mapping[type[Exception], ErrorText] = {
    StoreError: _not_stored,
    HTTPException: _not_served,
    Exception: _mistake,
}
"""Default texts of exceptions for every front end."""


SENTENCE = object_schema({"error": {"type": "string"}}, ["error"])
"""Error schema of Fairlead's own front ends."""


def sentence(error: ApiError) -> Response:
    return json_response({"error": error.message}, error.status)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ApiFrontEnd:
    """API front end: path, error format, texts and admission."""

    path: str
    """Path in the application, and the label in metrics."""
    title: str
    versions: frozenset[str] = frozenset()
    """Paths below `path` that need no authentication, as in every OpenStack service: version discovery. The OpenAPI
    document is public, too."""
    error: Schema
    """Schema of an error body."""
    fault: Callable[[ApiError], Response]
    """Function that formats an error as a response."""
    error_texts: Mapping[type[Exception], ErrorText] = field(default_factory=dict)
    """Texts for exceptions, in addition to the defaults (`WORDS`)."""
    authorize: Callable[[Identity], None] = lambda _: None
    """Function that raises ApiError for a caller that may use no operation of this front end."""
    consistency: ReadConsistency = ReadConsistency.REQUIRED
    """Default read consistency of the operations."""

    @property
    def public(self) -> frozenset[str]:
        """Return the application's paths that need no authentication."""
        return frozenset(self.path + each for each in (DOCUMENT, *self.versions))

    def build(
        self, documented: list[BaseRoute], *, before: Iterable[BaseRoute] = (), after: Iterable[BaseRoute] = ()
    ) -> Starlette:
        """`before` and `after` are aliases tried before and after the documented routes, and not in the OpenAPI
        document."""
        routes = with_document(self.title, self.error, documented)
        for _, operation in operations(documented):
            operation.authorize = operation.authorize or self.authorize
            operation.consistency = operation.consistency or self.consistency
        words: dict[type[Exception], ErrorText] = {ApiError: _itself, **ERROR_TEXTS, **self.error_texts}
        handlers = {kind: self._handle(said) for kind, said in words.items()}
        return Starlette(routes=[*before, *routes, *after], exception_handlers=handlers)

    def _handle(self, words: ErrorText) -> Handler:
        async def handle(request: Request, error: Exception) -> Response:
            said = words(request, error)
            response = self.fault(said)
            response.headers.update(_headers(request, error, said))
            return response

        return handle


def _headers(request: Request, error: Exception, said: ApiError) -> Mapping[str, str]:
    """Return the headers of an error response, and log errors that the caller did not cause."""
    where = f"{request.method} {request.url.path}"
    match error:
        case ApiError(retry_after=int(seconds)):
            return {"retry-after": str(seconds)}
        case Refused(
            why=PartPending()
        ):  # it has waited for the dataplane, and does so again (`Services.apply_timeout`)
            return {"retry-after": RETRY_SECONDS}
        case RetriesExhausted():
            LOG.warning("%s: %s", where, error)
            return {"retry-after": RETRY_SECONDS}
        case TooLarge():
            LOG.warning("%s: %s", where, error)
        case StoreStale():  # the outage of the store is logged elsewhere, once
            return {"retry-after": RETRY_SECONDS}
        case StoreError():
            LOG.error("%s: %s", where, error)
            return {"retry-after": RETRY_SECONDS}
        case HTTPException():
            return error.headers or {}
        case _ if said.status == 500:
            LOG.error("%s %s failed", request.scope.get("request_id", ""), where, exc_info=error)
    return {}

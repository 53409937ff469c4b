"""A door is built in one place: routes with the document that describes them, who may come in at all, and every error
in the door's own format and words.

What a door adds to this are its routes, its format and its words. A handler raises, and never makes an error itself.
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

from fairlead.api.door import ApiError, json_response
from fairlead.api.fields import Schema, object_schema
from fairlead.api.openapi import DOCUMENT, Newest, operations, with_document
from fairlead.changes.identity import Identity
from fairlead.store.interface import OutcomeUnknown, Overtaken, StoreError, TooLarge
from fairlead.store.looks import NotKnown

LOG = logging.getLogger(__name__)
Words: TypeAlias = Callable[[Request, Any], ApiError]
"""What a caller is told of an exception of some class."""
Handler: TypeAlias = Callable[[Request, Exception], Awaitable[Response]]
RETRY_SECONDS = "1"
"""After which a caller may try again what could not be stored."""


def _itself(_: Request, error: ApiError) -> ApiError:
    return error


def _not_stored(_: Request, error: StoreError) -> ApiError:
    if isinstance(error, TooLarge):
        return ApiError(
            413, f"Nothing was written: the change is larger than the store takes: {error}", "RequestTooLarge"
        )
    if isinstance(error, Overtaken):
        return ApiError(409, f"Nothing was written: {error}", "Conflict")
    if isinstance(error, NotKnown):
        return ApiError(503, f"Nothing was done: {error}", "ServiceUnavailable")
    if isinstance(error, OutcomeUnknown):
        return ApiError(503, f"Look again before you repeat the change: {error}", "ServiceUnavailable")
    return ApiError(503, f"The change could not be stored, and nothing was written: {error}", "ServiceUnavailable")


def _not_served(_: Request, error: HTTPException) -> ApiError:
    return ApiError(error.status_code, error.detail)


def _mistake(_: Request, __: Exception) -> ApiError:
    return ApiError(500, "The server made a mistake; its log says more under this request's id.")


WORDS: Mapping[type[Exception], Words] = {StoreError: _not_stored, HTTPException: _not_served, Exception: _mistake}
"""Of every door that has no other ones."""


SENTENCE = object_schema({"error": {"type": "string"}}, ["error"])
"""An error of Fairlead's own doors."""


def sentence(error: ApiError) -> Response:
    return json_response({"error": error.message}, error.status)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Door:
    """How a door speaks, and with whom."""

    path: str
    """Where it is in the application; all that a label of the metrics says of it."""
    title: str
    versions: frozenset[str] = frozenset()
    """Paths below it with what clients read before they log in: everybody may, as in every OpenStack service. So may
    they its document."""
    error: Schema
    """Of the body of an error."""
    fault: Callable[[ApiError], Response]
    """The response that an error is, in the door's format."""
    words: Mapping[type[Exception], Words] = field(default_factory=dict)
    """For exceptions of these classes, besides those that every door has (`WORDS`)."""
    admits: Callable[[Identity], None] = lambda _: None
    """Raises ApiError for who may use none of its operations."""
    newest: Newest = Newest.NEEDED
    """Of those of its operations that say nothing else."""

    @property
    def public(self) -> frozenset[str]:
        """Paths of the application that everybody may read."""
        return frozenset(self.path + each for each in (DOCUMENT, *self.versions))

    def build(
        self, documented: list[BaseRoute], *, before: Iterable[BaseRoute] = (), after: Iterable[BaseRoute] = ()
    ) -> Starlette:
        """`before` and `after` are aliases, which the document leaves out: routes tried before and after the others."""
        routes = with_document(self.title, self.error, documented)
        for _, operation in operations(documented):
            operation.admits = operation.admits or self.admits
            operation.newest = operation.newest or self.newest
        words: dict[type[Exception], Words] = {ApiError: _itself, **WORDS, **self.words}
        handlers = {kind: self._handle(said) for kind, said in words.items()}
        return Starlette(routes=[*before, *routes, *after], exception_handlers=handlers)

    def _handle(self, words: Words) -> Handler:
        async def handle(request: Request, error: Exception) -> Response:
            said = words(request, error)
            response = self.fault(said)
            response.headers.update(_headers(request, error, said))
            return response

        return handle


def _headers(request: Request, error: Exception, said: ApiError) -> Mapping[str, str]:
    """And a line of the log for what is no fault of the caller's."""
    where = f"{request.method} {request.url.path}"
    match error:
        case Overtaken():
            LOG.warning("%s: %s", where, error)
            return {"retry-after": RETRY_SECONDS}
        case TooLarge():
            LOG.warning("%s: %s", where, error)
        case NotKnown():  # the log says once that the store is away
            return {"retry-after": RETRY_SECONDS}
        case StoreError():
            LOG.error("%s: %s", where, error)
            return {"retry-after": RETRY_SECONDS}
        case HTTPException():
            return error.headers or {}
        case _ if said.status == 500:
            LOG.error("%s %s failed", request.scope.get("request_id", ""), where, exc_info=error)
    return {}

"""OpenAPI 3.1 document of an API front end, generated from its routes and body parsers.

A view reads the body that its route declares (`read_body`), so the documented body is the enforced one. The documented
responses are compared with every response in the API tests.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from enum import Enum, auto
from functools import cache
from inspect import getdoc
from typing import Any, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import Receive, Scope, Send

from fairlead import __version__
from fairlead.api.http.front_end import (
    MAX_BODY_BYTES,
    MAX_BODY_DEPTH,
    MAX_BODY_VALUES,
    MAX_DOCUMENT_BYTES,
    MAX_QUERY_BYTES,
    ApiError,
    JsonObject,
    base_url,
    json_response,
    rate_limited,
    read_json,
    too_large,
)
from fairlead.changes.identity import Identity
from fairlead.runtime.fair_semaphore import ClientDisconnected, WaitQueueFull
from fairlead.schema import Parser, Schema, object_schema
from fairlead.store.read_barrier import StoreStale

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
DOCUMENT = "/openapi.json"
TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "array", "items": TEXT}
IDENTITY: Schema = {"type": "string", "format": "uuid"}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "integer", "minimum": 0}
LINKS: Schema = {
    "type": "array",
    "items": object_schema({"rel": TEXT, "href": {"type": "string", "format": "uri"}}, ("rel", "href")),
}
_UNAUTHORIZED = object_schema(
    {"error": object_schema({"code": {"type": "integer"}, "title": TEXT, "message": TEXT}, ("code", "message"))},
    ("error",),
)
QUEUE_FULL_RETRY_SECONDS = 1.0
"""Retry-After in seconds for a request that found the queue of its project full. Eight requests of a project run
concurrently."""
LIMITS = (
    f"A body has at most {MAX_BODY_BYTES} bytes, {MAX_BODY_VALUES} values and {MAX_BODY_DEPTH} levels,"
    " a query string at most"
    f" {MAX_QUERY_BYTES} bytes."
    f" A network with its subnets, or a load balancer with all its parts, has at most {MAX_DOCUMENT_BYTES} bytes."
)
_BEFORE_FRONT_END = object_schema({"error": TEXT}, ["error"])
"""Error schema of requests rejected before any front end, for instance because of their Origin."""
_STATUS_TEXTS = {
    200: "The present state.",
    201: "Created.",
    202: "Accepted; the operation continues in the background.",
    204: "Done, without a body.",
    400: "The request is invalid; the message names the attribute and the valid values.",
    401: "Credentials are missing or wrong (HTTP basic, or a Keystone token).",
    403: "The caller is not allowed to do this.",
    404: "The object does not exist, or the caller is not allowed to see it.",
    409: "The request conflicts with existing objects, or an earlier change of the object is not applied yet.",
    412: "The revision of the object differs from If-Match.",
    413: "The body is too large; or the quota of the project that a service acts for is exhausted.",
    414: "The query string is too long.",
    429: "Too many concurrent requests of this project or address; Retry-After has the seconds until a retry.",
    501: "The requested feature is not supported; the message names it.",
    503: "The store, OVN or Keystone is unavailable; nothing was written.",
}


class ReadConsistency(Enum):
    """Read consistency of an operation with respect to changes that other servers have stored."""

    REQUIRED = auto()
    """Current, or 503 if the store is unavailable."""
    PREFERRED = auto()
    """Current if possible, otherwise this server's state with a warning; for operators who debug the server."""
    LOCAL = auto()
    """This server's state, without a read of the store."""


STALE = (b"warning", b'110 fairlead "Response is Stale"')
"""Warning header of a response when the store is unavailable (RFC 7234, section 5.5.1)."""


class Operation(Route):
    """Route of one method that declares its request and response bodies."""

    def __init__(  # noqa: PLR0913 - a declaration: all but the first three have names
        self,
        method: str,
        path: str,
        view: Handler,
        *,
        gives: Mapping[int, Schema | None],
        takes: Parser[Any] | None = None,
        query: Mapping[str, Schema] | None = None,
        fails: Iterable[int] = (),
        admits: Callable[[Identity], None] | None = None,
        largest: int = MAX_BODY_BYTES,
        waits: bool = False,
        newest: ReadConsistency | None = None,
    ) -> None:
        """`gives` maps status to response schema, None for an empty body. `fails` are error statuses that other
        operations of the method lack. `admits` replaces the front end's check. `largest` is the maximum body in bytes.
        An operation that `waits` is a long poll and takes its concurrency slots itself (`in_turn`), so that it holds
        none while it waits. `newest` None means the front end's default."""
        super().__init__(path, view, methods=[method])
        self.method = method
        self.responses = gives
        self.body = takes
        self.query = query or {}
        self.errors = tuple(fails)
        self.max_body_bytes = largest
        self.is_long_poll = waits
        self.consistency = newest
        self.allowed = frozenset(self.methods or ())
        """Methods of all operations at this path."""
        self.authorize = admits
        """Raise ApiError for a caller that may not use the operation, before anything is read. None means the front
        end's check."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        return match, {**child, "operation": self}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in self.allowed:
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(self.allowed))})
        if len(scope["query_string"]) > MAX_QUERY_BYTES:
            raise ApiError(414, f"The query string is longer than {MAX_QUERY_BYTES} bytes.", "RequestURITooLong")
        if self.authorize is not None:
            self.authorize(scope["identity"])
        if self.body is not None:
            _check_size(scope, self.max_body_bytes)
        async with contextlib.AsyncExitStack() as turns:
            if self.body is not None and not self.is_long_poll:
                await _enter_slot(turns, scope, "own_turn", "user")
            if not self.is_long_poll:
                scope["held"] = await turns.enter_async_context(project_slot(scope))
            if await _knows_newest(scope, self.consistency):
                await super().handle(scope, receive, send)
            else:
                await super().handle(scope, receive, _warning(send))


async def _knows_newest(scope: Scope, newest: ReadConsistency | None) -> bool:
    """Read the store's revision and return whether the snapshot is current. Raises NotKnown."""
    refresh: Callable[[], Awaitable[None]] | None = scope.get("refresh")
    if refresh is None or newest is ReadConsistency.LOCAL:
        return True
    try:
        await refresh()
    except StoreStale:
        if newest is not ReadConsistency.PREFERRED:
            raise
        return False
    return True


def _warning(send: Send) -> Send:
    async def warn(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), STALE]
        await send(message)

    return warn


def _check_size(scope: Scope, largest: int) -> None:
    """Check Content-Length before any of the body is read. Raises ApiError 413."""
    declared = dict(scope["headers"]).get(b"content-length", b"")
    if declared.isdigit() and (len(declared) > 18 or int(declared) > largest):
        raise too_large(largest)


@contextlib.asynccontextmanager
async def project_slot(scope: Scope) -> AsyncIterator[contextlib.AsyncExitStack]:
    """Hold a concurrency slot of the caller's project, where requests are limited. Raises ApiError 429."""
    async with contextlib.AsyncExitStack() as held:
        await _enter_slot(held, scope, "turn", "project")
        yield held


@contextlib.asynccontextmanager
async def _without_project_slot(scope: Scope) -> AsyncIterator[None]:
    """Release the project's slot while a body arrives, because the client determines how long that takes. Bodies in
    transit are limited by user (`own_turn`). Raises ApiError 429."""
    held: contextlib.AsyncExitStack | None = scope.get("held")
    if held is None:
        yield
    else:
        await held.aclose()
        yield
        await _enter_slot(held, scope, "turn", "project")


async def _enter_slot(held: contextlib.AsyncExitStack, scope: Scope, turn: str, whose: str) -> None:
    """Enter a concurrency slot. Raises ApiError 429."""
    try:
        if turn in scope:
            await held.enter_async_context(scope[turn]())
    except (WaitQueueFull, TimeoutError):
        text = f"Too many requests of this {whose} are waiting; send fewer concurrently"
        raise rate_limited(text, QUEUE_FULL_RETRY_SECONDS, "OverLimit") from None
    except ClientDisconnected:
        raise ApiError(400, "The connection was closed.", "MalformedRequestBody") from None


async def read_body(request: Request) -> Any:
    """Read the body as the route declares it. Raises ApiError."""
    operation: Operation = request.scope["operation"]
    assert operation.body is not None, f"{operation} takes no body"  # noqa: S101 - the route's declaration
    return await read_json(request, operation.body, operation.max_body_bytes, _without_project_slot(request.scope))


def with_document(title: str, error: Schema, routes: list[BaseRoute]) -> list[BaseRoute]:
    """Return the routes and the route of their OpenAPI document. `error` is the schema of errors."""

    @cache
    def described() -> JsonObject:
        return describe(title, error, complete)

    async def show(request: Request) -> Response:
        """Show this OpenAPI document."""
        return json_response({**described(), "servers": [{"url": base_url(request)}]})

    complete = [*routes, Operation("GET", DOCUMENT, show, gives={200: {"type": "object"}})]
    by_path: dict[str, list[Operation]] = {}
    for path, operation in operations(complete):
        by_path.setdefault(path, []).append(operation)
    for siblings in by_path.values():
        allowed = frozenset(method for operation in siblings for method in operation.methods or ())
        for operation in siblings:
            operation.allowed = allowed
    return complete


def describe(title: str, error: Schema, routes: Iterable[BaseRoute]) -> JsonObject:
    paths: dict[str, JsonObject] = {}
    for path, operation in operations(routes):
        paths.setdefault(path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__, "description": LIMITS},
        "paths": paths,
        "components": {"schemas": {"Error": error, "Unauthorized": _UNAUTHORIZED, "Elsewhere": _BEFORE_FRONT_END}},
    }


def operations(routes: Iterable[BaseRoute], prefix: str = "") -> Iterator[tuple[str, Operation]]:
    """Yield each operation with its OpenAPI path."""
    for route in routes:
        match route:
            case Mount():
                yield from operations(route.routes, prefix + route.path)
            case Operation():
                yield prefix + route.path_format, route


def _describe(operation: Operation) -> JsonObject:
    words = getdoc(operation.endpoint)
    described: JsonObject = {
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": TEXT} for name in operation.param_convertors),
            *({"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()),
        ],
        "responses": {str(status): _answer(status, schema) for status, schema in sorted(_answers(operation).items())},
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, **_content(operation.body.schema)}
    return {"description": words, **described} if words else described


def _answers(operation: Operation) -> Mapping[int, Schema | None]:
    failures = [400, 404, 414, 503, *operation.errors]
    if operation.method != "GET":
        failures += [409, 501]
    if operation.body is not None:
        failures += [413]
    return {
        401: _reference("Unauthorized"),
        **{status: _reference("Error") for status in failures},
        403: {"anyOf": [_reference("Error"), _reference("Elsewhere")]},
        429: {"anyOf": [_reference("Error"), _reference("Unauthorized")]},
        **operation.responses,
    }


def _answer(status: int, schema: Schema | None) -> JsonObject:
    return {"description": _STATUS_TEXTS[status], **({} if schema is None else _content(schema))}


def _content(schema: Schema) -> JsonObject:
    return {"content": {"application/json": {"schema": schema}}}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}

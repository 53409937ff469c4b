"""Response envelope and ETags of LXD's API (LXD's REST API, "Return values").

Responses are synchronous: a change is stored and applied before its response. Only tokens are operations.
"""

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import ApiError, JsonObject, json_response
from fairlead.api.http.openapi import TEXT, TEXTS
from fairlead.schema import NULL, Schema, object_schema

PREFIX = "/1.0"
"""Path prefix of the API in URLs for clients."""
_SCHEMA: Mapping[str, Schema] = {
    "type": {"const": "sync"},
    "status": {"const": "Success"},
    "status_code": {"const": 200},
    "operation": {"const": ""},
    "error_code": {"const": 0},
    "error": {"const": ""},
}
FAULT: Schema = object_schema(
    {
        **_SCHEMA,
        "type": {"const": "error"},
        "status": {"const": ""},
        "status_code": {"const": 0},
        "error_code": {"type": "integer", "minimum": 400, "maximum": 599},
        "error": TEXT,
        "metadata": NULL,
    },
    [*_SCHEMA, "metadata"],
)
"""Schema of an error body."""
LIST: Schema = {"anyOf": [TEXTS, {"type": "array", "items": {"type": "object"}}]}
"""Schema of a list: URLs, or with `recursion` the objects."""


def sync_schema(metadata: Schema) -> Schema:
    """Return the schema of a response with this metadata."""
    return object_schema({**_SCHEMA, "metadata": metadata}, [*_SCHEMA, "metadata"])


EMPTY: Schema = sync_schema(NULL)
"""Schema of a response without metadata."""


def sync(metadata: object = None, *, tag: str = "") -> Response:
    """Return a synchronous response; `tag` is the ETag of an editable object."""
    response = json_response(_envelope(metadata))
    if tag:
        response.headers["etag"] = f'"{tag}"'
    return response


def created(location: str) -> Response:
    """Return 201. `location` is the path of the new object; some clients fail without it."""
    response = json_response(_envelope(None), 201)
    response.headers["location"] = location
    return response


def operation_created(operation: str, metadata: JsonObject) -> Response:
    """Return 202 for an operation, with its path and state."""
    body = _envelope(metadata) | {"type": "async", "status": "Operation created", "status_code": 100}
    response = json_response(body | {"operation": operation}, 202)
    response.headers["location"] = operation
    return response


def fault(error: ApiError) -> Response:
    body = _envelope(None) | {"type": "error", "status": "", "status_code": 0}
    response = json_response(body | {"error_code": error.status, "error": error.message}, error.status)
    response.headers["x-content-type-options"] = "nosniff"
    return response


def _envelope(metadata: object) -> JsonObject:
    return {
        "type": "sync",
        "status": "Success",
        "status_code": 200,
        "operation": "",
        "error_code": 0,
        "error": "",
        "metadata": metadata,
    }


def etag(parts: Sequence[object]) -> str:
    """Return a hash of the editable values; opaque to clients."""
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic") + b"\n").hexdigest()


def check_match(request: Request, tag: str) -> None:
    """Raise ApiError 412 if If-Match differs from this ETag. Call it inside the change function of `Services.write`, so
    that one of two concurrent edits fails."""
    asked = request.headers.get("if-match", "")
    wanted = asked.removeprefix("W/").strip('"')
    if wanted not in ("", "*", tag):
        raise ApiError(412, f"ETag doesn't match: {tag} vs {wanted}")

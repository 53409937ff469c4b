"""What LXD's clients read: one object around every answer, and ETags (LXD's REST API, "Return values").

Answers are synchronous: a change is stored and applied when it is answered. Only a token is an operation.
"""

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.door import ApiError, JsonObject, json_response
from fairlead.api.fields import NULL, Schema, object_schema
from fairlead.api.openapi import TEXT, TEXTS

PREFIX = "/1.0"
"""Where the API is, in URLs that clients are given."""
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
"""Of the body of an error."""
LIST: Schema = {"anyOf": [TEXTS, {"type": "array", "items": {"type": "object"}}]}
"""URLs, or the objects themselves where `recursion` asks for them."""


def gives(metadata: Schema) -> Schema:
    """The schema of an answer around this one."""
    return object_schema({**_SCHEMA, "metadata": metadata}, [*_SCHEMA, "metadata"])


EMPTY: Schema = gives(NULL)
"""Of an answer that only says that it is done."""


def sync(metadata: object = None, *, tag: str = "") -> Response:
    """`tag` is what `etag` gave, for what can be edited."""
    response = json_response(_envelope(metadata))
    if tag:
        response.headers["etag"] = f'"{tag}"'
    return response


def created(location: str) -> Response:
    """`location` is the path of what was made. Some clients fail without it, after it was made."""
    response = json_response(_envelope(None), 201)
    response.headers["location"] = location
    return response


def begun(operation: str, metadata: JsonObject) -> Response:
    """What is not over yet: the path of the operation, and what is known of it."""
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
    """Of what can be edited, as hex. Opaque to clients: they send it back as it came."""
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic") + b"\n").hexdigest()


def check_match(request: Request, tag: str) -> None:
    """Raises ApiError 412 when If-Match asks for another state than this one. To be asked inside the change function
    of `Services.write`: so of two that edit at once one is told."""
    asked = request.headers.get("if-match", "")
    wanted = asked.removeprefix("W/").strip('"')
    if wanted not in ("", "*", tag):
        raise ApiError(412, f"ETag doesn't match: {tag} vs {wanted}")

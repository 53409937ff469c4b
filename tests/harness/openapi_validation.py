"""Validates every response of an API front end against its OpenAPI document."""

import json
from typing import Any

import httpx
import jsonschema_rs
from starlette.applications import Starlette
from starlette.routing import compile_path

from fairlead.api.http.openapi import DOCUMENT, describe, operations
from fairlead.schema import Schema

ERROR: Schema = {"$ref": "#/components/schemas/Error"}


_CACHE: dict[frozenset[tuple[str, str]], "ResponseValidator"] = {}
"""Validators by set of operations: generating a front end's document is slow, and its result constant."""


async def make_validator(door: Starlette, client: httpx.AsyncClient, where: str = DOCUMENT) -> "ResponseValidator":
    """Validator for this front end. The client can read the OpenAPI document at `where`."""
    key = frozenset((operation.method, path) for path, operation in operations(door.routes))
    if key not in _CACHE:
        _CACHE[key] = ResponseValidator(door, (await client.get(where)).json()["components"])
    return _CACHE[key]


class ResponseValidator:
    """Validator for a front end made by `make_door`, independent of the path at which it is mounted."""

    def __init__(self, door: Starlette, components: Any) -> None:
        self._paths = describe("", {}, door.routes)["paths"]
        self._components = components
        self._operations = [
            (operation.method, compile_path(path.replace("{tag}", "{tag:path}"))[0], path)
            for path, operation in operations(door.routes)
        ]
        self._validators: dict[str, jsonschema_rs.Draft202012Validator] = {}

    async def check_response(self, answer: httpx.Response) -> None:
        """Response hook for httpx's `event_hooks`. Raises AssertionError."""
        await answer.aread()
        self.check(answer.request.method, answer.request.url.path, answer.status_code, answer.content)

    def check(self, method: str, path: str, status: int, body: bytes) -> None:
        found = next((known for verb, regex, known in self._operations if verb == method and regex.match(path)), None)
        if status == 500 or (found is None and status in (404, 405)):  # not declared by any operation
            self._validate("an error", ERROR, body)
            return
        assert found is not None, f"{method} {path} is not in the document, and answers {status}"
        responses = self._paths[found][method.lower()]["responses"]
        assert str(status) in responses, f"{method} {found} does not say that it may answer {status}: {body!r}"
        content = responses[str(status)].get("content")
        if content is None:
            assert body == b""
        else:
            self._validate(f"{method} {found} {status}", content["application/json"]["schema"], body)

    def _validate(self, where: str, schema: Schema, body: bytes) -> None:
        if where not in self._validators:
            complete = {**schema, "components": self._components}
            self._validators[where] = jsonschema_rs.Draft202012Validator(complete, validate_formats=True)
        errors = self._validators[where].iter_errors(json.loads(body))
        problems = [f"{error.instance_path}: {error.message}" for error in errors]
        assert not problems, f"{where} is not what the document says: {problems}"

"""Errors of an API front end: each exception leaves in the front end's format, and unauthenticated bodies are not
read."""

from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import ApiError
from fairlead.api.http.front_end_builder import SENTENCE, ApiFrontEnd, sentence
from fairlead.api.http.openapi import Operation
from fairlead.changes.identity import Identity
from fairlead.store.interface import RetriesExhausted, StoreUnavailable


def only_admin(who: Identity) -> None:
    if not who.is_admin:
        raise ApiError(403, "not for you")


async def ask(raised: Exception, *, roles: frozenset[str] = frozenset({"admin"}), **manners: Any) -> httpx.Response:
    async def handler(request: Request) -> Response:
        raise raised

    door = ApiFrontEnd(path="/d", title="a door", error=SENTENCE, fault=sentence, authorize=only_admin, **manners)
    app = door.build([Operation("GET", "/here", handler, gives={200: None})])

    async def known(scope: Any, receive: Any, send: Any) -> None:
        scope["identity"] = Identity(user="u", project_id="p", roles=roles)
        await app(scope, receive, send)

    transport = httpx.ASGITransport(known, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
        return await client.get("/here")


@pytest.mark.parametrize(
    ("raised", "status", "words"),
    [
        (ApiError(418, "tea"), 418, "tea"),
        (StoreUnavailable("the disk is full"), 503, "nothing was written: the disk is full"),
        (RetriesExhausted("others wrote first"), 409, "Nothing was written: others wrote first"),
        (HTTPException(405, "no", {"Allow": "PUT"}), 405, "no"),
        (ValueError("a secret"), 500, "Internal server error"),
    ],
)
async def test_exceptions_leave_in_the_error_format_of_the_front_end(raised: Exception, status: int, words: str):
    answer = await ask(raised)
    assert answer.status_code == status
    assert words in answer.json()["error"]
    assert "secret" not in answer.text


async def test_store_errors_have_retry_after_and_http_errors_keep_headers():
    for error in (StoreUnavailable("it is away"), RetriesExhausted("others wrote first")):
        assert (await ask(error)).headers["retry-after"] == "1"
    assert (await ask(HTTPException(405, "no", {"Allow": "PUT"}))).headers["allow"] == "PUT"


async def test_front_end_maps_exceptions_to_its_own_errors():
    answer = await ask(ValueError("3"), error_texts={ValueError: lambda _, error: ApiError(409, f"not {error}")})
    assert (answer.status_code, answer.json()) == (409, {"error": "not 3"})


async def test_unauthorized_request_does_not_reach_the_handler():
    answer = await ask(ApiError(418, "tea"), roles=frozenset({"member"}))
    assert (answer.status_code, answer.json()) == (403, {"error": "not for you"})

"""A caller who is paced learns when to come again: Retry-After in whole seconds, made of the pace itself."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

import fairlead
from fairlead.api import lxd, network, octavia, plugin
from fairlead.api.agents import routes as agent_routes
from fairlead.api.http.front_end import ApiError, rate_limited
from fairlead.api.http.front_end_builder import SENTENCE, ApiFrontEnd, sentence
from fairlead.api.http.openapi import Operation
from fairlead.api.http.rate_limit import MAX_RETRY_AFTER, RateLimiter, retry_after
from fairlead.api.operator import routes as operator_routes
from fairlead.changes.balancers import BalancerPending, PartPending
from fairlead.changes.identity import Identity
from fairlead.changes.refusal import Refused
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.quota import QuotaResource
from fairlead.model.documents.status import ProvisioningStatus

ON_ITS_WAY: dict[str, Any] = {
    "owner": Owner(Kind.LOAD_BALANCER, "lb"),
    "generation": 3,
    "id": "lb",
    "what": QuotaResource.LOAD_BALANCER,
    "status": ProvisioningStatus.PENDING_UPDATE,
}


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.0, 1), (0.05, 1), (1.0, 1), (1.01, 2), (59.5, 60), (1e9, MAX_RETRY_AFTER)]
)
def test_retry_after_is_whole_seconds_within_bounds(seconds: float, told: int):
    assert retry_after(seconds) == told


def test_retry_after_is_the_minimum_sufficient_delay():
    """A caller who comes again when it was told to is served, and one second before that it was not."""
    now = 100.0
    pace = RateLimiter(2, 2.5, lambda: now)
    for _ in range(4):
        pace.add("192.0.2.9")
    told = retry_after(pace.wait("192.0.2.9"))
    now += told - 1
    assert pace.wait("192.0.2.9") > 0
    now += 1
    assert pace.wait("192.0.2.9") == 0


async def answer_of(door: ApiFrontEnd, error: Exception) -> httpx.Response:
    async def handler(_: Request) -> Response:
        raise error

    app: Starlette = door.build([Operation("GET", "/here", handler, gives={200: None}, admits=lambda _: None)])

    async def known(scope: Any, receive: Any, send: Any) -> None:
        scope["identity"] = Identity(user="u", project_id="p", roles=frozenset({"admin"}))
        await app(scope, receive, send)

    transport = httpx.ASGITransport(known, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
        return await client.get("/here")


@pytest.mark.parametrize(
    "door",
    [
        operator_routes.FRONT_END,
        lxd.FRONT_END,
        network.FRONT_END,
        octavia.FRONT_END,
        agent_routes.FRONT_END,
        plugin.FRONT_END,
    ],
    ids=lambda door: str(door.path),
)
async def test_rate_limit_error_uses_the_format_of_the_front_end(door: ApiFrontEnd):
    error = rate_limited("chassis one reports too often", 3.2)
    answer = await answer_of(door, error)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "4")
    assert "chassis one reports too often; try again in 4 s" in answer.text
    assert answer.content == door.fault(error).body


@pytest.mark.parametrize("door", [lxd.FRONT_END, octavia.FRONT_END, plugin.FRONT_END], ids=lambda door: str(door.path))
@pytest.mark.parametrize("why", [PartPending, BalancerPending])
async def test_change_blocked_by_an_earlier_change_returns_409_with_retry_after(
    door: ApiFrontEnd, why: type[PartPending]
):
    """It has waited for the dataplane already (`Services.apply_timeout`), and waits again when it comes again."""
    answer = await answer_of(door, Refused(why(**ON_ITS_WAY)))
    assert (answer.status_code, answer.headers["retry-after"]) == (409, "1")


def test_rate_limit_errors_are_built_in_one_module():
    """So none leaves out the header, nor words of when to come again."""
    sources = {each: each.read_text() for each in Path(fairlead.__file__).parent.glob("api/**/*.py")}
    assert [each.name for each, text in sources.items() if "ApiError(429" in text] == ["front_end.py"]


async def test_other_errors_have_no_retry_after():
    door = ApiFrontEnd(path="/d", title="a door", error=SENTENCE, fault=sentence)
    assert "retry-after" not in (await answer_of(door, ApiError(403, "no"))).headers

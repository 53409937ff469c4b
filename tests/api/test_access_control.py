"""Checks before any API front end: authentication, concurrency limits and the audit log."""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fairlead.api import network, octavia
from fairlead.api.http import access_control
from fairlead.api.http.access_control import (
    MAX_CONCURRENT,
    MAX_QUEUED,
    AccessControl,
    AccessPolicy,
    Answered,
    ConcurrencyLimits,
    names_of,
)
from fairlead.api.http.authentication import LoginAttempt, TooManyLogins
from fairlead.api.http.front_end import MAX_BODY_BYTES, ApiError, json_response
from fairlead.api.http.openapi import Operation, read_body
from fairlead.changes.identity import Identity
from fairlead.runtime.logging import AUDIT, JsonFormatter, RateLimit, TokenBucket
from fairlead.schema import reads
from fairlead.store.model import CHANGED_OWNERS
from harness.api import InProcessServer
from harness.api import play as inside_play
from harness.waiting import eventually, run_ready_tasks

pytestmark = pytest.mark.virtual_clock
ANN = Identity(user="ann", project_id="shop", roles=frozenset({"member"}))
EVE = Identity(user="eve", project_id="other", roles=frozenset({"member"}))


class CallersSite:
    """API front end whose only view waits for the test's signal."""

    def __init__(self, names: frozenset[str] | None = None, who: Identity | None = ANN) -> None:
        self.who = who
        self.busy = 0
        self.go_on = asyncio.Event()
        self.changes = "loadbalancer/1"

        async def view(request: Request) -> Response:
            self.busy += 1
            await self.go_on.wait()
            changed = CHANGED_OWNERS.get()
            assert changed is not None
            changed.append(self.changes)
            return json_response(await read_body(request) if request.method == "POST" else {})

        async def wait(request: Request) -> Response:
            request.scope["waited"].append(1000.0)
            self.busy += 1
            await self.go_on.wait()
            return json_response({})

        async def error(_: Request, error: Exception) -> Response:
            assert isinstance(error, ApiError)
            return json_response({"error": error.message}, error.status)

        anything = reads({})(lambda value: value)
        routes = [
            Operation("GET", "/it", view, gives={}),
            Operation("POST", "/it", view, gives={}, takes=anything),
            Operation("GET", "/news", wait, gives={}, waits=True),
            Route("/healthz", lambda _: Response("well")),
        ]
        app = Starlette(routes=routes, exception_handlers={ApiError: error})
        self.answered: list[Answered] = []
        reception = AccessControl(
            *(app, AccessPolicy(authenticate=self.authenticate, names=names), lambda: "1", self.answered.append),
            ConcurrencyLimits(),
        )
        transport = httpx.ASGITransport(app=reception, client=("192.0.2.9", 1))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9876")

    async def authenticate(self, attempt: LoginAttempt) -> Identity | None:
        if attempt.authorization == "slow":
            raise TooManyLogins(7)
        return EVE if attempt.authorization == "eve" else self.who

    def paced(self) -> Counter[tuple[str, int, bool]]:
        """Method, status, and whether it waited, of the requests so far."""
        return Counter((each.method, each.status, each.delayed) for each in self.answered)


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[CallersSite]:
    place = CallersSite(**options)
    async with place.client:
        yield place


@pytest.fixture
def _time_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock of the per-minute allowances, and start each with a full allowance."""
    frozen = partial(TokenBucket, clock=lambda: 0.0)
    monkeypatch.setattr(access_control, "TokenBucket", frozen)
    limit = RateLimit(access_control.UNAUTHENTICATED_PER_MINUTE)
    limit._bucket = frozen(access_control.UNAUTHENTICATED_PER_MINUTE)
    monkeypatch.setattr(access_control.UNAUTHENTICATED_LOG, "filters", [limit])


@pytest.mark.parametrize(
    ("listen", "more", "tls", "right", "wrong"),
    [
        ("127.0.0.1:9876", (), False, ["127.0.0.1:9876", "localhost:9876", "[::1]:9876"], ["localhost", "evil:9876"]),
        ("[::1]:80", (), False, ["[::1]:80", "[::1]", "localhost"], ["[::1]:9876"]),
        ("localhost:443", ("fwd:8080",), True, ["localhost", "127.0.0.1:443", "fwd:8080"], ["fwd:443", ""]),
        ("127.0.0.5:80", (), True, ["127.0.0.5:80", "localhost:80"], ["127.0.0.5"]),
    ],
)
def test_allowed_host_names_follow_the_listen_address(
    listen: str, more: tuple[str, ...], tls: bool, right: list[str], wrong: list[str]
):
    names = names_of(listen, more, tls)
    assert names >= set(right)
    assert not names & set(wrong)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "LOCALHOST:9876"}, 200),
        ({"host": "[::1]:9876"}, 200),
        ({"host": "localhost"}, 403),
        ({"host": "rebound.example:9876"}, 403),
        ({"host": "rebound.example:9876", "origin": "http://rebound.example:9876"}, 403),
        ({"host": ""}, 403),
        ({"origin": "http://127.0.0.1:9876"}, 200),
        ({"origin": "http://localhost:9876"}, 403),
        ({"origin": "http://127.0.0.1:8000"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
    ],
)
async def test_cross_site_and_dns_rebinding_requests_are_rejected(headers: dict[str, str], status: int):
    """Requests of foreign web pages are rejected: DNS rebinding puts a foreign name in Host, and another site's page in
    Origin."""

    async with opened(names=names_of("127.0.0.1:9876", (), tls=False)) as place:
        place.go_on.set()
        assert (await place.client.get("/it", headers=headers)).status_code == status
        assert (await place.client.get("/healthz", headers={"host": "anything"})).status_code == 200


async def test_concurrent_requests_of_one_project_are_limited_and_others_are_served():
    async with opened() as place:
        crowd = [asyncio.create_task(place.client.get("/it")) for _ in range(MAX_CONCURRENT + MAX_QUEUED + 10)]
        await run_ready_tasks()
        assert place.busy == MAX_CONCURRENT
        other = asyncio.create_task(place.client.get("/it", headers={"authorization": "eve"}))
        writes = asyncio.create_task(place.client.post("/it", json={}))
        await eventually(lambda: place.busy >= MAX_CONCURRENT + 2)
        place.go_on.set()
        answers = [await each for each in crowd]
        assert [answer.status_code for answer in answers].count(429) == 10
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.headers["retry-after"] == "1"
        assert "Too many requests of this project" in refused.json()["error"]
        assert ((await other).status_code, (await writes).status_code) == (200, 200)
        assert place.paced() == {
            ("GET", 200, False): MAX_CONCURRENT + 1,
            ("GET", 200, True): MAX_QUEUED,
            ("GET", 429, False): 10,
            ("POST", 200, False): 1,
        }
        assert {each.path for each in place.answered} == {"/it"}


async def test_queued_request_that_times_out_is_counted_only_as_rejected():
    async with opened() as place:
        crowd = [asyncio.create_task(place.client.get("/it")) for _ in range(MAX_CONCURRENT + 3)]
        await eventually(lambda: len(place.answered) == 3)
        assert place.paced() == {("GET", 429, False): 3}
        place.go_on.set()
        await asyncio.gather(*crowd)
        assert place.paced() == {("GET", 429, False): 3, ("GET", 200, False): MAX_CONCURRENT}


async def test_a_request_that_waits_twice_is_counted_once():
    """A change waits for its turn before its body is read, and again afterwards."""
    async with opened() as place:
        first = [asyncio.create_task(place.client.post("/it", json={})) for _ in range(MAX_CONCURRENT)]
        await eventually(lambda: place.busy == MAX_CONCURRENT)
        place.who = replace(ANN, user="amy")
        second = [asyncio.create_task(place.client.post("/it", json={})) for _ in range(MAX_CONCURRENT)]
        await run_ready_tasks()
        place.go_on.set()
        await asyncio.gather(*first, *second)
        assert place.paced() == {("POST", 200, True): 2 * MAX_CONCURRENT}


async def test_oversized_body_is_rejected_before_reading():
    async with opened() as place:

        async def body() -> Any:
            raise AssertionError("nobody reads it")
            yield b""

        for size in (str(MAX_BODY_BYTES + 1), "9" * 5000):
            answer = await place.client.post("/it", content=body(), headers={"content-length": size})
            assert answer.status_code == 413


async def test_throttled_password_check_returns_retry_after():
    async with opened() as place:
        answer = await place.client.get("/it", headers={"authorization": "slow"})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")


async def test_administrator_requests_do_not_queue_behind_tenant_requests():
    async with opened() as place:
        crowd = [asyncio.create_task(place.client.post("/it", json={})) for _ in range(MAX_CONCURRENT + MAX_QUEUED)]
        await eventually(lambda: place.busy == MAX_CONCURRENT)
        place.who = Identity(user="root", project_id=ANN.project_id, roles=frozenset({"admin"}))
        request = asyncio.create_task(place.client.post("/it", json={}))
        await eventually(lambda: place.busy == MAX_CONCURRENT + 1)
        place.go_on.set()
        assert (await request).status_code == 200
        assert {answer.status_code for answer in await asyncio.gather(*crowd)} == {200}


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(JsonFormatter().format(record)) for record in caplog.records if record.name == AUDIT]


async def test_change_is_logged_in_the_audit_log(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)

    async with opened() as place:
        place.go_on.set()
        await place.client.post("/it", json={})
        await place.client.get("/it")
    (line,) = lines(caplog)
    assert line.pop("milliseconds") >= 0
    assert line.pop("time")
    assert line.pop("message").endswith(": loadbalancer/1")
    assert line == {
        "level": "INFO", "logger": AUDIT, "request": "req-1", "method": "POST", "path": "/it", "user": "ann",
        "project": "shop", "roles": ["member"], "from": "192.0.2.9", "status": 200, "objects": ["loadbalancer/1"],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["%", "%s", "%(x)s", "100%"])
async def test_format_characters_in_names_do_not_suppress_audit_records(caplog: pytest.LogCaptureFixture, name: str):
    """Names that callers choose, such as project ids and zone names, cannot suppress an audit record."""
    caplog.set_level(logging.INFO)

    async with opened() as place:
        place.changes = f"quota/{name}"
        place.go_on.set()
        await place.client.post("/it", json={})
    (line,) = lines(caplog)
    assert line["message"].endswith(f": quota/{name}")


@pytest.mark.usefixtures("_time_stands")
async def test_failed_logins_are_audited_within_a_rate_limit(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)

    async with opened(who=None) as place:
        for number in range(access_control.FAILED_LOGINS_A_MINUTE + 50):
            await place.client.get("/it", auth=(f"ann\n{number}" + "x" * 1000, "secret"))
    found = lines(caplog)
    assert len(found) == access_control.FAILED_LOGINS_A_MINUTE
    assert (found[0]["user"][:8], found[0]["from"], found[0]["log_in"]) == ("ann\\n0xx", "192.0.2.9", "failed")
    assert max(len(json.dumps(line)) for line in found) < 2000
    assert "secret" not in json.dumps(found)


@pytest.mark.usefixtures("_time_stands")
async def test_unauthenticated_requests_log_a_bounded_number_of_lines(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)

    async with opened(who=None) as place:
        for number in range(500):
            await place.client.get(f"/nothing{number}/%0Aall is well")
    ours = [record for record in caplog.records if record.name.startswith("fairlead")]
    assert len(ours) == access_control.UNAUTHENTICATED_PER_MINUTE
    assert not any("\n" in record.getMessage() for record in ours)


@pytest.mark.parametrize(
    ("make_door", "path"),
    [(network.make_front_end, "/v2.0/networks"), (octavia.make_front_end, "/v2.0/lbaas/loadbalancers")],
)
def test_body_of_a_read_only_caller_is_not_read(tmp_path: Path, make_door: Any, path: str):
    async def story(place: InProcessServer) -> None:
        async def body() -> Any:
            raise AssertionError("nobody reads it")
            yield b""

        place.caller = Identity(user="r", project_id="p", roles=frozenset({"reader"}))
        assert (await place.client.post(path, content=body())).status_code == 403

    inside_play(make_door, tmp_path, story)


async def test_long_polls_use_no_concurrency_slot_and_no_duration_metric():
    async with opened() as place:
        waiting = [asyncio.create_task(place.client.get("/news")) for _ in range(MAX_CONCURRENT)]
        await eventually(lambda: place.busy == MAX_CONCURRENT)
        served = asyncio.create_task(place.client.get("/it"))
        await eventually(lambda: place.busy == MAX_CONCURRENT + 1)
        place.go_on.set()
        assert (await served).status_code == 200
        await asyncio.gather(*waiting)
        took = {each.path: each.seconds for each in place.answered}
        assert took["/news"] < 0 < took["/it"]


async def test_slow_request_bodies_delay_only_their_own_sender():
    """Bodies in transfer count against their sender's limit, so no further body of the sender is read, but others'
    are."""
    begun: list[int] = []

    async with opened() as place:
        arrived = asyncio.Event()

        async def slow(number: int) -> AsyncIterator[bytes]:
            begun.append(number)
            yield b"{"
            await arrived.wait()
            yield b"}"

        place.go_on.set()
        first = [asyncio.create_task(place.client.post("/it", content=slow(n))) for n in range(MAX_CONCURRENT + 3)]
        await eventually(lambda: len(begun) == MAX_CONCURRENT)
        place.who = replace(ANN, user="amy")
        assert (await place.client.post("/it", json={})).status_code == 200
        assert len(begun) == MAX_CONCURRENT
        arrived.set()
        assert {answer.status_code for answer in await asyncio.gather(*first)} == {200}
        assert place.paced() == {("POST", 200, False): MAX_CONCURRENT + 1, ("POST", 200, True): 3}

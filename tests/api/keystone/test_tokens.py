"""Token authentication: accepted callers, number of requests to Keystone, and behaviour during an outage of
Keystone."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from fairlead.api.http.authentication import IdentityProviderUnavailable, LoginAttempt, NoProjectScope, TooManyLogins
from fairlead.api.keystone import client, tokens
from fairlead.api.keystone.cache import REFUSED_SECONDS, TokenCache
from fairlead.api.keystone.client import MISUSED_SECONDS, UNAVAILABLE_RETRY_SECONDS, ServiceUserRejected
from fairlead.api.keystone.tokens import FAILURES, MAX_CONCURRENT, MAX_CONCURRENT_PER_KEY, MAX_QUEUED, KeystoneTokens
from fairlead.api.operator.metrics import TokenCollector
from fairlead.changes.identity import Identity
from fairlead.http import client as http_client
from fairlead.http.client import NoAnswer
from fairlead.runtime.fair_semaphore import ClientDisconnected
from harness.front_ends.keystone_recorded import (
    ADMIN_ROLES,
    DOMAIN,
    PASSWORD,
    SHOP,
    SHOP_SCOPE,
    ReplayedKeystone,
    keystone_at,
    replayed_keystone,
    token,
)
from harness.waiting import eventually, run_ready_tasks


@dataclass
class TokenSite:
    """A stand-in for Keystone, with the token check under test."""

    play: ReplayedKeystone = field(default_factory=ReplayedKeystone)
    now: float = 1000.0
    port: int = 0
    check: KeystoneTokens = None  # type: ignore[assignment]

    async def outcome(self, said: str, address: str = "10.0.0.1", gone: asyncio.Event | None = None) -> str:
        try:
            found = await self.check(LoginAttempt(token=said, address=address, disconnected=gone))
        except IdentityProviderUnavailable:
            return "IdentityProviderUnavailable"
        except (TooManyLogins, NoProjectScope, ClientDisconnected) as error:
            return type(error).__name__
        return "nobody" if found is None else "right"

    def later(self, seconds: float) -> None:
        self.now += seconds


@asynccontextmanager
async def opened(fresh: float = 60, outage: float = 300) -> AsyncIterator[TokenSite]:
    cloud = TokenSite()
    async with replayed_keystone(cloud.play) as cloud.port:
        memory = TokenCache(fresh, outage, lambda: cloud.now)
        keystone = keystone_at(cloud.port, lambda: cloud.now)
        cloud.check = KeystoneTokens(keystone, memory, clock=lambda: cloud.now)
        cloud.play.tokens |= {"good": token("member", "reader", **SHOP_SCOPE), "other": token("reader", **SHOP_SCOPE)}
        yield cloud


async def away(cloud: TokenSite) -> None:
    """Point the check at a URL on which no server listens."""
    cloud.check.keystone._endpoint = http_client.HttpEndpoint(url="http://127.0.0.1:1/v3")


async def back(cloud: TokenSite) -> None:
    cloud.check.keystone._endpoint = http_client.HttpEndpoint(url=f"http://127.0.0.1:{cloud.port}/v3")


async def test_token_is_validated_once_and_revalidated_after_the_cache_time():
    async with opened() as cloud:
        for seconds in (0, 30, 29, 2):
            cloud.later(seconds)
            found = await cloud.check(LoginAttempt(token="good", project_id="another"))
            assert found is not None
            assert (found.project_id, found.roles) == (SHOP["id"], {"member", "reader"})
        assert (cloud.play.validated_tokens, cloud.play.login_count) == (["good", "good"], 1)


async def test_revoked_token_is_rejected_at_revalidation():
    async with opened() as cloud:
        assert await cloud.outcome("good") == "right"
        del cloud.play.tokens["good"]
        cloud.later(59)
        assert await cloud.outcome("good") == "right"
        cloud.later(2)
        assert await cloud.outcome("good") == "nobody"


async def test_expired_token_is_not_accepted_during_an_outage():
    async with opened() as cloud:
        cloud.play.tokens["short"] = token("reader", seconds=20, **SHOP_SCOPE)
        assert await cloud.outcome("short") == "right"
        await away(cloud)
        cloud.later(21)
        assert await cloud.outcome("short") == "IdentityProviderUnavailable"


async def test_refused_token_is_cached_for_a_while():
    async with opened() as cloud:
        assert [await cloud.outcome("bad") for _ in range(3)] == ["nobody"] * 3
        assert cloud.play.validated_tokens == ["bad"]
        cloud.later(REFUSED_SECONDS)
        assert await cloud.outcome("bad") == "nobody"
        assert cloud.play.validated_tokens == ["bad", "bad"]


@pytest.mark.parametrize("said", ["", " ", "a b", "a\nX-Auth-Token: b", "ä", "x" * 4097, "x" * 100_000])
async def test_malformed_token_is_rejected_without_a_keystone_request(said: str):
    async with opened() as cloud:
        assert await cloud.outcome(said) == "nobody"
        assert (cloud.play.validated_tokens, cloud.play.login_count) == ([], 0)


async def test_concurrent_requests_with_one_token_validate_once():
    async with opened() as cloud:
        assert await asyncio.gather(*(cloud.outcome("good") for _ in range(50))) == ["right"] * 50
        assert cloud.play.validated_tokens == ["good"]


@pytest.mark.parametrize("scope", [{"domain": DOMAIN}, {}])
async def test_token_without_a_project_is_rejected_and_cached(scope: dict[str, object]):
    async with opened() as cloud:
        cloud.play.tokens["none"] = token(*ADMIN_ROLES, **scope)
        assert [await cloud.outcome("none") for _ in range(3)] == ["NoProjectScope"] * 3
        assert cloud.play.validated_tokens == ["none"]


async def test_request_without_a_token_is_passed_to_the_next_authenticator():
    async with opened() as cloud:
        assert await cloud.check(LoginAttempt(authorization="Basic eDp5")) is None
        agent = Identity(user="n1", project_id="", roles=frozenset({"service"}))

        async def others(attempt: LoginAttempt) -> Identity | None:
            return agent if attempt.authorization else None

        cloud.check.others = others
        assert await cloud.check(LoginAttempt(authorization="Basic eDp5")) is agent
        assert await cloud.check(LoginAttempt(authorization="Basic eDp5", token="bad")) is None


async def test_own_token_is_renewed_after_refusal_and_before_expiry():
    async with opened() as cloud:
        assert await cloud.outcome("good") == "right"
        cloud.play.service_token = "own-token-2"
        assert await cloud.outcome("other") == "right"
        assert cloud.play.login_count == 2
        cloud.later(3600 - 59)
        assert await cloud.outcome("good") == "right"
        assert cloud.play.login_count == 3


async def test_keystone_outage_accepts_cached_tokens_and_fails_others_immediately(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    async with opened() as cloud:
        assert await cloud.outcome("good") == "right"
        await away(cloud)
        assert await cloud.outcome("other") == "IdentityProviderUnavailable"
        cloud.later(61)
        assert [await cloud.outcome(said) for said in ("good", "good", "other")] == [
            "right",
            "right",
            "IdentityProviderUnavailable",
        ]
        cloud.later(298)
        assert await cloud.outcome("good") == "right"
        cloud.later(2)
        assert await cloud.outcome("good") == "IdentityProviderUnavailable"
        await back(cloud)
        assert await cloud.outcome("good") == "IdentityProviderUnavailable"
        cloud.later(UNAVAILABLE_RETRY_SECONDS)
        assert [await cloud.outcome(said) for said in ("good", "other")] == ["right", "right"]
    assert [record.levelname for record in caplog.records if record.name == client.__name__] == ["ERROR", "INFO"]


@pytest.mark.virtual_clock
async def test_hanging_keystone_times_out_once_for_all_callers():
    async with opened() as cloud:
        cloud.play.response_gate = asyncio.Event().wait
        began = asyncio.get_running_loop().time()
        found = await asyncio.gather(*(cloud.outcome(f"t{n}", f"10.0.0.{n}") for n in range(100)))
        assert set(found) == {"IdentityProviderUnavailable"}
        assert asyncio.get_running_loop().time() - began == pytest.approx(http_client.TIMEOUT)
        assert cloud.play.login_count == 1
        cloud.later(UNAVAILABLE_RETRY_SECONDS)
        found = await asyncio.gather(*(cloud.outcome(f"u{n}", f"10.0.0.{n}") for n in range(100)))
        assert set(found) == {"IdentityProviderUnavailable"}
        assert cloud.play.login_count == 2


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_gateway_errors_of_a_proxy_count_as_a_keystone_outage(status: int):
    async with opened() as cloud:
        cloud.play.status = status
        assert await cloud.outcome("good") == "IdentityProviderUnavailable"
        assert await cloud.outcome("other") == "IdentityProviderUnavailable"
        assert len(cloud.play.validated_tokens) == 1


@pytest.mark.parametrize("status", [200, 300, 400, 413, 500])
async def test_unexpected_keystone_status_rejects_only_that_token(status: int):
    async with opened() as cloud:
        cloud.play.status = status
        assert await cloud.outcome("odd") == "IdentityProviderUnavailable"
        cloud.play.status = 0
        assert await cloud.outcome("good") == "right"
        cloud.play.status = status
        found = [await cloud.outcome(f"odd-{n}") for n in range(FAILURES + 5)]
        assert found.count("TooManyLogins") >= 5
        assert len(cloud.play.validated_tokens) <= FAILURES + 2


async def test_wrong_own_password_is_logged_once_and_retried_slowly(caplog: pytest.LogCaptureFixture):
    async with opened() as cloud:
        cloud.play.login_status = 401
        for _ in range(20):
            assert await cloud.outcome("good") == "IdentityProviderUnavailable"
            cloud.later(1)
        assert cloud.play.login_count == 1
        cloud.later(MISUSED_SECONDS)
        assert await cloud.outcome("good") == "IdentityProviderUnavailable"
        assert cloud.play.login_count == 2
        cloud.play.login_status = 201
        cloud.check.keystone.replace(cloud.check.keystone._endpoint, cloud.check.keystone._user)
        assert await cloud.outcome("good") == "right"
    lines = [record.getMessage() for record in caplog.records if record.name == client.__name__]
    assert len(lines) == 1
    assert "rejects user 'fairlead' of project 'service': check keystone.user" in lines[0]
    assert PASSWORD not in caplog.text


async def test_missing_service_role_is_named_in_the_log(caplog: pytest.LogCaptureFixture):
    async with opened() as cloud:
        cloud.play.status = 403
        assert await cloud.outcome("good") == "IdentityProviderUnavailable"
    assert "grant it the role 'service'" in caplog.text


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (401, ServiceUserRejected, "rejects user 'fairlead'"),
        (403, ServiceUserRejected, "rejects user 'fairlead'"),
        (404, ServiceUserRejected, "returned status 404 to a login: keystone.url"),
        (301, ServiceUserRejected, "returned status 301 to a login: keystone.url"),
        (200, ServiceUserRejected, "returned status 200 to a login: keystone.url"),
        (500, NoAnswer, "returned status 500"),
        (429, NoAnswer, "returned status 429"),
    ],
)
async def test_startup_check_distinguishes_misconfiguration_from_outage(
    status: int, error: type[Exception], words: str
):
    async with opened() as cloud:
        cloud.play.login_status = status
        with pytest.raises(error, match=words):
            await cloud.check.keystone.check()


async def test_startup_check_rejects_a_user_without_the_service_role():
    async with opened() as cloud:
        cloud.play.service_roles = ("member", "reader")
        with pytest.raises(ServiceUserRejected, match="grant it the role 'service'"):
            await cloud.check.keystone.check()


async def test_failed_tokens_throttle_one_address_except_for_known_tokens():
    async with opened() as cloud:
        assert await cloud.outcome("good") == "right"
        found = [await cloud.outcome(f"bad-{n}") for n in range(FAILURES + 20)]
        assert found == ["nobody"] * FAILURES + ["TooManyLogins"] * 20
        assert len(cloud.play.validated_tokens) == FAILURES + 1
        assert [await cloud.outcome("good"), await cloud.outcome("other")] == ["right", "TooManyLogins"]
        assert await cloud.outcome("other", "10.0.0.2") == "right"


async def test_known_token_is_revalidated_despite_a_throttled_address():
    """A failing address and a full queue of strangers do not delay callers with an expired cache entry."""

    async with opened() as cloud:
        assert await cloud.outcome("good") == "right"
        for n in range(FAILURES):
            assert await cloud.outcome(f"bad-{n}") == "nobody"
        cloud.later(61)
        assert await cloud.outcome("good") == "right"
        assert cloud.play.validated_tokens.count("good") == 2


async def test_validation_queue_is_bounded_and_skips_closed_connections():
    async with opened() as cloud:
        await cloud.check.keystone.check()
        go_on, gone = asyncio.Event(), asyncio.Event()
        cloud.play.response_gate = go_on.wait
        crowd = [asyncio.create_task(cloud.outcome(f"bad-{n}", gone=gone)) for n in range(500)]
        await eventually(lambda: len(cloud.play.validated_tokens) >= MAX_CONCURRENT_PER_KEY)
        patient = asyncio.create_task(cloud.outcome("good", "10.0.0.2"))
        await eventually(lambda: len(cloud.play.validated_tokens) > MAX_CONCURRENT_PER_KEY)
        gone.set()
        found = [await each for each in crowd]
        assert found.count("TooManyLogins") == 500 - MAX_QUEUED - MAX_CONCURRENT_PER_KEY
        assert found.count("ClientDisconnected") == MAX_QUEUED + MAX_CONCURRENT_PER_KEY
        go_on.set()
        assert await patient == "right"
        assert len(cloud.play.validated_tokens) == MAX_CONCURRENT_PER_KEY + 1
        assert cloud.check._pending == {}


async def test_concurrent_keystone_requests_are_limited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokens, "FAILURES", 1000)

    async with opened() as cloud:
        await cloud.check.keystone.check()
        now, most, full = 0, 0, asyncio.Event()

        async def hold() -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            if now == MAX_CONCURRENT:
                full.set()
            await full.wait()
            await run_ready_tasks()
            now -= 1

        cloud.play.response_gate = hold
        found = await asyncio.gather(*(cloud.outcome(f"bad-{n}", f"10.0.{n % 50}.1") for n in range(200)))
        assert set(found) == {"nobody"}
        assert most == MAX_CONCURRENT


async def test_disconnect_of_one_caller_does_not_cancel_a_shared_validation():
    async with opened() as cloud:
        await cloud.check.keystone.check()
        go_on, gone = asyncio.Event(), asyncio.Event()
        cloud.play.response_gate = go_on.wait
        first = asyncio.create_task(cloud.outcome("good", gone=gone))
        second = asyncio.create_task(cloud.outcome("good", gone=asyncio.Event()))
        await eventually(lambda: cloud.play.validated_tokens)
        gone.set()
        assert await first == "ClientDisconnected"
        go_on.set()
        assert await second == "right"


async def test_tokens_and_passwords_are_not_in_logs_or_reprs(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    async with opened() as cloud:
        cloud.play.tokens["gAAAAAsecret"] = token("reader", **SHOP_SCOPE)
        assert await cloud.outcome("gAAAAAsecret") == "right"
        cloud.play.status = 500
        assert await cloud.outcome("gAAAAAmore") == "IdentityProviderUnavailable"
        cloud.play.status = 403
        assert await cloud.outcome("gAAAAAmore2") == "IdentityProviderUnavailable"
        own = cloud.check.keystone._own
        shown = f"{own!r} {cloud.check.keystone._user!r} {LoginAttempt(token='gAAAAAsecret')!r} {vars(cloud.check)!r}"
        assert "gAAAAA" not in shown
        assert PASSWORD not in shown
        assert cloud.play.service_token not in shown
    assert "gAAAAA" not in caplog.text
    assert PASSWORD not in caplog.text


async def test_token_metrics_count_outcomes():
    async with opened() as cloud:
        assert [await cloud.outcome(each) for each in ("good", "good", "bad", "bad")] == [
            "right",
            "right",
            *["nobody"] * 2,
        ]
        await away(cloud)
        cloud.later(70)
        assert [await cloud.outcome(each) for each in ("good", "other")] == ["right", "IdentityProviderUnavailable"]
        registry = CollectorRegistry()
        registry.register(TokenCollector(cloud.check))
        told = generate_latest(registry).decode()
        for line in (
            'requests_total{outcome="good"} 1.0',
            'requests_total{outcome="refused"} 1.0',
            'requests_total{outcome="no_answer"} 2.0',
            'cached_validations_total{reason="fresh"} 1.0',
            'cached_validations_total{reason="refused"} 1.0',
            'cached_validations_total{reason="outage"} 1.0',
            "cached_tokens 1.0",
            "up 0.0",
        ):
            assert f"fairlead_keystone_{line}" in told

"""Token authentication: accepted callers, number of requests to Keystone, and behaviour during an outage of
Keystone."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from fairlead.api.http.authentication import LoginAttempt, NobodyToAsk, SpeaksForNone, TooManyChecks
from fairlead.api.keystone import client, tokens
from fairlead.api.keystone.cache import REFUSED_SECONDS, Memory
from fairlead.api.keystone.client import AWAY_SECONDS, MISUSED_SECONDS, Misused
from fairlead.api.keystone.tokens import AT_ONCE, FAILURES, OF_ONE, WAITING, KeystoneTokens
from fairlead.api.operator.metrics import TokenCollector
from fairlead.changes.identity import Identity
from fairlead.http import client as http_client
from fairlead.http.client import NoAnswer
from fairlead.runtime.fair_semaphore import Gone
from harness.front_ends.keystone_recorded import (
    ADMIN_ROLES,
    DOMAIN,
    OF_SHOP,
    PASSWORD,
    SHOP,
    Playing,
    keystone_at,
    playing,
    token,
)
from harness.waiting import eventually, turns


@dataclass
class Cloud:
    """A stand-in for Keystone, with the token check under test."""

    play: Playing = field(default_factory=Playing)
    now: float = 1000.0
    port: int = 0
    check: KeystoneTokens = None  # type: ignore[assignment]

    async def outcome(self, said: str, address: str = "10.0.0.1", gone: asyncio.Event | None = None) -> str:
        try:
            found = await self.check(LoginAttempt(token=said, address=address, gone=gone))
        except NobodyToAsk:
            return "NobodyToAsk"
        except (TooManyChecks, SpeaksForNone, Gone) as error:
            return type(error).__name__
        return "nobody" if found is None else "right"

    def later(self, seconds: float) -> None:
        self.now += seconds


@asynccontextmanager
async def opened(fresh: float = 60, outage: float = 300) -> AsyncIterator[Cloud]:
    cloud = Cloud()
    async with playing(cloud.play) as cloud.port:
        memory = Memory(fresh, outage, lambda: cloud.now)
        keystone = keystone_at(cloud.port, lambda: cloud.now)
        cloud.check = KeystoneTokens(keystone, memory, clock=lambda: cloud.now)
        cloud.play.tokens |= {"good": token("member", "reader", **OF_SHOP), "other": token("reader", **OF_SHOP)}
        yield cloud


async def away(cloud: Cloud) -> None:
    """Point the check at a URL on which no server listens."""
    cloud.check.keystone._place = http_client.Place(url="http://127.0.0.1:1/v3")


async def back(cloud: Cloud) -> None:
    cloud.check.keystone._place = http_client.Place(url=f"http://127.0.0.1:{cloud.port}/v3")


async def test_keystone_is_asked_once_for_a_token_and_again_when_that_is_long_ago():
    async with opened() as cloud:
        for seconds in (0, 30, 29, 2):
            cloud.later(seconds)
            found = await cloud.check(LoginAttempt(token="good", project_id="another"))
            assert found is not None
            assert (found.project_id, found.roles) == (SHOP["id"], {"member", "reader"})
        assert (cloud.play.asked, cloud.play.log_ins) == (["good", "good"], 1)


async def test_a_token_that_is_revoked_is_refused_when_it_is_looked_at_again():
    async with opened() as cloud:
        assert await cloud.outcome("good") == "right"
        del cloud.play.tokens["good"]
        cloud.later(59)
        assert await cloud.outcome("good") == "right"
        cloud.later(2)
        assert await cloud.outcome("good") == "nobody"


async def test_a_token_ends_when_it_ends():
    async with opened() as cloud:
        cloud.play.tokens["short"] = token("reader", seconds=20, **OF_SHOP)
        assert await cloud.outcome("short") == "right"
        await away(cloud)
        cloud.later(21)
        assert await cloud.outcome("short") == "NobodyToAsk"


async def test_a_token_that_is_refused_is_known_for_a_while():
    async with opened() as cloud:
        assert [await cloud.outcome("bad") for _ in range(3)] == ["nobody"] * 3
        assert cloud.play.asked == ["bad"]
        cloud.later(REFUSED_SECONDS)
        assert await cloud.outcome("bad") == "nobody"
        assert cloud.play.asked == ["bad", "bad"]


@pytest.mark.parametrize("said", ["", " ", "a b", "a\nX-Auth-Token: b", "ä", "x" * 4097, "x" * 100_000])
async def test_what_can_be_no_token_asks_nobody(said: str):
    async with opened() as cloud:
        assert await cloud.outcome(said) == "nobody"
        assert (cloud.play.asked, cloud.play.log_ins) == ([], 0)


async def test_many_who_bring_one_token_are_one_question():
    async with opened() as cloud:
        assert await asyncio.gather(*(cloud.outcome("good") for _ in range(50))) == ["right"] * 50
        assert cloud.play.asked == ["good"]


@pytest.mark.parametrize("scope", [{"domain": DOMAIN}, {}])
async def test_a_token_for_no_project_is_for_nothing_here_and_is_remembered_too(scope: dict[str, object]):
    async with opened() as cloud:
        cloud.play.tokens["none"] = token(*ADMIN_ROLES, **scope)
        assert [await cloud.outcome("none") for _ in range(3)] == ["SpeaksForNone"] * 3
        assert cloud.play.asked == ["none"]


async def test_who_has_no_token_is_for_others_to_check():
    async with opened() as cloud:
        assert await cloud.check(LoginAttempt(authorization="Basic eDp5")) is None
        agent = Identity(user="n1", project_id="", roles=frozenset({"service"}))

        async def others(attempt: LoginAttempt) -> Identity | None:
            return agent if attempt.authorization else None

        cloud.check.others = others
        assert await cloud.check(LoginAttempt(authorization="Basic eDp5")) is agent
        assert await cloud.check(LoginAttempt(authorization="Basic eDp5", token="bad")) is None


async def test_our_own_token_is_renewed_once_when_keystone_refuses_it():
    async with opened() as cloud:
        assert await cloud.outcome("good") == "right"
        cloud.play.own = "own-token-2"
        assert await cloud.outcome("other") == "right"
        assert cloud.play.log_ins == 2
        cloud.later(3600 - 59)
        assert await cloud.outcome("good") == "right"
        assert cloud.play.log_ins == 3


async def test_while_keystone_is_away_who_was_right_goes_on_and_others_are_told_at_once(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    async with opened() as cloud:
        assert await cloud.outcome("good") == "right"
        await away(cloud)
        assert await cloud.outcome("other") == "NobodyToAsk"
        cloud.later(61)
        assert [await cloud.outcome(said) for said in ("good", "good", "other")] == ["right", "right", "NobodyToAsk"]
        cloud.later(298)
        assert await cloud.outcome("good") == "right"
        cloud.later(2)
        assert await cloud.outcome("good") == "NobodyToAsk"
        await back(cloud)
        assert await cloud.outcome("good") == "NobodyToAsk"
        cloud.later(AWAY_SECONDS)
        assert [await cloud.outcome(said) for said in ("good", "other")] == ["right", "right"]
    assert [record.levelname for record in caplog.records if record.name == client.__name__] == ["ERROR", "INFO"]


@pytest.mark.virtual_clock
async def test_a_keystone_that_hangs_holds_nobody_and_is_tried_by_one():
    async with opened() as cloud:
        cloud.play.hold = asyncio.Event().wait
        began = asyncio.get_running_loop().time()
        found = await asyncio.gather(*(cloud.outcome(f"t{n}", f"10.0.0.{n}") for n in range(100)))
        assert set(found) == {"NobodyToAsk"}
        assert asyncio.get_running_loop().time() - began == pytest.approx(http_client.PATIENCE)
        assert cloud.play.log_ins == 1
        cloud.later(AWAY_SECONDS)
        found = await asyncio.gather(*(cloud.outcome(f"u{n}", f"10.0.0.{n}") for n in range(100)))
        assert set(found) == {"NobodyToAsk"}
        assert cloud.play.log_ins == 2


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_what_a_proxy_says_for_keystone_is_no_answer(status: int):
    async with opened() as cloud:
        cloud.play.status = status
        assert await cloud.outcome("good") == "NobodyToAsk"
        assert await cloud.outcome("other") == "NobodyToAsk"
        assert len(cloud.play.asked) == 1


@pytest.mark.parametrize("status", [200, 300, 400, 413, 500])
async def test_an_answer_that_is_none_lets_nobody_in_and_keeps_nobody_else_out(status: int):
    async with opened() as cloud:
        cloud.play.status = status
        assert await cloud.outcome("odd") == "NobodyToAsk"
        cloud.play.status = 0
        assert await cloud.outcome("good") == "right"
        cloud.play.status = status
        found = [await cloud.outcome(f"odd-{n}") for n in range(FAILURES + 5)]
        assert found.count("TooManyChecks") >= 5
        assert len(cloud.play.asked) <= FAILURES + 2


async def test_a_wrong_password_of_ours_is_nobody_elses_fault_and_tried_slowly(caplog: pytest.LogCaptureFixture):
    async with opened() as cloud:
        cloud.play.log_in_status = 401
        for _ in range(20):
            assert await cloud.outcome("good") == "NobodyToAsk"
            cloud.later(1)
        assert cloud.play.log_ins == 1
        cloud.later(MISUSED_SECONDS)
        assert await cloud.outcome("good") == "NobodyToAsk"
        assert cloud.play.log_ins == 2
        cloud.play.log_in_status = 201
        cloud.check.keystone.replace(cloud.check.keystone._place, cloud.check.keystone._user)
        assert await cloud.outcome("good") == "right"
    lines = [record.getMessage() for record in caplog.records if record.name == client.__name__]
    assert len(lines) == 1
    assert "refuses user 'fairlead' of project 'service': see keystone.user" in lines[0]
    assert PASSWORD not in caplog.text


async def test_a_user_of_ours_without_the_role_is_told_by_the_role(caplog: pytest.LogCaptureFixture):
    async with opened() as cloud:
        cloud.play.status = 403
        assert await cloud.outcome("good") == "NobodyToAsk"
    assert "needs the role 'service'" in caplog.text


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (401, Misused, "refuses user 'fairlead'"),
        (403, Misused, "refuses user 'fairlead'"),
        (404, Misused, "answers 404 to a log-in: keystone.url"),
        (301, Misused, "answers 301 to a log-in: keystone.url"),
        (200, Misused, "answers 200 to a log-in: keystone.url"),
        (500, NoAnswer, "answers 500"),
        (429, NoAnswer, "answers 429"),
    ],
)
async def test_the_start_tells_what_cannot_work_from_what_may_yet(status: int, error: type[Exception], words: str):
    async with opened() as cloud:
        cloud.play.log_in_status = status
        with pytest.raises(error, match=words):
            await cloud.check.keystone.check()


async def test_the_start_tells_a_user_without_the_role():
    async with opened() as cloud:
        cloud.play.own_roles = ("member", "reader")
        with pytest.raises(Misused, match="needs the role 'service'"):
            await cloud.check.keystone.check()


async def test_an_address_with_nonsense_keeps_itself_waiting_and_who_was_right_comes_in():
    async with opened() as cloud:
        assert await cloud.outcome("good") == "right"
        found = [await cloud.outcome(f"bad-{n}") for n in range(FAILURES + 20)]
        assert found == ["nobody"] * FAILURES + ["TooManyChecks"] * 20
        assert len(cloud.play.asked) == FAILURES + 1
        assert [await cloud.outcome("good"), await cloud.outcome("other")] == ["right", "TooManyChecks"]
        assert await cloud.outcome("other", "10.0.0.2") == "right"


async def test_who_was_right_before_is_looked_at_again_beside_strangers():
    """A failing address and a full queue of strangers do not delay callers with an expired cache entry."""

    async with opened() as cloud:
        assert await cloud.outcome("good") == "right"
        for n in range(FAILURES):
            assert await cloud.outcome(f"bad-{n}") == "nobody"
        cloud.later(61)
        assert await cloud.outcome("good") == "right"
        assert cloud.play.asked.count("good") == 2


async def test_lines_have_an_end_and_who_hung_up_is_not_asked_about():
    async with opened() as cloud:
        await cloud.check.keystone.check()
        go_on, gone = asyncio.Event(), asyncio.Event()
        cloud.play.hold = go_on.wait
        crowd = [asyncio.create_task(cloud.outcome(f"bad-{n}", gone=gone)) for n in range(500)]
        await eventually(lambda: len(cloud.play.asked) >= OF_ONE)
        patient = asyncio.create_task(cloud.outcome("good", "10.0.0.2"))
        await eventually(lambda: len(cloud.play.asked) > OF_ONE)
        gone.set()
        found = [await each for each in crowd]
        assert found.count("TooManyChecks") == 500 - WAITING - OF_ONE
        assert found.count("Gone") == WAITING + OF_ONE
        go_on.set()
        assert await patient == "right"
        assert len(cloud.play.asked) == OF_ONE + 1
        assert cloud.check._questions == {}


async def test_keystone_has_so_many_questions_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokens, "FAILURES", 1000)

    async with opened() as cloud:
        await cloud.check.keystone.check()
        now, most, full = 0, 0, asyncio.Event()

        async def hold() -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            if now == AT_ONCE:
                full.set()
            await full.wait()
            await turns()
            now -= 1

        cloud.play.hold = hold
        found = await asyncio.gather(*(cloud.outcome(f"bad-{n}", f"10.0.{n % 50}.1") for n in range(200)))
        assert set(found) == {"nobody"}
        assert most == AT_ONCE


async def test_one_of_two_who_bring_a_token_hangs_up_and_the_other_is_let_in():
    async with opened() as cloud:
        await cloud.check.keystone.check()
        go_on, gone = asyncio.Event(), asyncio.Event()
        cloud.play.hold = go_on.wait
        first = asyncio.create_task(cloud.outcome("good", gone=gone))
        second = asyncio.create_task(cloud.outcome("good", gone=asyncio.Event()))
        await eventually(lambda: cloud.play.asked)
        gone.set()
        assert await first == "Gone"
        go_on.set()
        assert await second == "right"


async def test_no_secret_is_in_a_log_or_in_what_a_person_may_print(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    async with opened() as cloud:
        cloud.play.tokens["gAAAAAsecret"] = token("reader", **OF_SHOP)
        assert await cloud.outcome("gAAAAAsecret") == "right"
        cloud.play.status = 500
        assert await cloud.outcome("gAAAAAmore") == "NobodyToAsk"
        cloud.play.status = 403
        assert await cloud.outcome("gAAAAAmore2") == "NobodyToAsk"
        own = cloud.check.keystone._own
        shown = f"{own!r} {cloud.check.keystone._user!r} {LoginAttempt(token='gAAAAAsecret')!r} {vars(cloud.check)!r}"
        assert "gAAAAA" not in shown
        assert PASSWORD not in shown
        assert cloud.play.own not in shown
    assert "gAAAAA" not in caplog.text
    assert PASSWORD not in caplog.text


async def test_what_came_of_tokens_is_counted_and_nothing_of_whose_they_are():
    async with opened() as cloud:
        assert [await cloud.outcome(each) for each in ("good", "good", "bad", "bad")] == [
            "right",
            "right",
            *["nobody"] * 2,
        ]
        await away(cloud)
        cloud.later(70)
        assert [await cloud.outcome(each) for each in ("good", "other")] == ["right", "NobodyToAsk"]
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

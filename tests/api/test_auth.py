"""HTTP basic authentication: valid credentials are accepted, and failures reveal nothing."""

import asyncio
import base64
from pathlib import Path

import bcrypt
import pytest

from fairlead.api.http import authentication, rate_limit
from fairlead.api.http.authentication import (
    FAILURES,
    MAX_QUEUED,
    BadPasswordFile,
    Failures,
    HttpBasic,
    LoginAttempt,
    TooManyLogins,
    authenticate_as_admin,
    common_name,
    read_password_file,
)
from fairlead.runtime.fair_semaphore import ClientDisconnected
from harness.front_ends.lxd_keys import make_certificate

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()


def basic(credentials: bytes) -> str:
    return "Basic " + base64.b64encode(credentials).decode()


@pytest.fixture
def users(tmp_path: Path):
    path = tmp_path / "users"
    path.write_text(
        f"# people\n\nann:{HASH}:shop:member,reader\nroot:{HASH}:ops:admin\n"
        f"bob:{HASH}:shop:load-balancer_observer,service\n"
    )
    return read_password_file(path)


async def test_valid_password_yields_user_project_and_roles(users):
    check = HttpBasic(users)
    for _ in range(2):
        ann = await check(LoginAttempt(authorization=basic(b"ann:secret"), project_id="other"))
        assert ann is not None
        assert (ann.user, ann.project_id, ann.roles) == ("ann", "shop", frozenset({"member", "reader"}))
        assert not ann.is_admin
    bob = await check(LoginAttempt(authorization=basic(b"bob:secret")))
    assert bob is not None
    assert bob.roles == {"load-balancer_observer", "service"}
    assert bob.chassis == frozenset()


def test_password_file_line_assigns_chassis_to_an_agent(tmp_path: Path):
    path = tmp_path / "users"
    path.write_text(f"n1:{HASH}:ops:service:node-1\nrack:{HASH}:ops:service:node-2,node-3\nold:{HASH}:ops:service\n")
    found = {name: user.identity.chassis for name, user in read_password_file(path).items()}
    assert found == {"n1": {"node-1"}, "rack": {"node-2", "node-3"}, "old": frozenset()}


@pytest.mark.parametrize("end", ["service:", "service:a,", "member:a"])
def test_invalid_chassis_column_of_the_password_file_is_rejected(tmp_path: Path, end: str):
    path = tmp_path / "users"
    path.write_text(f"n1:{HASH}:ops:{end}\n")
    with pytest.raises(BadPasswordFile, match="users:1: the fifth column lists chassis and requires role service"):
        read_password_file(path)


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer x", "Basic", "Basic ???", basic(b"ann"), basic(b"ann:wrong"), basic(b"eve:secret"),
     basic(b"ann:"), basic(b"\xff:x"), "Basic \x80", basic(b"ann:secret\0"), basic(b"ann:" + b"x" * 500)],
)  # fmt: skip
async def test_missing_or_wrong_credentials_yield_no_identity(users, header):
    assert (await HttpBasic(users)(LoginAttempt(authorization=header))) is None


@pytest.mark.parametrize(
    "line",
    ["ann", "ann:x:p:admin", f"ann:{HASH}:p", f"ann:{HASH}:p:king", f"ann:{HASH}:p:"],
    ids=["no hash", "no bcrypt", "no roles", "no such role", "empty role"],
)
def test_password_file_error_has_the_line_number_and_no_hash(tmp_path: Path, line: str):
    path = tmp_path / "users"
    path.write_text(f"\n{line}\n")
    with pytest.raises(BadPasswordFile, match="users:2: expected user:bcrypt hash") as caught:
        read_password_file(path)
    assert HASH not in str(caught.value)


async def test_disabled_authentication_makes_callers_project_administrators():
    who = await authenticate_as_admin(LoginAttempt(project_id="p1"))
    assert who is not None
    assert (who.project_id, who.is_admin) == ("p1", True)
    for header, project in ((None, "default"), ("\0\x85", "default"), ("p\0" * 40, "p" * 36)):
        who = await authenticate_as_admin(LoginAttempt(project_id=header))
        assert who is not None
        assert who.project_id == project


def attempt(name: str, password: str, address: str = "10.0.0.1", gone: asyncio.Event | None = None) -> LoginAttempt:
    return LoginAttempt(authorization=basic(f"{name}:{password}".encode()), address=address, disconnected=gone)


async def outcome(check: HttpBasic, who: LoginAttempt) -> str:
    try:
        return "right" if await check(who) else "wrong"
    except (TooManyLogins, ClientDisconnected) as error:
        return type(error).__name__


async def test_failed_logins_throttle_one_address_except_for_known_credentials(users):
    check = HttpBasic(users)
    assert await outcome(check, attempt("ann", "secret")) == "right"
    found = [await outcome(check, attempt("ann", f"wrong {number}")) for number in range(FAILURES + 5)]
    assert found == ["wrong"] * FAILURES + ["TooManyLogins"] * 5
    assert await outcome(check, attempt("ann", "secret")) == "right"
    assert await outcome(check, attempt("root", "secret")) == "TooManyLogins"
    assert await outcome(check, attempt("root", "secret", "10.0.0.2")) == "right"
    assert await outcome(check, attempt("root", "secret")) == "right"


async def test_password_check_queue_is_bounded_and_skips_closed_connections(users, monkeypatch: pytest.MonkeyPatch):
    """2,000 requests with a wrong password from one address, all cancelled: another address is checked immediately."""

    check, gone, checked = HttpBasic(users), asyncio.Event(), list[bytes]()
    right = bcrypt.checkpw
    monkeypatch.setattr(authentication.bcrypt, "checkpw", lambda *found: checked.append(found[0]) or right(*found))
    crowd = [asyncio.create_task(outcome(check, attempt("ann", f"{n}", gone=gone))) for n in range(2000)]
    await asyncio.sleep(0)
    patient = asyncio.create_task(outcome(check, attempt("ann", "secret", "10.0.0.2")))
    gone.set()
    found = [await each for each in crowd]
    assert found.count("ClientDisconnected") == MAX_QUEUED
    assert found.count("TooManyLogins") == 2000 - MAX_QUEUED - authentication.MAX_CONCURRENT_CHECKS
    assert await patient == "right"
    assert len(checked) == authentication.MAX_CONCURRENT_CHECKS + 1


def test_failed_login_table_is_bounded_and_expires(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rate_limit, "MAX_TRACKED_ADDRESSES", 3)
    now = [0.0]
    failures = Failures(lambda: now[0])
    for number in range(5):
        failures.add(f"10.0.0.{number}")
    assert len(failures) == 3
    for _ in range(FAILURES):
        failures.add("a")
    assert failures.wait("a") == authentication.FAILURE_RECOVERY_SECONDS
    now[0] = authentication.FAILURE_RECOVERY_SECONDS
    assert failures.wait("a") == 0


async def test_reloaded_users_take_effect_immediately(users, tmp_path: Path):
    check = HttpBasic(users)
    assert await outcome(check, attempt("ann", "secret")) == "right"
    await check.replace({name: user for name, user in users.items() if name != "ann"})
    assert await outcome(check, attempt("ann", "secret")) == "wrong"
    assert await outcome(check, attempt("root", "secret")) == "right"


async def test_certificate_users_cannot_log_in_by_password(tmp_path: Path):
    der, _ = make_certificate()
    name = common_name(der)
    path = tmp_path / "users"
    path.write_text(f"{name}:certificate:shop:member\nann:{HASH}:shop:member\n")
    check = HttpBasic(read_password_file(path))
    found = await check(LoginAttempt(certificate=der))
    assert found is not None
    assert found.user == name
    for password in (b"", b"certificate", b"nobody"):
        said = basic(name.encode() + b":" + password)
        assert (await check(LoginAttempt(authorization=said, certificate=der))) is None
    path.write_text(f"{name}:{HASH}:shop:member\n")
    with_password = HttpBasic(read_password_file(path))
    assert (await with_password(LoginAttempt(certificate=der))) is None, "a certificate is not their way in"
    assert (await check(LoginAttempt(certificate=b"none"))) is None

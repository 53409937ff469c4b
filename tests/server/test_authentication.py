"""Authentication settings: errors before the start, and SIGHUP, which re-reads secrets."""

import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import bcrypt
import pytest

from fairlead.api.http.access_control import BASIC
from fairlead.api.http.authentication import (
    BadPasswordFile,
    HttpBasic,
    IdentityProviderUnavailable,
    LoginAttempt,
    authenticate_as_admin,
)
from fairlead.api.keystone.tokens import KeystoneTokens
from fairlead.config.errors import BadConfiguration
from fairlead.config.options import Configuration, KeystoneOptions, ServerOptions
from fairlead.server.authentication import challenge, check_authentication, make_authentication, reload_credentials
from harness.front_ends.keystone_recorded import PASSWORD, SHOP_SCOPE, ReplayedKeystone, replayed_keystone, token
from harness.tls_files import certificate


def configured(folder: Path, port: int = 5000, *, password: str = PASSWORD, **more: str) -> Configuration:
    path = folder / "password"
    path.write_text(password)
    keystone = KeystoneOptions(url=f"http://127.0.0.1:{port}", password_file=str(path))
    return Configuration(
        server=ServerOptions(authentication="keystone"),
        keystone=replace(keystone, **more),  # type: ignore[arg-type]
    )


def users(folder: Path) -> str:
    path = folder / "users"
    path.write_text(f"n1:{bcrypt.hashpw(b'p', bcrypt.gensalt(4)).decode()}:ops:service:node-1\n")
    return str(path)


@pytest.fixture
async def keystone() -> AsyncIterator[tuple[ReplayedKeystone, int]]:
    """Yield a Keystone that knows one token, and its port."""
    play = ReplayedKeystone()
    play.tokens["good"] = token("reader", **SHOP_SCOPE)
    async with replayed_keystone(play) as port:
        yield play, port


def test_authenticator_is_selected_by_the_configuration(tmp_path: Path):
    assert make_authentication(Configuration()) is authenticate_as_admin
    basic = ServerOptions(authentication="http_basic", password_file=users(tmp_path))
    assert isinstance(make_authentication(Configuration(server=basic)), HttpBasic)
    asked = configured(tmp_path)
    alone = make_authentication(asked)
    assert isinstance(alone, KeystoneTokens)
    assert alone.others is None
    both = make_authentication(replace(asked, server=replace(asked.server, password_file=users(tmp_path))))
    assert isinstance(both, KeystoneTokens)
    assert isinstance(both.others, HttpBasic)


def test_challenge_is_basic_or_names_the_public_keystone_url(tmp_path: Path):
    assert challenge(Configuration()) == BASIC
    assert challenge(configured(tmp_path)) == 'Keystone uri="http://127.0.0.1:5000/v3"'
    public = configured(tmp_path, public_url="https://id.example.org/v3/")
    assert challenge(public) == 'Keystone uri="https://id.example.org/v3"'


@pytest.mark.parametrize(("content", "words"), [(b"", "is empty"), (b"\n", "is empty"), (b"\xff", "not UTF-8")])
def test_unusable_keystone_password_file_is_an_error(tmp_path: Path, content: bytes, words: str):
    asked = configured(tmp_path)
    (tmp_path / "password").write_bytes(content)
    with pytest.raises(BadConfiguration, match=f"keystone.password_file: .*{words}"):
        make_authentication(asked)


def test_ca_file_without_a_certificate_is_an_error(tmp_path: Path):
    nothing = tmp_path / "ca"
    nothing.write_text("no certificate")
    asked = configured(tmp_path, url="https://127.0.0.1:5000", ca=str(nothing))
    with pytest.raises(BadConfiguration, match=r"keystone\.ca: .*the file contains no certificate"):
        make_authentication(asked)


async def test_server_does_not_start_when_keystone_rejects_its_user(
    keystone: tuple[ReplayedKeystone, int], tmp_path: Path
):
    _, port = keystone
    wrong = configured(tmp_path, port, password="wrong")
    with pytest.raises(BadConfiguration, match="rejects user 'fairlead' of project 'service'") as told:
        await check_authentication(make_authentication(wrong), wrong)
    assert "wrong" not in str(told.value)
    right = configured(tmp_path, port, password=f"{PASSWORD}\n")
    await check_authentication(make_authentication(right), right)


async def test_server_starts_while_keystone_is_unreachable(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    away = configured(tmp_path, 1)
    await check_authentication(make_authentication(away), away)
    assert "requests with tokens get 503 until Keystone responds" in caplog.text


async def test_server_does_not_start_when_keystone_is_untrusted(tmp_path: Path):
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate(tmp_path, "theirs"))
    ours = certificate(tmp_path, "ours")

    async with replayed_keystone(ReplayedKeystone(), serving) as port:
        asked = configured(tmp_path, url=f"https://127.0.0.1:{port}", ca=str(ours))
        with pytest.raises(BadConfiguration, match="certificate verification failed"):
            await check_authentication(make_authentication(asked), asked)


async def test_reload_rereads_the_password_and_revalidates_cached_tokens(
    keystone: tuple[ReplayedKeystone, int], tmp_path: Path
):
    play, port = keystone
    asked = configured(tmp_path, port, password="old")
    asked = replace(asked, server=replace(asked.server, password_file=users(tmp_path)))
    authenticate = make_authentication(asked)
    with pytest.raises(IdentityProviderUnavailable):
        await authenticate(LoginAttempt(token="good"))
    configured(tmp_path, port, password="")
    with pytest.raises(BadConfiguration):
        reload_credentials(authenticate, asked)
    configured(tmp_path, port)
    await reload_credentials(authenticate, asked)()
    for _ in range(2):
        assert await authenticate(LoginAttempt(token="good")) is not None
    await reload_credentials(authenticate, asked)()
    assert await authenticate(LoginAttempt(token="good")) is not None
    assert play.validated_tokens == ["good", "good"]
    (tmp_path / "users").write_text("nonsense\n")
    with pytest.raises(BadPasswordFile):
        reload_credentials(authenticate, asked)


async def test_reload_without_authentication_does_nothing():
    await reload_credentials(authenticate_as_admin, Configuration())()  # type: ignore[arg-type]

"""What is in a key-store, as a proxy reads it; and what nobody could serve, without a word of it."""

from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from fairlead.keystores.interface import Unreadable
from fairlead.keystores.material import checked
from fairlead.model.secrets import Role
from harness.certificates import Authority, key_pem, new_key

CERTIFICATE, AUTHORITY, REVOCATIONS = Role.CERTIFICATE, Role.AUTHORITY, Role.REVOCATIONS
CA = Authority()
WEB = CA.issue("web.example")


def _plain(key: object, algorithm: object = NoEncryption()) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, algorithm).decode()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "content",
    [
        WEB.whole,
        key_pem(WEB.key) + WEB.pem,
        f"a comment\n{WEB.pem}\n\n{key_pem(WEB.key)}\nmore".replace("\n", "\r\n"),
        WEB.bundle,
    ],
    ids=["pem", "key first", "with words", "pkcs12"],
)
def test_a_certificate_is_one_pem_whatever_it_came_as(content: str | bytes):
    assert WEB.whole == checked(CERTIFICATE, content.encode() if isinstance(content, str) else content)


def test_the_certificate_of_the_key_comes_first():
    assert WEB.pem + CA.pem + key_pem(WEB.key) == checked(CERTIFICATE, (CA.pem + WEB.whole).encode())


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: WEB.pem + key_pem(new_key()), "does not fit"),
        (lambda: WEB.pem, "no private key"),
        (lambda: WEB.whole + key_pem(new_key()), "several private keys"),
        (lambda: key_pem(WEB.key), "no certificate"),
        (lambda: WEB.whole.replace("MI", "MJ"), "cannot be read"),
        (lambda: WEB.pem + _plain(WEB.key, BestAvailableEncryption(b"secret")), "pass phrase"),
        (lambda: WEB.pem + _plain(rsa.generate_private_key(65537, 1024)), "1024 bits"),
        (lambda: WEB.pem + _plain(dsa.generate_private_key(1024)), "nobody serves"),
        (lambda: "", "neither PEM nor"),
        (lambda: "nothing of this sort", "neither PEM nor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_nobody_could_serve_is_refused_without_a_word_of_it(made: Callable[[], str], why: str):
    with pytest.raises(Unreadable, match=why) as refused:
        checked(CERTIFICATE, made().encode())
    assert "BEGIN" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_authorities_and_lists_of_revoked_ones():
    revoked = CA.revoke(WEB)
    assert CA.pem + WEB.pem == checked(AUTHORITY, (CA.pem + "words\n" + WEB.whole).encode())
    assert revoked * 2 == checked(REVOCATIONS, (revoked + "words\n" + revoked).encode())
    for role, content in ((AUTHORITY, revoked), (REVOCATIONS, CA.pem), (AUTHORITY, ""), (REVOCATIONS, WEB.whole)):
        with pytest.raises(Unreadable):
            checked(role, content.encode())

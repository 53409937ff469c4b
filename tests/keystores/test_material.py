"""Key material in the form that a proxy reads; errors about unusable material do not contain it."""

import base64
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509 import load_pem_x509_certificate

from fairlead.keystores import material
from fairlead.keystores.interface import MAX_CONTENT_BYTES, Unreadable
from fairlead.keystores.material import normalize
from fairlead.model.queries.secrets import Role
from harness.certificates import Authority, key_pem, new_key
from harness.step_counter import step

CERTIFICATE, AUTHORITY, REVOCATIONS = Role.CERTIFICATE, Role.AUTHORITY, Role.REVOCATIONS
CA = Authority()
WEB = CA.issue("web.example")


def _plain(key: object, algorithm: object = NoEncryption()) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, algorithm).decode()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "content",
    [
        WEB.certificate_and_key,
        key_pem(WEB.key) + WEB.pem,
        f"a comment\n{WEB.pem}\n\n{key_pem(WEB.key)}\nmore".replace("\n", "\r\n"),
    ],
    ids=["pem", "key first", "with words"],
)
def test_certificate_and_key_in_any_order_become_one_pem(content: str):
    assert WEB.certificate_and_key == normalize(CERTIFICATE, content.encode())


def test_the_certificate_of_the_key_comes_first():
    assert WEB.pem + CA.pem + key_pem(WEB.key) == normalize(CERTIFICATE, (CA.pem + WEB.certificate_and_key).encode())


def _pem_of(der: bytes) -> str:
    return f"-----BEGIN CERTIFICATE-----\n{base64.encodebytes(der).decode()}-----END CERTIFICATE-----\n"


def _der_of(pem: str) -> bytes:
    return load_pem_x509_certificate(pem.encode()).public_bytes(Encoding.DER)


def _of_version_5(pem: str) -> str:
    return _pem_of(_der_of(pem).replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05"))


def _signed_with_sha1() -> str:
    """Make a SHA-1 signature, which the library cannot: sha256WithRSAEncryption becomes sha1WithRSAEncryption (RFC
    8017, A.2.4)."""
    rsa_signs = bytes.fromhex("2a864886f70d0101")
    web = Authority(key=rsa.generate_private_key(65537, 2048)).issue("web.example")
    return _pem_of(_der_of(web.pem).replace(rsa_signs + b"\x0b", rsa_signs + b"\x05")) + key_pem(web.key)


def _with_wrong_exponent() -> str:
    """Make a key of valid size with valid factors, but a wrong exponent."""
    of = rsa.generate_private_key(65537, 2048).private_numbers()
    wrong = rsa.RSAPrivateNumbers(of.p, of.q, of.d, of.dmp1 ^ 2, of.dmq1, of.iqmp, of.public_numbers)
    return _plain(wrong.private_key(unsafe_skip_rsa_key_validation=True))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: WEB.pem + key_pem(new_key()), "does not match"),
        (lambda: WEB.pem, "no private key"),
        (lambda: WEB.certificate_and_key + key_pem(new_key()), "several private keys"),
        (lambda: key_pem(WEB.key), "no valid certificate"),
        (lambda: WEB.certificate_and_key.replace("MI", "MJ"), "the key is invalid"),
        (lambda: WEB.pem + _plain(WEB.key, BestAvailableEncryption(b"secret")), "requires a passphrase"),
        (lambda: WEB.pem + _plain(rsa.generate_private_key(65537, 1024)), "1024 bits"),
        (lambda: WEB.pem + _plain(dsa.generate_private_key(1024)), "not supported"),
        (lambda: WEB.pem + _with_wrong_exponent(), "the key is invalid"),
        (lambda: key_pem(WEB.key) + _of_version_5(WEB.pem), "no valid certificate in PEM"),
        (lambda: CA.issue("web.example", key=ec.generate_private_key(ec.SECP192R1())).certificate_and_key, "192 bits"),
        (
            lambda: WEB.certificate_and_key + CA.issue("small", key=rsa.generate_private_key(65537, 1024)).pem,
            "1024 bits",
        ),
        (_signed_with_sha1, "signed with sha1"),
        (lambda: "", "no private key"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unusable_certificate_is_rejected_without_leaking_material(made: Callable[[], str], why: str):
    with pytest.raises(Unreadable, match=why) as refused:
        normalize(CERTIFICATE, made().encode())
    assert "BEGIN" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_authorities_and_revocation_lists_are_extracted():
    revoked = CA.revoke(WEB)
    assert CA.pem + WEB.pem == normalize(AUTHORITY, (CA.pem + "words\n" + WEB.certificate_and_key).encode())
    assert revoked * 2 == normalize(REVOCATIONS, (revoked + "words\n" + revoked).encode())
    for role, content in (
        (AUTHORITY, revoked),
        (REVOCATIONS, CA.pem),
        (AUTHORITY, ""),
        (REVOCATIONS, WEB.certificate_and_key),
    ):
        with pytest.raises(Unreadable):
            normalize(role, content.encode())


@pytest.mark.parametrize("mark", ["PRIVATE KEY", "X509 CRL", "CERTIFICATE"])
@pytest.mark.parametrize("role", Role)
def test_unterminated_pem_is_parsed_in_linear_time(role: Role, mark: str):
    """The number of steps is linear in the number of marks; the regular expression's cost per mark is bounded."""
    line = f"-----BEGIN {mark}-----".encode()
    marks = MAX_CONTENT_BYTES // len(line)
    before = step()
    with pytest.raises(Unreadable):
        normalize(role, line * marks)
    assert step() - before < 4 * marks


def test_large_rsa_key_is_loaded_once_without_a_primality_test(monkeypatch: pytest.MonkeyPatch):
    """The check runs in the event loop, and a primality test would take seconds."""
    whole = CA.issue("large.example", key=rsa.generate_private_key(65537, 4096)).certificate_and_key
    read = list[object]()

    def load(pem: bytes, phrase: None, *, unsafe_skip_rsa_key_validation: bool) -> object:
        read.append(unsafe_skip_rsa_key_validation)
        return load_pem_private_key(pem, phrase, unsafe_skip_rsa_key_validation=unsafe_skip_rsa_key_validation)

    monkeypatch.setattr(material, "load_pem_private_key", load)
    assert whole == normalize(CERTIFICATE, whole.encode())
    assert read == [True]

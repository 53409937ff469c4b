"""What a key-store gives, looked at before anybody serves it, and written again as the one PEM that a proxy reads.

What is not asked for is left out: comments, keys beside a list of authorities. Of errors, none has anything of what was
read.
"""

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    pkcs12,
)

from fairlead.keystores.interface import Unreadable
from fairlead.model.secrets import Role

LEAST_RSA = 2048
"""Bits: OpenSSL of today serves no smaller key."""
_KEY = re.compile(rb"-----BEGIN ((?:[A-Z]+ )*PRIVATE KEY)-----.+?-----END \1-----", re.DOTALL)
_REVOCATIONS = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)
_Key: TypeAlias = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey


def checked(role: Role, content: bytes) -> str:
    """PEM. Raises Unreadable."""
    return _READ[role](content)


def _certificate(content: bytes) -> str:
    """First the certificate of the key, then the others, then the key."""
    private, certificates = _read_pem(content) if b"-----BEGIN " in content else _read_pkcs12(content)
    key = _served(private)
    public = _public(key)
    own = next((each for each in certificates if _public(each) == public), None)
    if own is None:
        raise Unreadable("the key does not fit to the certificate")
    chain = [own, *(each for each in certificates if each is not own)]
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return (b"".join(each.public_bytes(Encoding.PEM) for each in chain) + text).decode()


def _read_pem(content: bytes) -> tuple[object, list[x509.Certificate]]:
    keys = [found[0] for found in _KEY.finditer(content)]
    if len(keys) != 1:
        raise Unreadable("it has no private key" if not keys else "it has several private keys")
    try:
        key = load_pem_private_key(keys[0], None)
    except TypeError:
        raise Unreadable("the key needs a pass phrase") from None
    except (ValueError, UnsupportedAlgorithm):
        raise Unreadable("the key cannot be read") from None
    return key, _read_certificates(content)


def _read_pkcs12(content: bytes) -> tuple[object, list[x509.Certificate]]:
    for phrase in (None, b""):
        try:
            key, own, others = pkcs12.load_key_and_certificates(content, phrase)
        except (ValueError, UnsupportedAlgorithm):
            continue
        if key is None or own is None:
            raise Unreadable("the bundle of PKCS#12 has no key, or no certificate")
        return key, [own, *others]
    raise Unreadable("it is neither PEM nor a bundle of PKCS#12 without a pass phrase")


def _served(key: object) -> _Key:
    if not isinstance(key, _Key):
        raise Unreadable("the key is of a sort that nobody serves; RSA, EC and Ed25519 are")
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size < LEAST_RSA:
        raise Unreadable(f"the key has {key.key_size} bits, and {LEAST_RSA} at least are served")
    return key


def _public(of: _Key | x509.Certificate) -> bytes:
    try:
        return of.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm):
        return b""


def _read_certificates(content: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        raise Unreadable("it has no certificate in PEM that can be read") from None


def _authority(content: bytes) -> str:
    return b"".join(each.public_bytes(Encoding.PEM) for each in _read_certificates(content)).decode()


def _revocations(content: bytes) -> str:
    try:
        lists = [x509.load_pem_x509_crl(found[0]) for found in _REVOCATIONS.finditer(content)]
    except ValueError:
        lists = []
    if not lists:
        raise Unreadable("it has no list of revoked certificates in PEM that can be read")
    return b"".join(each.public_bytes(Encoding.PEM) for each in lists).decode()


_READ: Mapping[Role, Callable[[bytes], str]] = {
    Role.CERTIFICATE: _certificate,
    Role.AUTHORITY: _authority,
    Role.REVOCATIONS: _revocations,
}

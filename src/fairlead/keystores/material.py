"""Validation of key store contents, and conversion to the single PEM text that a proxy reads.

Unneeded parts are left out: comments, private keys beside CA certificates. Errors contain nothing of the contents.

Validation runs in the event loop, so it takes milliseconds: the factors of an RSA key are not tested for primality (for
8192 bits that takes seconds in the interpreter), but for consistency, and the key must produce a valid signature.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TypeAlias

from cryptography import x509
from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import PublicKeyAlgorithmOID

from fairlead.keystores.interface import Content, Unreadable
from fairlead.model.queries.secrets import Role

MIN_RSA_BITS, MAX_RSA_BITS = 2048, 8192
"""Bits. OpenSSL rejects smaller keys, and signing with a larger one takes too much CPU time."""
MIN_EC_BITS = 224
"""Bits; OpenSSL's minimum."""
MIN_DSA_BITS = 2048
"""Bits; OpenSSL's minimum."""
UNSUPPORTED_CURVES = frozenset({"secp256k1"})
"""Curves that no client offers by default, so that no handshake succeeds."""
MAX_SIGNATURES = 8
"""Maximum CRLs verified together. Each takes up to 4 ms (RSA of 16384 bits)."""
WEAK_HASHES = frozenset({"md5", "sha1"})
"""Signature hashes that are rejected in a server's chain (SSL_CTX_set_security_level(3), level 1), except on
self-signed certificates."""
NO_END = datetime.max.replace(tzinfo=UTC)
"""End of a CRL without nextUpdate: OpenSSL, and so HAProxy, accepts it without limit."""
MAX_NAME_LENGTH = 200
"""Maximum characters of the names of authorities in an error."""
_PEM = b"-----BEGIN "
_MARK = re.compile(rb"-----(BEGIN|END) ([A-Z0-9 ]{1,40})-----")
_WRONG = (ValueError, UnsupportedAlgorithm, x509.InvalidVersion)
_Key: TypeAlias = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey


def needs_decryption(role: Role, content: Content) -> bool:
    """Whether the content needs decryption or PKCS#12 parsing before validation, which may take long."""
    return role is Role.CERTIFICATE and (content.phrase is not None or _PEM not in content.material)


def normalize(role: Role, content: bytes) -> str:
    """Validate PEM content and return the normalized PEM. Raises Unreadable."""
    return _READ[role](content)


def weakness_of(role: Role, pem: str, now: datetime) -> str:
    """Return why no new load balancer may use normalized material; empty if it may.

    Either HAProxy does not load it, or no client can use it. With an expired CRL, and no later one of the same
    authority, HAProxy rejects every certificate of that authority. Material that is already in use is served as long
    as HAProxy loads it.
    """
    if role is Role.REVOCATIONS:
        return _expiry(pem, now)
    if role is not Role.CERTIFICATE:
        return ""
    own, *_ = chain = _read_certificates(pem.encode())
    key = own.public_key()
    if own.public_key_algorithm_oid == PublicKeyAlgorithmOID.RSASSA_PSS:
        return "the certificate has an RSA-PSS key, which HAProxy does not load; use an RSA key (rsaEncryption)"
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in UNSUPPORTED_CURVES:
        return f"the key is of curve {key.curve.name}, which no client offers by default; use secp256r1"
    return next(filter(None, map(_weakness_in_chain, chain)), "")


def _expiry(pem: str, now: datetime) -> str:
    ends = dict[x509.Name, datetime]()
    for each in _read_lists(pem):
        ends[each.issuer] = max(_end(each), ends.get(each.issuer, _end(each)))
    end = min(ends.values(), default=now)
    if end >= now:
        return ""
    return f"a certificate revocation list expired on {end:%Y-%m-%d}, so every client is rejected"


def _end(revocations: x509.CertificateRevocationList) -> datetime:
    return revocations.next_update_utc or NO_END


def _is_valid(revocations: x509.CertificateRevocationList, now: datetime) -> bool:
    return revocations.last_update_utc <= now <= _end(revocations)


def valid_lists(pem: str, now: datetime) -> tuple[bool, ...]:
    """Return which of the normalized CRLs are valid now. `lockout_of` depends on the clock by these alone."""
    return tuple(_is_valid(each, now) for each in _read_lists(pem))


def lockout_of(authorities: str, lists: str, now: datetime) -> str:
    """Return why a proxy rejects every certificate, given normalized authorities and CRLs; empty if it may accept
    one.

    OpenSSL needs a CRL for each certificate of a chain, by issuer (X509_V_FLAG_CRL_CHECK_ALL, set by HAProxy's
    `crl-file`). A chain ends at a self-signed certificate, so at least one of these needs a CRL.
    """
    certificates = _read_certificates(authorities.encode())
    roots = [each for each in certificates if each.issuer == each.subject]
    by_issuer = dict[x509.Name, list[x509.CertificateRevocationList]]()
    for each in _read_lists(lists):
        if _is_valid(each, now):
            by_issuer.setdefault(each.issuer, []).append(each)
    pairs = [(root, each) for root in roots if _may_revoke(root) for each in by_issuer.get(root.subject, ())]
    if len(pairs) > MAX_SIGNATURES or any(_is_signed(each, root) for root, each in pairs):
        return ""
    if not roots:
        return (
            "no CA certificate is self-signed, so every certificate is rejected; add the root and its revocation list"
        )
    names = _shortened("; ".join(each.subject.rfc4514_string() for each in roots))
    return f"{names} has no valid certificate revocation list, so every certificate is rejected; add that list"


def _may_revoke(certificate: x509.Certificate) -> bool:
    """Whether the certificate's key usage includes CRL signing; true without a key usage (RFC 5280, 4.2.1.3)."""
    try:
        return certificate.extensions.get_extension_for_class(x509.KeyUsage).value.crl_sign
    except (x509.ExtensionNotFound, *_WRONG):
        return True


def _is_signed(revocations: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    """Whether the CRL's signature is valid; true if it cannot be verified here, because OpenSSL may be able to."""
    try:
        return revocations.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (*_WRONG, TypeError):
        return True


def _shortened(text: str) -> str:
    printable = "".join(filter(str.isprintable, text))
    return printable if len(printable) <= MAX_NAME_LENGTH else f"{printable[:MAX_NAME_LENGTH]}..."


def _weakness_in_chain(certificate: x509.Certificate) -> str:
    key, signed = certificate.public_key(), certificate.signature_hash_algorithm
    if isinstance(key, dsa.DSAPublicKey) and key.key_size < MIN_DSA_BITS:
        return f"a certificate has a DSA key of {key.key_size} bits; the minimum is {MIN_DSA_BITS}"
    if signed is not None and signed.name in WEAK_HASHES and not _signs_itself(certificate):
        return f"a certificate is signed with {signed.name} by another key; use sha256"
    return ""


def _signs_itself(certificate: x509.Certificate) -> bool:
    """Whether the certificate is self-signed, without `verify_directly_issued_by`, which rejects these hashes."""
    key, signed = certificate.public_key(), certificate.signature_hash_algorithm
    if certificate.issuer != certificate.subject or signed is None:
        return False
    try:
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(certificate.signature, certificate.tbs_certificate_bytes, padding.PKCS1v15(), signed)
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(certificate.signature, certificate.tbs_certificate_bytes, ec.ECDSA(signed))
        else:
            return False
    except (*_WRONG, InvalidSignature):
        return False
    return True


def _certificate(content: bytes) -> str:
    """Normalize a certificate with its key: first the key's certificate, then the chain, then the key."""
    private, certificates = _read_pem(content)
    key = _served(private)
    public = _public(key)
    own = next((each for each in certificates if _public(each) == public), None)
    if own is None:
        raise Unreadable("the key does not match a certificate")
    chain = [own, *(each for each in certificates if each is not own)]
    for each in chain:
        _check_strength(each)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return (b"".join(each.public_bytes(Encoding.PEM) for each in chain) + text).decode()


def _read_pem(content: bytes) -> tuple[object, list[x509.Certificate]]:
    keys = [text for label, text in _blocks(content) if label.endswith(b"PRIVATE KEY")]
    if len(keys) != 1:
        raise Unreadable("it has no private key" if not keys else "it has several private keys")
    try:
        key = load_pem_private_key(keys[0], None, unsafe_skip_rsa_key_validation=True)
    except TypeError:
        raise Unreadable("the key requires a passphrase") from None
    except _WRONG:
        raise Unreadable("the key is invalid") from None
    return key, _read_certificates(content)


def _blocks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the PEM blocks with their labels, in one pass."""
    begun: re.Match[bytes] | None = None
    for mark in _MARK.finditer(content):
        if mark[1] == b"BEGIN":
            begun = mark
        elif begun is not None and begun[2] == mark[2]:
            yield mark[2], content[begun.start() : mark.end()]
            begun = None


def _served(key: object) -> _Key:
    if not isinstance(key, _Key):
        raise Unreadable("the type of the key is not supported; supported types: RSA, EC, Ed25519")
    if isinstance(key, rsa.RSAPrivateKey):
        _check_rsa(key)
    return key


def _check_rsa(key: rsa.RSAPrivateKey) -> None:
    """Check size and consistency of an RSA key. Raises Unreadable."""
    if not MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
        raise Unreadable(f"the key has {key.key_size} bits; the range is {MIN_RSA_BITS}-{MAX_RSA_BITS}")
    try:
        if _belongs_together(key.private_numbers()):
            signed = key.sign(b"", padding.PKCS1v15(), SHA256())
            return key.public_key().verify(signed, b"", padding.PKCS1v15(), SHA256())
    except (ValueError, InternalError, InvalidSignature):
        pass
    raise Unreadable("the key is invalid")


def _belongs_together(of: rsa.RSAPrivateNumbers) -> bool:
    """Whether the parts of an RSA key are consistent (RFC 8017, 3.2)."""
    p, q, e, n = of.p, of.q, of.public_numbers.e, of.public_numbers.n
    if p < 3 or q < 3 or not p & q & e & 1 or p * q != n or not 3 <= e < n or not 0 < of.d < n:
        return False
    inverse = of.d * e % math.lcm(p - 1, q - 1) == 1 and of.iqmp * q % p == 1
    return inverse and of.dmp1 == of.d % (p - 1) and of.dmq1 == of.d % (q - 1)


def _check_strength(certificate: x509.Certificate) -> None:
    """Reject certificates that a proxy would fail to load. Raises Unreadable."""
    try:
        key, signed = certificate.public_key(), certificate.signature_hash_algorithm
    except _WRONG:
        raise Unreadable("the key or signature type of a certificate is not supported") from None
    if signed is not None and signed.name in WEAK_HASHES and certificate.issuer != certificate.subject:
        raise Unreadable(f"a certificate is signed with {signed.name}, which no client trusts; use sha256")
    for sort, least in ((rsa.RSAPublicKey, MIN_RSA_BITS), (ec.EllipticCurvePublicKey, MIN_EC_BITS)):
        if isinstance(key, sort) and key.key_size < least:
            raise Unreadable(f"a certificate's key has {key.key_size} bits; the minimum is {least}")


def _public(of: _Key | x509.Certificate) -> bytes:
    try:
        return of.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except _WRONG:
        return b""


def _read_certificates(content: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(content)
    except _WRONG:
        raise Unreadable("it has no valid certificate in PEM") from None


def _authority(content: bytes) -> str:
    return b"".join(each.public_bytes(Encoding.PEM) for each in _read_certificates(content)).decode()


def _read_lists(pem: str) -> list[x509.CertificateRevocationList]:
    """Parse normalized CRLs."""
    return [x509.load_pem_x509_crl(text) for _, text in _blocks(pem.encode())]


def _revocations(content: bytes) -> str:
    try:
        lists = [x509.load_pem_x509_crl(text) for label, text in _blocks(content) if label == b"X509 CRL"]
    except _WRONG:
        lists = []
    if not lists:
        raise Unreadable("it has no valid certificate revocation list in PEM")
    return b"".join(each.public_bytes(Encoding.PEM) for each in lists).decode()


_READ: Mapping[Role, Callable[[bytes], str]] = {
    Role.CERTIFICATE: _certificate,
    Role.AUTHORITY: _authority,
    Role.REVOCATIONS: _revocations,
}

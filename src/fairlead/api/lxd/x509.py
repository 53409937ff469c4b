"""Parser of client certificates, which may be self-signed."""

import base64
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from fairlead.api.http.front_end import ApiError
from fairlead.model.documents.trust import Certificate

MAX_CERTIFICATE_LENGTH = 16_384
"""Maximum characters of a certificate in a body: base64 of DER, or PEM."""
MAX_DER_BYTES = MAX_CERTIFICATE_LENGTH * 3 // 4
"""Maximum bytes of a client's TLS certificate, equal to the maximum in a body."""
MAX_NAME_LENGTH = 255
MIN_RSA_BITS = 2048
"""Minimum size of an RSA key, in bits."""
UNREADABLE = (ValueError, UnsupportedAlgorithm, x509.InvalidVersion)
"""Exceptions of cryptography and binascii for invalid certificates."""


def decode_certificate(text: str) -> bytes:
    """Return the DER form of a certificate in a body. Raises ApiError 400."""
    try:
        if "-----BEGIN" in text:
            return x509.load_pem_x509_certificate(text.encode()).public_bytes(Encoding.DER)
        return base64.b64decode(text, validate=True)
    except UNREADABLE:
        raise _invalid("it is neither PEM nor base64") from None


def read_certificate(der: bytes, name: str, address: str = "") -> Certificate:
    """Return the certificate to store. Its name is the given one, its common name, or the client's address. Raises
    ApiError 400."""
    if len(der) > MAX_DER_BYTES:
        raise _invalid(f"more than {MAX_DER_BYTES} bytes")
    try:
        found = x509.load_der_x509_certificate(der)
        key = found.public_key()
        subject = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        not_before, not_after = found.not_valid_before_utc, found.not_valid_after_utc
    except UNREADABLE as error:  # some fields are parsed on access only
        raise _invalid(str(error)[:100]) from None
    if isinstance(key, RSAPublicKey) and key.key_size < MIN_RSA_BITS:
        raise ApiError(400, f"RSA key is too weak (minimum of {MIN_RSA_BITS}bit)")
    common = str(subject[0].value) if subject else ""
    return Certificate(
        name=(name or "".join(filter(str.isprintable, common)) or _plain(address))[:MAX_NAME_LENGTH],
        fingerprint=found.fingerprint(SHA256()).hex(),
        pem=found.public_bytes(Encoding.PEM).decode(),
        not_before=not_before,
        not_after=not_after,
    )


def _plain(address: str) -> str:
    try:
        return str(ip_address(address.partition("%")[0]))
    except ValueError:
        return "client"


def _invalid(why: str) -> ApiError:
    return ApiError(400, f"Invalid certificate material: {why}")

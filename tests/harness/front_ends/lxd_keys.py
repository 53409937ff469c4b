"""Certificates of clients, as LXD's and Incus's clients make them: P-384, self-signed."""

import base64
from datetime import UTC, datetime, timedelta
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from harness.api import NOON


@cache
def make_certificate(
    name: str = "client", begins: datetime = NOON - timedelta(days=1), days: int = 3650, weak: bool = False
) -> tuple[bytes, bytes]:
    """(DER, private key as PEM)"""
    key = rsa.generate_private_key(65537, 1024) if weak else ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins.astimezone(UTC))
        .not_valid_after((begins + timedelta(days=days)).astimezone(UTC))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made.public_bytes(Encoding.DER), private


def base64_of(der: bytes) -> str:
    """Certificate encoded as `incus config trust add-certificate` sends it."""
    return base64.b64encode(der).decode()

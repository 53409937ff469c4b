"""Identity of this node: private key, certificate and the deployment's authority.

The three are in one file (mode 0600). The key is generated here and never leaves the node. A one-time token yields the
first certificate; it is renewed, with a new key, before it expires.
"""

import asyncio
import hashlib
import logging
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fairlead.agent_protocol.enrolment import REMEDY, EnrolmentToken
from fairlead.http.server_client import ServerError
from fairlead.node.connection import Connection, Remote
from fairlead.node.log_once import LogOnce
from fairlead.runtime.atomic_file import write_atomic

LOG = logging.getLogger(__name__)
REQUEST_TIMEOUT = 20.0
RENEWAL_CHECK_INTERVAL = 600.0
"""Seconds between two checks for renewal."""
RENEWAL_FRACTION = 2 / 3
"""Fraction of the validity period after which the certificate is renewed."""
BEGIN = b"-----BEGIN CERTIFICATE-----"


class NoIdentity(Exception):
    """Missing or invalid identity; the message has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    path: Path
    chassis: str
    not_before: datetime
    not_after: datetime
    authority: str
    """Certificate of the authority in PEM."""

    def tls(self) -> ssl.SSLContext:
        """Return a TLS context that trusts only servers of this deployment, at any address, because its authority signs
        no others."""
        context = _make_tls_context(self.authority)
        context.load_cert_chain(self.path)
        return context

    def expiry(self, now: datetime) -> str:
        """Return the remedy for an expired certificate; empty if it is valid."""
        if now < self.not_after:
            return ""
        since, remedy = f"{self.not_after:%Y-%m-%d %H:%M} UTC", REMEDY.format(self.chassis)
        return f"{self.path}: the certificate of chassis {self.chassis} expired on {since}: {remedy}"

    def is_due(self, now: datetime) -> bool:
        return now > self.not_before + (self.not_after - self.not_before) * RENEWAL_FRACTION


def read_identity(path: Path) -> NodeIdentity | None:
    """Read the identity; None if the file does not exist. Raises NoIdentity."""
    try:
        octets = path.read_bytes()
        own, authority = (BEGIN + each for each in octets.split(BEGIN)[1:])
        certificate = x509.load_pem_x509_certificate(own)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise NoIdentity(f"cannot read {path}: {error}") from None
    (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return NodeIdentity(
        path=path,
        chassis=str(name.value),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        authority=authority.decode(),
    )


async def enrol(token: EnrolmentToken, path: Path) -> NodeIdentity:
    """Exchange a token for a certificate. Raises NoIdentity, OSError."""
    complaints = []
    for url in token.servers:
        try:
            authority = await _fetch_authority(url, token.authority)
            key, request = _request(token.chassis)
            remote, asked = (
                Remote(url=url, tls=_make_tls_context(authority)),
                {"token": token.secret, "request": request},
            )
            answer = await _request_once(remote, "POST", "/agent/enrol", asked)
            _write(path, key, answer["certificate"], authority)
        except ServerError as error:
            complaints.append(str(error))
            if error.status is not None:
                break
        else:
            found = read_identity(path)
            assert found is not None  # noqa: S101 - it was written
            return found
    raise NoIdentity("; ".join(complaints) or "the enrolment token contains no server URL")


async def renew(identity: NodeIdentity, url: str) -> NodeIdentity:
    """Renew the certificate at a server. Raises ServerError, OSError."""
    key, request = _request(identity.chassis)
    path = f"/agent/chassis/{quote(identity.chassis, safe='')}/certificate"
    answer = await _request_once(Remote(url=url, tls=identity.tls()), "POST", path, {"request": request})
    _write(identity.path, key, answer["certificate"], identity.authority)
    found = read_identity(identity.path)
    assert found is not None  # noqa: S101 - it was written
    return found


async def keep_renewed(identity: NodeIdentity, urls: tuple[str, ...], take: Callable[[NodeIdentity], None]) -> None:
    """Renew the certificate until cancelled. `take` is called with each new identity, including one that an operator
    installs after expiry."""
    complaints = LogOnce("renewing the certificate")
    while True:
        if identity.expiry(datetime.now(UTC)) and (found := _read_newer(identity)) is not None:
            identity = found
            complaints.report_recovery()
            take(identity)
            LOG.info("the certificate of chassis %s is valid until %s", identity.chassis, identity.not_after)
        if identity.is_due(datetime.now(UTC)):
            for url in urls:
                try:
                    identity = await renew(identity, url)
                except (ServerError, OSError) as error:
                    expired = identity.expiry(datetime.now(UTC))
                    complaints.report(NoIdentity(expired) if expired else error, RENEWAL_CHECK_INTERVAL)
                else:
                    complaints.report_recovery()
                    take(identity)
                    LOG.info("the certificate of chassis %s is valid until %s", identity.chassis, identity.not_after)
                    break
        await asyncio.sleep(random.uniform(RENEWAL_CHECK_INTERVAL / 2, RENEWAL_CHECK_INTERVAL))  # noqa: S311 - nobody gains by guessing it


def _read_newer(identity: NodeIdentity) -> NodeIdentity | None:
    """Return the identity in the file if it is valid for longer."""
    try:
        found = read_identity(identity.path)
    except NoIdentity:
        return None
    return found if found is not None and found.not_after > identity.not_after else None


async def _fetch_authority(url: str, fingerprint: str) -> str:
    """Fetch the authority's certificate over an unverified connection, and check it against the token's fingerprint.
    Raises ServerError."""
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    answer = await _request_once(Remote(url=url, tls=anyone), "GET", "/agent/authority")
    try:
        found = x509.load_pem_x509_certificate(answer["certificate"].encode())
        octets = found.public_bytes(Encoding.DER)
    except (ValueError, KeyError, TypeError, AttributeError, UnsupportedAlgorithm):
        octets = b""
    if hashlib.sha256(octets).hexdigest() != fingerprint:
        raise ServerError(f"CA of {url} does not match the enrolment token")
    return found.public_bytes(Encoding.PEM).decode()


async def _request_once(remote: Remote, method: str, path: str, body: object = None) -> Any:
    """Send one request on a new connection. Raises ServerError."""
    connection = Connection(remote, REQUEST_TIMEOUT)
    try:
        return await connection.request(method, path, body)
    finally:
        connection.close()


def _make_tls_context(authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the authority signs servers of this deployment only, at any address
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority)
    return context


def _request(chassis: str) -> tuple[bytes, str]:
    """Generate a key and a certificate request (PKCS #10), both in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, chassis)])
    asked = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, asked.public_bytes(Encoding.PEM).decode()


def _write(path: Path, key: bytes, certificate: str, authority: str) -> None:
    write_atomic(path, key + certificate.encode() + authority.encode())

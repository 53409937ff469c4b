"""Certificate authority of the deployment's nodes, and the TLS context for agents.

Its key is a file on each server, beside the store or at a configured path, and never in the store, so that a copy of
the store cannot be used to enroll nodes. It signs for two purposes that TLS distinguishes, `serverAuth` and
`clientAuth`, so no node can impersonate a server.
"""

import contextlib
import logging
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fairlead.agent_protocol.enrolment import BadRequest, Signed

LOG = logging.getLogger(__name__)
OWN_FILE = "nodes-ca.pem"
"""File beside the store with the CA's certificate and key."""
CA_LIFETIME = timedelta(days=3650)
SERVER_LIFETIME = timedelta(days=365)
"""Lifetime of a server's certificate; a new one is created at every start and SIGHUP."""
NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of X509_VERIFY_PARAM_set_flags(3), which Python's ssl does not define. It also disables the
time check of the CA, which is acceptable because no certificate outlives the CA."""
BACKDATED = timedelta(hours=1)
"""Tolerance for nodes with slow clocks."""


class NodeAuthority:
    def __init__(self, path: Path, lifetime: timedelta, *, make: bool = True) -> None:
        """`lifetime` is that of node certificates; `make` creates a missing CA. Raises OSError for an invalid file."""
        self._lifetime = lifetime
        with contextlib.suppress(FileExistsError):
            if make and not path.exists():
                _make(path)
        octets = path.read_bytes()
        try:
            self._certificate = x509.load_pem_x509_certificate(octets)
            key = load_pem_private_key(octets, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise OSError(f"{path}: the file must contain a certificate and its private key in PEM") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != self._certificate.public_key():
            raise OSError(f"{path}: the private key must be the certificate's and of an elliptic curve")
        self._key = key

    @property
    def pem(self) -> str:
        return self._certificate.public_bytes(Encoding.PEM).decode()

    @property
    def fingerprint(self) -> str:
        """SHA-256 fingerprint, which enrolment tokens pin."""
        return self._certificate.fingerprint(hashes.SHA256()).hex()

    def sign(self, request: str, chassis: str, now: datetime) -> Signed:
        """Sign the key of a certificate request (PKCS #10), with the chassis as the name whatever the request contains.

        Raises BadRequest.
        """
        try:
            asked = x509.load_pem_x509_csr(request.encode())
            key = asked.public_key()
            good = asked.is_signature_valid
        except (ValueError, UnsupportedAlgorithm) as error:
            raise BadRequest(f"invalid certificate request: {str(error)[:100]}") from None
        if not good:
            raise BadRequest("the certificate request is not signed by its own key")
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise BadRequest("the key of the certificate request must be of curve P-256")
        made = self._sign(chassis, key, now, self._lifetime, ExtendedKeyUsageOID.CLIENT_AUTH)
        return Signed(
            pem=made.public_bytes(Encoding.PEM).decode(),
            fingerprint=made.fingerprint(hashes.SHA256()).hex(),
            not_after=made.not_valid_after_utc,
        )

    def server_context(self) -> ssl.SSLContext:
        """Return the TLS context for agents. It requests a client certificate and accepts only ones of this CA.

        Agents without a certificate may only enroll. Expiry is checked at each request
        (`api/agents/authentication.py`), because a failed handshake does not identify the expired certificate.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        shown = self._sign(
            "fairlead", key.public_key(), datetime.now(UTC), SERVER_LIFETIME, ExtendedKeyUsageOID.SERVER_AUTH
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_OPTIONAL
        context.num_tickets = 0
        context.verify_flags |= NO_CHECK_TIME
        context.load_verify_locations(cadata=self.pem)
        with NamedTemporaryFile() as file:  # mode 0600; ssl loads keys only from files
            file.write(shown.public_bytes(Encoding.PEM) + _private(key))
            file.flush()
            context.load_cert_chain(file.name)
        return context

    def _sign(
        self,
        name: str,
        key: ec.EllipticCurvePublicKey,
        now: datetime,
        lifetime: timedelta,
        purpose: x509.ObjectIdentifier,
    ) -> x509.Certificate:
        until = min(now + lifetime, self._certificate.not_valid_after_utc)
        return (
            _builder(name, self._certificate.subject, key, now, until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _builder(
    name: str, issuer: x509.Name | None, key: ec.EllipticCurvePublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(until)
    )


def _make(path: Path) -> None:
    """Create a CA. Raises FileExistsError if another server was first; its CA is used then."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    made = (
        _builder("Fairlead nodes", None, key.public_key(), now, now + CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    with NamedTemporaryFile(dir=path.parent) as file:  # mode 0600
        file.write(made.public_bytes(Encoding.PEM) + _private(key))
        file.flush()
        os.fsync(file.fileno())
        os.link(file.name, path)
    LOG.info("created the certificate authority of nodes: %s", path)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

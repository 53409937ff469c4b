"""The deployment's own certificate authority for nodes, and what servers show to agents.

Its key is a file on each server, beside the store or where the operator has put it, and never in the store: whoever
reads a copy of the store can make no node. It signs for two purposes that TLS keeps
apart: servers (`serverAuth`), and nodes (`clientAuth`), so that no node can pass for a server.
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

from fairlead.api.enrolment import BadRequest, Signed

LOG = logging.getLogger(__name__)
OWN_FILE = "nodes-ca.pem"
"""Beside the store: the authority's certificate and its key."""
CA_LIFETIME = timedelta(days=3650)
SERVER_LIFETIME = timedelta(days=365)
"""Of what a server shows: it makes a new one whenever it starts, and at SIGHUP."""
NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of X509_VERIFY_PARAM_set_flags(3), which Python's ssl does not name. The time of the
authority is not checked either: no certificate that it signs is valid for longer than itself."""
BACKDATED = timedelta(hours=1)
"""Clocks of nodes may be late."""


class Authority:
    def __init__(self, path: Path, lifetime: timedelta, *, make: bool = True) -> None:
        """`lifetime` is that of a node's certificate; `make` one if there is none. Raises OSError for a file that is
        none."""
        self._lifetime = lifetime
        with contextlib.suppress(FileExistsError):
            if make and not path.exists():
                _make(path)
        octets = path.read_bytes()
        try:
            self._certificate = x509.load_pem_x509_certificate(octets)
            key = load_pem_private_key(octets, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise OSError(f"{path} is not a certificate and its key") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != self._certificate.public_key():
            raise OSError(f"{path} is not a certificate and its key (of an elliptic curve)")
        self._key = key

    @property
    def pem(self) -> str:
        return self._certificate.public_bytes(Encoding.PEM).decode()

    @property
    def fingerprint(self) -> str:
        """What tokens pin."""
        return self._certificate.fingerprint(hashes.SHA256()).hex()

    def sign(self, request: str, chassis: str, now: datetime) -> Signed:
        """A certificate for the key of a request (PKCS #10), whose name is this chassis whatever the request says.

        Raises BadRequest.
        """
        try:
            asked = x509.load_pem_x509_csr(request.encode())
            key = asked.public_key()
            good = asked.is_signature_valid
        except (ValueError, UnsupportedAlgorithm) as error:
            raise BadRequest(f"this is no certificate request: {str(error)[:100]}") from None
        if not good:
            raise BadRequest("the request is not signed by the key that it is for")
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise BadRequest("the key should be one of the curve P-256")
        made = self._sign(chassis, key, now, self._lifetime, ExtendedKeyUsageOID.CLIENT_AUTH)
        return Signed(
            pem=made.public_bytes(Encoding.PEM).decode(),
            fingerprint=made.fingerprint(hashes.SHA256()).hex(),
            not_after=made.not_valid_after_utc,
        )

    def server_context(self) -> ssl.SSLContext:
        """What this server shows to agents; it asks each for a certificate, and takes those of this authority alone.
        Who has none is a stranger, who may enrol. Whether a certificate is valid now is checked at each request
        (`api/node_identity.py`): a handshake could not say whose has expired."""
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
        with NamedTemporaryFile() as file:  # which only its owner may read; ssl takes no other form
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
    """Raises FileExistsError when another server was quicker: that one is everybody's."""
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
    with NamedTemporaryFile(dir=path.parent) as file:  # which only its owner may read
        file.write(made.public_bytes(Encoding.PEM) + _private(key))
        file.flush()
        os.fsync(file.fileno())
        os.link(file.name, path)
    LOG.info("made the certificate authority of nodes: %s", path)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

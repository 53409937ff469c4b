"""Certificate authorities, certificates and revocation lists, made in memory with EC keys and valid for one day."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
from cryptography.x509.oid import NameOID


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


Key: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def _begun(name: str, issuer: x509.Name, key: Key) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(_name(name)).issuer_name(issuer).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number())
    return made.not_valid_before(now - timedelta(minutes=5)).not_valid_after(now + timedelta(days=1))


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@dataclass(frozen=True)
class Issued:
    certificate: x509.Certificate
    key: Key

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    @property
    def whole(self) -> str:
        """Certificate and private key as PEM."""
        return self.pem + key_pem(self.key)

    @property
    def bundle(self) -> bytes:
        """PKCS #12 archive without a pass phrase."""
        return pkcs12.serialize_key_and_certificates(b"it", self.key, self.certificate, None, NoEncryption())


@dataclass
class Authority:
    name: str = "authority"
    key: Key = field(default_factory=new_key)
    issuer: "Authority | None" = None
    """It signs itself without one."""
    usage: x509.KeyUsage | None = None
    certificate: x509.Certificate = field(init=False)

    def __post_init__(self) -> None:
        issuer = self.issuer.certificate.subject if self.issuer else _name(self.name)
        made = _begun(self.name, issuer, self.key)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        if self.usage is not None:
            made = made.add_extension(self.usage, critical=True)
        self.certificate = made.sign(self.issuer.key if self.issuer else self.key, hashes.SHA256())

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def issue(self, name: str, *addresses: str, key: Key | None = None, subject: str = "") -> Issued:
        """Issue a certificate for a DNS name and addresses.

        The subject's common name is `subject`, by default `name`.
        """
        key = key or new_key()
        names = [x509.DNSName(name), *(x509.IPAddress(ip_address(each)) for each in addresses)]
        made = _begun(subject or name, self.certificate.subject, key)
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return Issued(made.sign(self.key, hashes.SHA256()), key)

    def revoke(self, *issued: Issued, begins: float = -5, ends: float = 1440) -> str:
        """The list of those that are good no more. `begins` and `ends` are minutes from now."""
        now = datetime.now(UTC)
        made = x509.CertificateRevocationListBuilder().issuer_name(self.certificate.subject)
        made = made.last_update(now + timedelta(minutes=begins)).next_update(now + timedelta(minutes=ends))
        for each in issued:
            one = x509.RevokedCertificateBuilder().serial_number(each.certificate.serial_number)
            made = made.add_revoked_certificate(one.revocation_date(now).build())
        return made.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()

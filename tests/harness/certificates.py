"""Certificate authorities, certificates and revocation lists, made in memory with EC keys and valid for one day."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
from cryptography.x509.oid import NameOID


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


Key: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def _certificate_builder(name: str, issuer: x509.Name, key: Key) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(_name(name)).issuer_name(issuer).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number())
    return made.not_valid_before(now - timedelta(minutes=5)).not_valid_after(now + timedelta(days=1))


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@dataclass(frozen=True)
class SignedCertificate:
    certificate: x509.Certificate
    key: Key

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    @property
    def certificate_and_key(self) -> str:
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
        made = _certificate_builder(self.name, issuer, self.key)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        if self.usage is not None:
            made = made.add_extension(self.usage, critical=True)
        self.certificate = made.sign(self.issuer.key if self.issuer else self.key, hashes.SHA256())

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def issue(self, name: str, *addresses: str, key: Key | None = None, subject: str = "") -> SignedCertificate:
        """Issue a certificate for a DNS name and addresses.

        The subject's common name is `subject`, by default `name`.
        """
        key = key or new_key()
        names = [x509.DNSName(name), *(x509.IPAddress(ip_address(each)) for each in addresses)]
        made = _certificate_builder(subject or name, self.certificate.subject, key)
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return SignedCertificate(made.sign(self.key, hashes.SHA256()), key)

    def revoke(self, *issued: SignedCertificate, begins: float = -5, ends: float | None = 1440) -> str:
        """The list of those that are good no more. `begins` and `ends` are minutes from now; None leaves out
        nextUpdate."""
        now = datetime.now(UTC)
        made = x509.CertificateRevocationListBuilder().issuer_name(self.certificate.subject)
        last = begins + 1 if ends is None else ends
        made = made.last_update(now + timedelta(minutes=begins)).next_update(now + timedelta(minutes=last))
        for each in issued:
            one = x509.RevokedCertificateBuilder().serial_number(each.certificate.serial_number)
            made = made.add_revoked_certificate(one.revocation_date(now).build())
        signed = made.sign(self.key, hashes.SHA256())
        if ends is None:
            signed = _without_next_update(signed, self.key)
        return signed.public_bytes(Encoding.PEM).decode()


def _without_next_update(revocations: x509.CertificateRevocationList, key: Key) -> x509.CertificateRevocationList:
    """Remove the optional nextUpdate, which the library's builder requires (RFC 5280, 5.1), and sign the list again."""
    version, algorithm, issuer, this_update, _, *rest = _elements(revocations.tbs_certlist_bytes)
    content = _encoded(0x30, b"".join((version, algorithm, issuer, this_update, *rest)))
    if isinstance(key, rsa.RSAPrivateKey):
        signature = key.sign(content, padding.PKCS1v15(), hashes.SHA256())
    else:
        signature = key.sign(content, ec.ECDSA(hashes.SHA256()))
    return x509.load_der_x509_crl(_encoded(0x30, content + algorithm + _encoded(0x03, b"\0" + signature)))


def _encoded(tag: int, content: bytes) -> bytes:
    """Encode an element in DER (X.690, 8.1)."""
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    digits = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(digits))) + digits + content


def _elements(sequence: bytes) -> list[bytes]:
    """Split a DER sequence into its encoded elements."""
    found, place = list[bytes](), _content_of(sequence, 0)[0]
    while place < len(sequence):
        _, end = _content_of(sequence, place)
        found.append(sequence[place:end])
        place = end
    return found


def _content_of(encoded: bytes, place: int) -> tuple[int, int]:
    """Return where the content of the element at `place` begins and ends."""
    size, begin = encoded[place + 1], place + 2
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(encoded[place + 2 : begin])
    return begin, begin + size

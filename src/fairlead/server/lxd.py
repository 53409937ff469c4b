"""Front end for LXD clients: the server's certificate, created if missing, and its addresses."""

import contextlib
import grp
import hashlib
import logging
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from tempfile import NamedTemporaryFile

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fairlead.api.http.front_end import ClientEndpoint
from fairlead.config.load import split_listen
from fairlead.config.options import Configuration, LxdOptions
from fairlead.server.client_certificates import make_context

LOG = logging.getLogger(__name__)
OWN_FILE = "lxd-server.pem"
"""File beside the store with the created certificate and its key."""
LIFETIME = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """Certificate as last read."""

    context: ssl.SSLContext
    reachable: ClientEndpoint


class LxdServer:
    """Certificate and addresses for LXD clients; SIGHUP re-reads them."""

    def __init__(self, configuration: Configuration) -> None:
        """Raises OSError for files that are not a certificate and its key."""
        self._configuration = configuration
        self.options: LxdOptions = configuration.lxd
        self._now = _read(configuration) if self.options.listen else None

    def read_again(self) -> None:
        """Re-read the certificate. Raises OSError, and then keeps the previous one."""
        if self.options.listen:
            self._now = _read(self._configuration)

    @property
    def context(self) -> ssl.SSLContext | None:
        return self._now.context if self._now else None

    def reachable(self) -> ClientEndpoint | None:
        """Return addresses and certificate for tokens; None without a TLS listener."""
        return self._now.reachable if self._now else None


def _read(configuration: Configuration) -> ServerCertificate:
    options = configuration.lxd
    certificate, key = Path(options.certificate), Path(options.key)
    if not options.certificate:
        certificate = key = store_folder(configuration) / OWN_FILE
        with contextlib.suppress(FileExistsError):
            _make(certificate, _names(options))
    context = make_context(certificate, key)
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
    except ValueError:
        raise OSError(f"{certificate}: the file contains no certificate in PEM") from None
    pem = found.public_bytes(Encoding.PEM).decode()
    reachable = ClientEndpoint(
        addresses=_addresses(options),
        fingerprint=hashlib.sha256(found.public_bytes(Encoding.DER)).hexdigest(),
        certificate=pem,
        token_seconds=options.token_lifetime,
    )
    return ServerCertificate(context, reachable)


def store_folder(configuration: Configuration) -> Path:
    """Return the store's directory, so that all servers with the same store present the same certificate."""
    scheme, _, path = configuration.store.where.partition("://")
    return Path(path if scheme == "sqlite" else configuration.store.path).parent


def _addresses(options: LxdOptions) -> tuple[str, ...]:
    """Return the addresses that clients connect to; the hostname if it resolves to no external address."""
    if options.advertise_addresses:
        return options.advertise_addresses
    host, port = split_listen(options.listen, "lxd.listen")
    if host not in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return (options.listen,)
    name = socket.gethostname()
    with contextlib.suppress(OSError):
        found = {str(each[4][0]) for each in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)}
        outer = sorted(each for each in found if not ip_address(each.partition("%")[0]).is_loopback)
        if outer:
            return tuple(f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in outer)
    return (f"{name}:{port}",)


def _names(options: LxdOptions) -> Sequence[str]:
    """Names for the certificate: all names that clients may use for this server."""
    hosts = (split_listen(each, "lxd.listen")[0] for each in (*_addresses(options), options.listen))
    return sorted({*hosts, socket.gethostname(), "localhost", "127.0.0.1", "::1"} - {"0.0.0.0", "::"})  # noqa: S104


def _make(path: Path, names: Sequence[str]) -> None:
    """Create a self-signed certificate and its key. Raises FileExistsError if another server was first."""
    if path.exists():
        raise FileExistsError(path)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fairlead@{socket.gethostname()}"[:64])])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with NamedTemporaryFile(dir=path.parent) as file:  # mode 0600
        file.write(made.public_bytes(Encoding.PEM) + private)
        file.flush()
        os.fsync(file.fileno())
        os.link(file.name, path)
    LOG.info("created the certificate for LXD clients: %s", path)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name.partition("%")[0]))
    except ValueError:
        return x509.DNSName(name)


def give_to_group(path: Path, options: LxdOptions) -> None:
    """Give the socket to the configured group. Raises OSError."""
    if options.socket_group:
        try:
            group = grp.getgrnam(options.socket_group).gr_gid
        except KeyError:
            raise OSError(f"lxd.socket_group: group '{options.socket_group}' does not exist") from None
        os.chown(path, -1, group)
    path.chmod(options.mode)

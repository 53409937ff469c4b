"""How a machine comes to know a server, and the server it: a token that an administrator makes, spent once.

The token names the server's addresses and the fingerprint of its certificate, so nobody has to be believed on the way.
What is left of it are files as `incus remote add` leaves them.
"""

import base64
import binascii
import hashlib
import json
import os
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fairlead.network_cli.actions import Call
from fairlead.network_cli.connection import Connection
from fairlead.network_cli.failure import Failure
from fairlead.network_cli.remotes import Folder, folder_of, https_of

LIFE = timedelta(days=3650)
PATIENCE = 10.0
"""Seconds for each address of a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    addresses: tuple[str, ...]
    """HOST:PORT, as the server has them."""
    fingerprint: str
    """SHA-256 of its certificate, hexadecimal."""


def read_token(text: str) -> Token:
    """Raises Failure."""
    try:
        said = json.loads(base64.b64decode(text, validate=True))
        return Token(addresses=tuple(map(str, said["addresses"])), fingerprint=str(said["fingerprint"]).lower())
    except (binascii.Error, ValueError, KeyError, TypeError):
        raise Failure("this is no token") from None


def add_remote(call: Call) -> None:
    """Raises Failure; then the remote is not there."""
    name, text = call.words
    if not name or any(sign in name for sign in ":/ "):
        raise Failure(f'Invalid remote name "{name}"')
    folder = folder_of(os.environ)
    written = folder.read()
    remotes = {**(written.get("remotes") or {})}
    if name in remotes:
        raise Failure(f"Remote {name} exists as <{remotes[name].get('addr', '')}>")
    token = read_token(text)
    address, pem = _meet(token)
    make_certificate(folder)
    _write(folder.pin(name), pem)
    remotes[name] = {"addr": f"https://{address}", "auth_type": "tls", "protocol": "incus", "public": False}
    named = yaml.safe_dump({**written, "remotes": remotes}, sort_keys=False)
    remote = https_of(f"https://{address}", name, folder)
    connection = Connection(remote=remote, traced=call.connection.traced)
    try:
        connection.ask("POST", "/1.0/certificates", {"type": "client", "trust_token": text})
    except Failure:
        folder.pin(name).unlink()
        raise
    _write(folder.names, named)


def _meet(token: Token) -> tuple[str, str]:
    """An address where the server is, and its certificate. Raises Failure."""
    silent = []
    for address in token.addresses:
        try:
            der = _certificate_at(address)
        except OSError as error:
            silent.append(f"{address}: {error}")
            continue
        if hashlib.sha256(der).hexdigest() != token.fingerprint:
            raise Failure(f'Certificate fingerprint mismatch between certificate token and server "{address}"')
        return address, ssl.DER_cert_to_PEM_cert(der)
    raise Failure(f"no address of the server answers: {'; '.join(silent) or 'the token has none'}")


def _certificate_at(address: str) -> bytes:
    """Whose it is is looked at afterwards. Raises OSError."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE) as plain,
        context.wrap_socket(plain) as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


def make_certificate(folder: Folder) -> None:
    """The key by which this client is known everywhere; one that is there stays."""
    if folder.certificate.exists() and folder.key.exists():
        return
    key, now = ec.generate_private_key(ec.SECP384R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fairlead@{socket.gethostname()}"[:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(key, hashes.SHA384())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(folder.key, private.decode())
    _write(folder.certificate, certificate.public_bytes(pem).decode())


def _write(file: Path, text: str) -> None:
    """Whole or not at all, and for nobody else to read. Raises Failure."""
    part = file.with_name(f"{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        part.write_text(text)
        part.replace(file)
    except OSError as error:
        raise Failure(str(error)) from None

"""Checks of the files that options name; errors have the option and the path.

`--check` checks all of them. The options themselves declare the `PathKind` of their files.
"""

import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from fairlead.api.http.authentication import BadPasswordFile, read_password_file
from fairlead.config.errors import BadConfiguration
from fairlead.config.option_fields import PathKind
from fairlead.config.options import SECTIONS, Configuration

AGENT_SECTIONS = ("agent", "log")
"""Sections that an agent reads; a server reads all sections except `agent`."""
SERVER_SECTIONS = tuple(section for section in SECTIONS if section != "agent")
_UNREADABLE = (ValueError, UnsupportedAlgorithm, x509.InvalidVersion)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionFile:
    """File that an option names."""

    option: str
    path: str
    kind: PathKind
    may_be_absent: bool = False
    key: "OptionFile | None" = None
    """Private key of a certificate."""

    def wrong(self, why: str) -> BadConfiguration:
        return BadConfiguration(f"{self.option}: {self.path}: {why}")


def option_files(configuration: Configuration, sections: Iterable[str]) -> Iterator[OptionFile]:
    """Yield the files of non-empty options."""
    for section in sections:
        options = getattr(configuration, section)
        for option in fields(options):
            if "kind" in option.metadata and getattr(options, option.name):
                yield _option_file(section, options, option.metadata, option.name)


def _option_file(section: str, options: Any, metadata: Mapping[str, Any], name: str) -> OptionFile:
    key = metadata.get("key", "")
    return OptionFile(
        option=f"{section}.{name}",
        path=getattr(options, name),
        kind=metadata["kind"],
        may_be_absent=metadata.get("may_be_absent", False),
        key=OptionFile(option=f"{section}.{key}", path=getattr(options, key), kind=PathKind.KEY) if key else None,
    )


def check_files(configuration: Configuration, sections: Iterable[str], now: datetime) -> None:
    """Check each file. Raises BadConfiguration for unusable files and for certificates that are not valid now."""
    for file in option_files(configuration, sections):
        check_file(file)
        if why := invalid_now(file, now):
            raise file.wrong(why)


def check_file(file: OptionFile) -> None:
    """Check one file. Raises BadConfiguration."""
    _CHECKS[file.kind](file)


def invalid_now(file: OptionFile, now: datetime) -> str:
    """Return why the certificate in a checked file is not valid now; "" if it is, or the file has none."""
    if file.kind not in (PathKind.CERTIFICATE, PathKind.IDENTITY, PathKind.AUTHORITIES) or _is_absent(file):
        return ""
    valid = _valid_times(file)
    if not valid or any(begin <= now < end for begin, end in valid):
        return ""
    expired = [end for _, end in valid if end <= now]
    if expired:
        return f"the certificate expired on {max(expired):%Y-%m-%d %H:%M} UTC; replace it"
    begin = min(begin for begin, _ in valid)
    return f"the certificate is not valid before {begin:%Y-%m-%d %H:%M} UTC; check the clock of this machine"


def _valid_times(file: OptionFile) -> list[tuple[datetime, datetime]]:
    """Validity of the server's or node's own certificate, without intermediates; of all CA certificates."""
    if file.kind is not PathKind.AUTHORITIES:
        own = _certificates(file)[0]
        return [(own.not_valid_before_utc, own.not_valid_after_utc)]
    found = _trusting(file).get_ca_certs()
    return [(_time(each["notBefore"]), _time(each["notAfter"])) for each in found]


def _time(text: object) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(text)), UTC)


def _check_certificate(file: OptionFile) -> None:
    """Check a certificate as TLS would load it."""
    certificates = _certificates(file)
    if file.key is None or not file.key.path:  # `config` requires both
        return
    if _public(_private_key(file.key)) != _public(certificates[0]):
        raise file.wrong(f"the certificate does not match the key of {file.key.option}: {file.key.path}")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file.path, file.key.path)
    except ssl.SSLError as error:
        raise file.wrong(f"rejected by OpenSSL: {error.reason or error}") from None


def _check_key(file: OptionFile) -> None:
    _private_key(file)


def _check_identity(file: OptionFile) -> None:
    if _is_absent(file):
        return
    if _public(_private_key(file)) != _public(_certificates(file)[0]):
        raise file.wrong("the key does not match the certificate")


def _check_authorities(file: OptionFile) -> None:
    _read(file)  # OpenSSL would not report why the file cannot be opened
    _trusting(file)


def _check_users(file: OptionFile) -> None:
    try:
        read_password_file(Path(file.path))
    except BadPasswordFile as error:
        raise BadConfiguration(f"{file.option}: {error}") from None


def _check_password(file: OptionFile) -> None:
    read_password(file)


def read_password(file: OptionFile) -> str:
    """Read a password file. Raises BadConfiguration."""
    try:
        password = _read(file).decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise file.wrong("the file is not UTF-8 text") from None
    if not password:
        raise file.wrong("the file is empty")
    return password


def _check_any(file: OptionFile) -> None:
    if not _is_absent(file):
        _read(file, 0)


def _check_folder(file: OptionFile) -> None:
    if _is_absent(file):
        return
    try:
        next(Path(file.path).iterdir(), None)
    except OSError as error:
        raise file.wrong(error.strerror or str(error)) from None


def _check_store(file: OptionFile) -> None:
    scheme, _, path = file.path.partition("://")
    if scheme == "sqlite":
        _check_any(OptionFile(option=file.option, path=path, kind=PathKind.FILE, may_be_absent=True))


def _read(file: OptionFile, size: int = -1) -> bytes:
    """Read a file. Raises BadConfiguration."""
    try:
        with Path(file.path).open("rb") as opened:
            return opened.read(size)
    except FileNotFoundError:
        raise file.wrong("no such file") from None
    except OSError as error:
        raise file.wrong(error.strerror or str(error)) from None
    except ValueError as error:  # a path with a NUL
        raise file.wrong(str(error)) from None


def _is_absent(file: OptionFile) -> bool:
    """Whether an optional file is missing. Raises BadConfiguration if its directory cannot exist."""
    path = Path(file.path)
    try:
        if not file.may_be_absent or path.exists():
            return False
        above = next((each for each in path.absolute().parents if each.exists()), path.parent)
    except OSError as error:
        raise file.wrong(error.strerror or str(error)) from None
    if not above.is_dir():
        raise file.wrong(f"{above} is not a folder")
    return True


def _certificates(file: OptionFile) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(_read(file))
    except _UNREADABLE:
        raise file.wrong("the file has no readable certificate in PEM") from None


def _private_key(file: OptionFile) -> Any:
    try:
        return load_pem_private_key(_read(file), None)
    except TypeError:
        raise file.wrong("the key has a pass phrase, which is not supported; remove it with `openssl pkey`") from None
    except _UNREADABLE:
        raise file.wrong("the file has no readable private key in PEM") from None


def _public(of: Any) -> bytes:
    try:
        found: bytes = of.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except _UNREADABLE:
        return b""
    return found


def _trusting(file: OptionFile) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(file.path)
    except ssl.SSLError:
        raise file.wrong("the file has no readable certificate in PEM") from None
    return context


_CHECKS: Mapping[PathKind, Callable[[OptionFile], None]] = {
    PathKind.CERTIFICATE: _check_certificate,
    PathKind.KEY: _check_key,
    PathKind.AUTHORITIES: _check_authorities,
    PathKind.IDENTITY: _check_identity,
    PathKind.USERS: _check_users,
    PathKind.PASSWORD: _check_password,
    PathKind.FILE: _check_any,
    PathKind.FOLDER: _check_folder,
    PathKind.STORE: _check_store,
}

"""Location and credentials of an etcd cluster, parsed from the store's URL and options. Does not import gRPC."""

import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
MAX_MEMBERS = 16
EXAMPLE = "example: etcd://192.0.2.1:2379,192.0.2.2:2379,192.0.2.3:2379/fairlead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Credential files, which are read when the store is opened or renewed."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    user: str = ""
    password_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    members: tuple[str, ...]
    """Endpoints, each as HOST:PORT or [IPv6]:PORT."""
    prefix: str
    """Prefix of all keys of the deployment, without leading or trailing slash."""

    def __str__(self) -> str:
        return f"etcd://{','.join(self.members)}/{self.prefix}"


def parse_location(rest: str) -> Location:
    """Parse the part of the URL after `etcd://`. Raises ValueError with the correct form."""
    hosts, _, prefix = rest.partition("/")
    if "@" in hosts:
        raise ValueError("the URL must not contain a user; set store.user and store.password_file")
    members = tuple(hosts.split(","))
    if len(members) > MAX_MEMBERS or len(set(members)) < len(members):
        raise ValueError(f"duplicate member, or more than {MAX_MEMBERS} members")
    for each in members:
        _check_member(each)
    prefix = prefix.rstrip("/")
    if not PREFIX.fullmatch(prefix) or "//" in prefix:
        raise ValueError(
            f"the key prefix of this deployment is missing, or has characters other than A-Z a-z 0-9 . _ - /; {EXAMPLE}"
        )
    return Location(members=members, prefix=prefix)


def _check_member(member: str) -> None:
    host, _, port = member.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f"'{member}' is not HOST:PORT; {EXAMPLE}")
    if host.startswith("[") and host.endswith("]"):
        ip_address(host[1:-1])
    elif not re.fullmatch(r"[A-Za-z0-9._-]+", host):
        raise ValueError(f"'{member}' is not HOST:PORT; an IPv6 address needs brackets; {EXAMPLE}")


def check_access(access: Access) -> None:
    """Check the combination of access options. Raises ValueError."""
    if bool(access.certificate) != bool(access.key):
        raise ValueError("store.certificate and store.key must be set together")
    if bool(access.user) != bool(access.password_file):
        raise ValueError(
            "store.user and store.password_file must be set together; a certificate authenticates as its common name"
        )
    if (access.certificate or access.user) and not access.ca:
        raise ValueError("certificates and passwords require TLS: set store.ca to the CA of etcd's certificates")


def read_file(path: str) -> bytes | None:
    """Read a file; None without a path. Raises OSError."""
    return Path(path).read_bytes() if path else None

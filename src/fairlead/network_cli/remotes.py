"""Which server is meant, and how to come to it.

A remote is said as `unix:/PATH`, as `https://HOST:PORT`, or by a name of `config.yml` in the client's folder. That
folder is laid out as Incus's and LXD's are: `client.crt` and `client.key` say who asks, `servercerts/NAME.crt` is the
certificate that the server NAME must have. So a machine on which one of these clients has joined a server needs no
second join: the folder may be theirs.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from fairlead.network_cli.failure import Failure

DEFAULT_SOCKET = "/run/fairlead/lxd.socket"
LOCAL = "local"
UNIX = "unix:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Socket:
    """On this machine: the server sees which user asks."""

    path: str
    project: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Https:
    """Elsewhere: both sides know the other by its certificate."""

    host: str
    port: int
    certificate: Path
    key: Path
    pinned: Path | None
    """PEM: the one certificate that the server may have; None: one that the system's authorities vouch for."""
    project: str = ""


Remote = Socket | Https


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """The client's own files."""

    path: Path

    @property
    def certificate(self) -> Path:
        return self.path / "client.crt"

    @property
    def key(self) -> Path:
        return self.path / "client.key"

    @property
    def names(self) -> Path:
        return self.path / "config.yml"

    def pin(self, name: str) -> Path:
        return self.path / "servercerts" / f"{name}.crt"

    def read(self) -> Any:
        """The named remotes. Raises Failure."""
        try:
            written = yaml.safe_load(self.names.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise Failure(f"{self.names}: {error}") from None
        return written if isinstance(written, dict) else {}


def folder_of(environment: Mapping[str, str]) -> Folder:
    """FAIRLEAD_CLIENT, or `fairlead` where the user's configuration is."""
    said = environment.get("FAIRLEAD_CLIENT")
    home = environment.get("XDG_CONFIG_HOME") or str(Path(environment.get("HOME") or "/") / ".config")
    return Folder(path=Path(said) if said else Path(home) / "fairlead")


def split(network: str) -> tuple[str, str]:
    """`REMOTE:NETWORK`, or a network alone, which is of the remote ""."""
    remote, colon, name = network.partition(":")
    return (remote, name) if colon else ("", network)


def find(said: str, environment: Mapping[str, str] = os.environ) -> Remote:
    """The remote that is said; with nothing said that of FAIRLEAD_REMOTE, or the folder's default, or this machine's.

    Raises Failure."""
    folder = folder_of(environment)
    written = folder.read()
    name = said or environment.get("FAIRLEAD_REMOTE") or str(written.get("default-remote", LOCAL))
    if name.startswith((UNIX, "https://")):
        return _at(name, _host_of(name), folder)
    known = written.get("remotes") or {}
    if name in known and isinstance(known[name], dict):
        return _at(str(known[name].get("addr", "")), name, folder, project=str(known[name].get("project") or ""))
    if name == LOCAL:
        return Socket(path=DEFAULT_SOCKET)
    raise Failure(f'The remote "{name}" doesn\'t exist')


def _host_of(url: str) -> str:
    return urlsplit(url).hostname or ""


def _at(address: str, name: str, folder: Folder, project: str = "") -> Remote:
    if address.startswith(UNIX):
        path = "/" + address.removeprefix(UNIX).lstrip("/")
        return Socket(path=DEFAULT_SOCKET if path == "/" else path, project=project)
    return https_of(address, name, folder, project)


def https_of(address: str, name: str, folder: Folder, project: str = "") -> Https:
    """Raises Failure."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or 443
    except ValueError:
        host, port = None, 0
    if parts.scheme != "https" or not host:
        raise Failure(f"the remote '{address}' is neither unix:/PATH nor https://HOST:PORT")
    pin = folder.pin(name)
    return Https(
        host=host,
        port=port,
        certificate=folder.certificate,
        key=folder.key,
        pinned=pin if pin.exists() else None,
        project=project,
    )

"""One request to an LXD door, and its answer, taken out of its envelope."""

import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from fairlead import __version__
from fairlead.network_cli.failure import Failure
from fairlead.network_cli.remotes import Https, Remote, Socket
from fairlead.terminal import complain, escaped

SECONDS = 60.0
"""How long a server may be silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    metadata: Any
    etag: str = ""
    location: str = ""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("unix.socket", timeout=SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(SECONDS)
        self.sock.connect(self._path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where the server is, and for which project is asked."""

    remote: Remote
    project: str = ""
    traced: bool = False
    """Each request and its status go to standard error."""

    def ask(
        self, method: str, path: str, body: Any = None, *, etag: str = "", query: Mapping[str, str] | None = None
    ) -> Answer:
        """Raises Failure with the server's own sentence. Of what has only begun the metadata is its operation."""
        asked = {**(query or {}), **({"project": self.project} if self.project else {})}
        target = quote(path, safe="/:") + (f"?{urlencode(asked)}" if asked else "")
        headers = {"User-Agent": f"Fairlead {__version__}", "Content-Type": "application/json"}
        if etag:
            headers["If-Match"] = etag
        status, received, text = self._exchange(method, target, None if body is None else json.dumps(body), headers)
        if self.traced:
            complain(f"{method} {target}: {status}")
        envelope = _open(text)
        if envelope is None or (status >= 400 and envelope.get("type") != "error"):
            raise Failure(f"Failed fetching {target}: {status}")
        if envelope.get("type") == "error":
            raise Failure(escaped(str(envelope.get("error") or f"{status}")))
        return Answer(
            metadata=envelope.get("metadata"),
            etag=received.get("ETag", ""),
            location=received.get("Location", ""),
        )

    def _exchange(
        self, method: str, target: str, body: str | None, headers: Mapping[str, str]
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = _connect(self.remote)
        try:
            connection.request(method, target, body.encode() if body is not None else None, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        except (FileNotFoundError, ConnectionRefusedError, PermissionError) as error:
            raise Failure(_unreachable(self.remote, error)) from None
        except (OSError, http.client.HTTPException) as error:
            raise Failure(f"{target}: {error or type(error).__name__}") from None
        finally:
            connection.close()


def _unreachable(remote: Remote, error: OSError) -> str:
    match remote:
        case Socket(path=path) if isinstance(error, PermissionError):
            return f"You don't have the needed permissions to talk to the server (socket path: {path})"
        case Socket(path=path):
            return f"The server doesn't appear to be started (socket path: {path})"
        case Https(host=host, port=port):
            return f"https://{host}:{port}: {error.strerror or error}"


def _connect(remote: Remote) -> http.client.HTTPConnection:
    match remote:
        case Socket(path=path):
            return _UnixConnection(path)
        case Https(host=host, port=port):
            return http.client.HTTPSConnection(host, port, timeout=SECONDS, context=_tls(remote))


def _tls(remote: Https) -> ssl.SSLContext:
    """TLS 1.3, as LXD's clients have it. A pinned certificate is its own authority, whatever name it bears."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        if remote.pinned:
            context.check_hostname = False
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.load_verify_locations(remote.pinned)
        else:
            context.load_default_certs()
        if remote.certificate.exists():
            context.load_cert_chain(remote.certificate, remote.key)
    except (OSError, ssl.SSLError) as error:
        raise Failure(f"{remote.pinned or ''} {remote.certificate}: {error}".strip()) from None
    return context


def _open(text: bytes) -> Mapping[str, Any] | None:
    try:
        envelope = json.loads(text)
    except ValueError:
        return None
    return envelope if isinstance(envelope, dict) else None

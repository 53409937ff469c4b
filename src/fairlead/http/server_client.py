"""HTTP client of Fairlead's own programs: operator commands, agents and the Octavia plugin."""

import base64
import json
import re
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlead.runtime.terminal import escaped

MAX_RETRY_AFTER = 60
"""Maximum seconds of a Retry-After header that are honoured."""
DIGITS = re.compile("[0-9]{1,9}")


class ServerError(Exception):
    """The server rejected the request or did not respond. The message is the server's, if it sent one."""

    def __init__(self, message: str, status: int | None = None, retry_after: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status code; None without a response."""
        self.retry_after = retry_after
        """Seconds after which to retry (Retry-After); 0 if the server sent none."""


class NotReached(ServerError):
    """No connection was established, so the request was not sent and may go to another server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiClient:
    url: str
    """http://HOST:PORT or https://HOST:PORT."""
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    """Keystone token; takes precedence over user and password."""
    identity: str = ""
    """PEM file with the client certificate and its key."""
    authority: str = ""
    """CA certificate (PEM) of the server; the server's name is not checked then."""
    ca: str = ""
    """PEM file with CA certificates for the server; "" for the system's."""
    certificate: str = ""
    key: str = ""
    """PEM files of the client certificate and its key, if the server requests one."""
    timeout: float = 60.0

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Send a request and return the decoded response; None if it is empty. Raises ServerError."""
        return self.exchange(method, path, body)[1]

    def exchange(self, method: str, path: str, body: object = None) -> tuple[Mapping[str, str], Any]:
        """Send a request; return headers (case-insensitive) and decoded response. Raises ServerError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url.rstrip("/") + path, data, method=method)  # noqa: S310 - the operator's URL
        if data is not None:
            request.add_header("Content-Type", "application/json")
        if self.token:
            request.add_header("X-Auth-Token", self.token)
        elif self.user:
            secret = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {secret}")
        context = self._tls()
        try:
            with urllib.request.urlopen(request, timeout=self.timeout, context=context) as answer:  # noqa: S310
                said = answer.read()
                return answer.headers, json.loads(said) if said else None
        except urllib.error.HTTPError as error:
            body_text = error.read().decode(errors="replace")
            sentence = extract_error(body_text) or f"{error.code} {error.reason}"
            raise ServerError(sentence, error.code, _retry_after(error.headers.get("Retry-After", ""))) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionRefusedError | socket.gaierror):
                raise NotReached(f"{self.url} does not answer: {error.reason}") from None
            raise ServerError(f"{self.url} does not answer: {error.reason}") from None
        except (OSError, ValueError) as error:
            raise ServerError(f"{self.url} does not answer: {error}") from None

    def _tls(self) -> ssl.SSLContext | None:
        """Return the TLS context; None for the default. Files are read each time, because they may be renewed.

        Raises ServerError.
        """
        if not (self.authority or self.ca or self.certificate):
            return None
        try:
            if self.authority:
                context = ssl.create_default_context(cadata=self.authority)
                context.check_hostname = False
                context.load_cert_chain(self.identity)
                return context
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key or None)
        except OSError as error:
            files = ", ".join(filter(None, (self.ca, self.identity, self.certificate, self.key)))
            raise ServerError(f"{files}: {error.strerror or error}") from None
        return context


def _retry_after(header: str) -> int:
    """Parse Retry-After in whole seconds, which Fairlead's servers send. An HTTP date (RFC 9110, section 10.2.3)
    counts as none."""
    text = header.strip()
    return min(int(text), MAX_RETRY_AFTER) if DIGITS.fullmatch(text) else 0


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def extract_error(body: str) -> str:
    """Extract the error message from a body in any of the API formats: Fairlead, LXD, Keystone, Neutron, Octavia.

    Control characters are escaped, because messages contain tenants' text and are printed on terminals and in logs.
    """
    return escaped(_extract_error(body))


def _extract_error(body: str) -> str:
    try:
        said = json.loads(body)
    except ValueError:
        return ""
    for key in ("error", "NeutronError", "faultstring") if isinstance(said, dict) else ():
        match said.get(key):
            case str(sentence):
                return sentence
            case {"message": str(sentence)}:
                return sentence
            case dict(other):
                return str(other)
    return ""

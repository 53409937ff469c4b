"""How Fairlead's own programs speak to its server: the operator's commands, and the agents."""

import base64
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlead.terminal import escaped


class ServerError(Exception):
    """The server refuses, or does not answer; the message is its own sentence where it has one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """Of the answer; None where there was none."""


class NotReached(ServerError):
    """There was no connection, so nothing was asked: another server may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    url: str
    """http://HOST:PORT or https://HOST:PORT."""
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    """Of Keystone; it goes before user and password."""
    identity: str = ""
    """PEM file with our own certificate and its key, for a server that knows callers by these."""
    authority: str = ""
    """The one (PEM) that vouches for this server, whatever its address is."""
    ca: str = ""
    """PEM file that vouches for the server's certificate; the system's own authorities without one."""
    certificate: str = ""
    key: str = ""
    """PEM files of our own certificate, where the server asks for one, and of its key."""
    timeout: float = 60.0

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """What it answers, decoded; None for an empty answer. Raises ServerError."""
        return self.exchange(method, path, body)[1]

    def exchange(self, method: str, path: str, body: object = None) -> tuple[Mapping[str, str], Any]:
        """The headers of what it answers as well, whose names are of any case. Raises ServerError."""
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
            raise ServerError(sentence_of(body_text) or f"{error.code} {error.reason}", error.code) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionRefusedError | socket.gaierror):
                raise NotReached(f"{self.url} does not answer: {error.reason}") from None
            raise ServerError(f"{self.url} does not answer: {error.reason}") from None
        except (OSError, ValueError) as error:
            raise ServerError(f"{self.url} does not answer: {error}") from None

    def _tls(self) -> ssl.SSLContext | None:
        """None for the system's own. Files are read each time: they may have been renewed. Raises ServerError."""
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


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def sentence_of(body: str) -> str:
    """In the form of whichever door: our own, LXD's and Keystone's, Neutron's, or Octavia's. Names in it are tenants'
    words, and it ends on terminals and in logs: without control characters."""
    return escaped(_sentence_of(body))


def _sentence_of(body: str) -> str:
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

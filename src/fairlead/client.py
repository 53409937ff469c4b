"""How Fairlead's own programs speak to its server: the operator's commands, and the agents."""

import base64
import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any


class ServerError(Exception):
    """The server refuses, or does not answer; the message is its own sentence where it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    url: str
    """http://HOST:PORT or https://HOST:PORT."""
    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    """PEM file that vouches for the server's certificate; the system's own authorities without one."""
    timeout: float = 60.0

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """What it answers, decoded. Raises ServerError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url.rstrip("/") + path, data, method=method)  # noqa: S310 - the operator's URL
        if data is not None:
            request.add_header("Content-Type", "application/json")
        if self.user:
            secret = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {secret}")
        context = ssl.create_default_context(cafile=self.ca) if self.ca else None
        try:
            with urllib.request.urlopen(request, timeout=self.timeout, context=context) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as error:
            body_text = error.read().decode(errors="replace")
            raise ServerError(_sentence(body_text) or f"{error.code} {error.reason}") from None
        except urllib.error.URLError as error:
            raise ServerError(f"{self.url} does not answer: {error.reason}") from None
        except (OSError, ValueError) as error:
            raise ServerError(f"{self.url} does not answer: {error}") from None


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def _sentence(body: str) -> str:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return ""
    return error if isinstance(error, str) else str(error.get("message", error))

"""Recorded responses of Keystone 30.0.0, and a server that replays them or fails in every way in which servers fail.

tests/keystone uses a real Keystone; this server can fail at a chosen moment.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from fairlead.api.keystone.client import Keystone, ServiceUser
from fairlead.http.client import HttpEndpoint

PASSWORD = "the password of our own user"
USER = ServiceUser(
    name="fairlead", password=PASSWORD, project="service", user_domain="Default", project_domain="Default"
)
DOMAIN = {"id": "default", "name": "Default"}
ALICE = {"domain": DOMAIN, "id": "0774e14e3bce4533a031132760b7288d", "name": "alice", "password_expires_at": None}
SHOP = {"domain": DOMAIN, "id": "6f7dc5cd3fe94936828e88c46c2cc573", "name": "shop"}
ADMIN_ROLES = ("member", "manager", "admin", "reader")
"""The role admin with the roles that it implies."""
NOT_FOUND = {"error": {"code": 404, "message": "Could not recognize Fernet token", "title": "Not Found"}}
UNAUTHORIZED = {
    "error": {
        "code": 401,
        "message": "The request you have made requires authentication.",
        "title": "Unauthorized",
    }
}
FORBIDDEN = {
    "error": {
        "code": 403,
        "message": "You are not authorized to perform the requested action: identity:validate_token.",
        "title": "Forbidden",
    }
}


def token(*roles: str, seconds: float = 3600, **scope: Any) -> bytes:
    """Response for a valid token that expires in `seconds`."""
    ends = datetime.now(UTC) + timedelta(seconds=seconds)
    said = {
        "methods": ["password"],
        "user": ALICE,
        "audit_ids": ["d6RAuxiMSwObj-Dy0O67ig"],
        "expires_at": f"{ends:%Y-%m-%dT%H:%M:%S.%fZ}",
        "issued_at": "2026-11-22T14:33:16.000000Z",
        **scope,
    }
    if roles:
        said["roles"] = [{"id": "0fa85b96da3f4bc4bce53550fd9cb43c", "name": role} for role in roles]
    return json.dumps({"token": said}).encode()


SHOP_SCOPE = {"project": SHOP, "is_domain": False}


class ReplayedKeystone:
    """Replayed Keystone: returns the configured response for each token, and records the requests."""

    def __init__(self) -> None:
        self.tokens: dict[str, bytes] = {}
        """Response for each valid token."""
        self.validated_tokens: list[str] = []
        """Tokens that were validated."""
        self.login_count = 0
        self.service_token = "own-token-1"
        self.service_roles = ("service",)
        self.forced_responses: list[tuple[int, Any]] = []
        """Responses that are sent next, to any request."""
        self.login_status = 201
        self.status = 0
        """Status of all responses about tokens, if not 0."""
        self.response_gate: Callable[[], Awaitable[object]] | None = None
        """Awaited before each response."""

    async def answer(self, head: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        lines = head.split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        about = headers.get("x-subject-token", "")
        if about:
            self.validated_tokens.append(about)
        else:
            self.login_count += 1
        if self.response_gate is not None:
            await self.response_gate()
        if lines[0].startswith("POST /v3/auth/tokens?nocatalog "):
            return self._issue_service_token(body)
        assert lines[0].startswith("GET /v3/auth/tokens?nocatalog "), lines[0]
        if headers["x-auth-token"] != self.service_token:
            return 401, {}, json.dumps(UNAUTHORIZED).encode()
        if self.status:
            return self.status, {}, json.dumps(FORBIDDEN).encode()
        if about in self.tokens:
            return 200, {"X-Subject-Token": about}, self.tokens[about]
        return 404, {}, json.dumps(NOT_FOUND).encode()

    def _issue_service_token(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        given = json.loads(body)["auth"]["identity"]["password"]["user"]
        if self.login_status != 201:
            return self.login_status, {}, json.dumps(UNAUTHORIZED).encode()
        if given != {"name": "fairlead", "domain": {"name": "Default"}, "password": PASSWORD}:
            return 401, {}, json.dumps(UNAUTHORIZED).encode()
        return 201, {"X-Subject-Token": self.service_token}, token(*self.service_roles, project=SHOP)


@asynccontextmanager
async def replayed_keystone(
    play: ReplayedKeystone, tls: ssl.SSLContext | None = None, port: int = 0
) -> AsyncIterator[int]:
    """Run the server, and yield its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().removesuffix("\r\n\r\n")
            length = [line.split()[1] for line in head.split("\r\n") if line.lower().startswith("content-length:")]
            body = await reader.readexactly(int(length[0])) if length else b""
            status, headers, said = await play.answer(head, body)
            lines = {"Content-Length": str(len(said)), "Content-Type": "application/json", **headers}
            top = f"HTTP/1.1 {status} X\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            writer.write(f"{top}\r\n".encode() + said)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client closed the connection
        finally:
            writer.transport.abort() if writer.is_closing() else writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]


def keystone_at(port: int, clock: Callable[[], float], user: ServiceUser = USER) -> Keystone:
    return Keystone(HttpEndpoint(url=f"http://127.0.0.1:{port}/v3"), user, clock)

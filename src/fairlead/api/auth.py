"""Who calls: nobody in particular (on loopback and unix sockets only), or a user of an htpasswd file.

HTTP basic is what the stock clients speak as `auth_type: http_basic` (RFC 7617). A line of the file is

    user:bcrypt hash:project:role,role

as `htpasswd -nB user` writes its first two columns. A bcrypt check takes tens of milliseconds by design, so what was
right once is remembered under a key that only this process knows; the password itself is not.
"""

import asyncio
import base64
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import bcrypt

from fairlead.api.door import Identity

Authenticate: TypeAlias = Callable[[str | None, str | None], Awaitable[Identity | None]]
"""(Authorization header, X-Project-Id header) -> who it is; None when the caller has to say who he is."""
ROLES = frozenset(
    {
        *("admin", "member", "reader", "service"),
        *("load-balancer_admin", "load-balancer_global_observer", "load-balancer_member"),
        *("load-balancer_observer", "load-balancer_quota_admin"),
    }
)
"""Keystone's, and the older ones that Octavia has of its own."""
REMEMBERED = 10_000
CHECKS_AT_ONCE = 2
"""More callers with new passwords wait: the others' requests must not wait for bcrypt."""
BCRYPT = re.compile(r"^\$2[abxy]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}$")
LONGEST_PROJECT = 36
DEFAULT_PROJECT = "default"


class BadPasswordFile(Exception):
    """The message names the file, the line and what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    identity: Identity
    hash: bytes


async def anybody(authorization: str | None, project_id: str | None) -> Identity | None:
    """No authentication: everybody is the administrator, of the project that he names."""
    named = "".join(filter(str.isprintable, project_id or ""))
    return Identity(user="anybody", project_id=named[:LONGEST_PROJECT] or DEFAULT_PROJECT, roles=ROLES)


def read_password_file(path: Path) -> dict[str, User]:
    """Raises BadPasswordFile."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise BadPasswordFile(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise BadPasswordFile(f"{path}: it is not UTF-8 text") from None
    users: dict[str, User] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.strip().split(":")
        roles = frozenset(parts[3].split(",")) if len(parts) == 4 else frozenset()
        if parts[0] in users:
            raise BadPasswordFile(f"{path}:{number}: the user is there already")
        if len(parts) != 4 or not BCRYPT.match(parts[1]) or not roles <= ROLES or len(parts[2]) > LONGEST_PROJECT:
            raise BadPasswordFile(
                f"{path}:{number}: a line is user:bcrypt hash:project:role,role; roles are {', '.join(sorted(ROLES))}"
            )
        identity = Identity(user=parts[0], project_id=parts[2], roles=roles)
        users[parts[0]] = User(identity=identity, hash=parts[1].encode())
    return users


class HttpBasic:
    """Checks a caller against the users of a password file."""

    def __init__(self, users: dict[str, User]) -> None:
        self._users = users
        self._key = secrets.token_bytes(32)
        self._right: dict[bytes, Identity] = {}
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE)
        costs = [int(user.hash.split(b"$")[2]) for user in users.values()]
        self._dummy = bcrypt.hashpw(b"nobody", bcrypt.gensalt(max(costs, default=4)))

    async def __call__(self, authorization: str | None, project_id: str | None) -> Identity | None:
        credentials = _credentials(authorization)
        if credentials is None:
            return None
        name, password = credentials
        digest = hmac.digest(self._key, name.encode() + b"\0" + password, "sha256")
        if digest in self._right:
            return self._right[digest]
        user = self._users.get(name)
        async with self._checks:  # a name that is not there costs the same time as one that is
            right = await asyncio.to_thread(bcrypt.checkpw, password[:72], user.hash if user else self._dummy)
        if user is None or not right:
            return None
        if len(self._right) >= REMEMBERED:
            self._right.clear()
        self._right[digest] = user.identity
        return user.identity


def _credentials(authorization: str | None) -> tuple[str, bytes] | None:
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
        return (name.decode(), password) if colon and b"\0" not in password else None
    except ValueError:  # not base64, or not text
        return None

"""Authentication by HTTP basic against an htpasswd file, by client certificate, or none (loopback and Unix sockets
only). Keystone tokens are in `fairlead.api.keystone`.

OpenStack clients send HTTP basic (RFC 7617) with `auth_type: http_basic`. A line of the file is

    user:bcrypt hash:project:role,role
    user:bcrypt hash:project:service:chassis,chassis

The first two columns are the output of `htpasswd -nB user`. The line of an agent lists the chassis that it represents.
The word `certificate` in place of the hash means that the user has no password and presents a certificate with the
user's name (`server.client_ca`).

A bcrypt check takes tens of milliseconds by design, so successful credentials are cached as an HMAC under a key of this
process; the password itself is not stored. A cached caller never waits. Other checks take turns by address, in bounded
queues. Failures delay their address, and a disconnected caller is not checked. Clients with wrong passwords therefore
delay only their own address.
"""

import asyncio
import base64
import hmac
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import bcrypt
from cryptography import x509
from cryptography.x509.oid import NameOID

from fairlead.api.http.rate_limit import RateLimiter, retry_after
from fairlead.changes.identity import DEFAULT_PROJECT, MAX_PROJECT_ID_LENGTH, Identity
from fairlead.runtime.fair_semaphore import ClientDisconnected, FairSemaphore, WaitQueueFull

ROLES = frozenset(
    {
        *("admin", "member", "reader", "service"),
        *("load-balancer_admin", "load-balancer_global_observer", "load-balancer_member"),
        *("load-balancer_observer", "load-balancer_quota_admin"),
    }
)
"""Keystone's default roles, and Octavia's own older ones."""
MAX_CACHED = 10_000
MAX_CONCURRENT_CHECKS = max(1, min(2, (os.cpu_count() or 2) - 1))
"""bcrypt runs in threads, and one processor stays free for other requests."""
MAX_QUEUED, MAX_QUEUED_TOTAL = 16, 256
"""Maximum queued checks, of one address and of all."""
CHECK_TIMEOUT = 10.0
"""Maximum seconds for which a check is queued."""
FAILURES = 30
"""Burst of failures that an address may have; one unit is available again after each FORGIVEN seconds."""
FAILURE_RECOVERY_SECONDS = 2.0
BCRYPT = re.compile(r"^\$2[abxy]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}$")
BY_CERTIFICATE = "certificate"
"""Word in place of a hash."""
MAX_USER_LENGTH = 255


class BadPasswordFile(Exception):
    """Invalid password file; the message names the file, the line and the valid form."""


class TooManyLogins(Exception):
    """Too many checks or failures of this address; `seconds` is the Retry-After."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"try again in {seconds} s")
        self.seconds = seconds


class IdentityProviderUnavailable(Exception):
    """The identity provider is unavailable, so the caller cannot be authenticated; `seconds` is the Retry-After."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"try again in {seconds:.0f} s")
        self.seconds = seconds


class NoProjectScope(Exception):
    """The caller is authenticated, but its token has no project scope."""


class ClientCertificateNotValid(Exception):
    """The client certificate is expired or not valid yet; the message has its name and time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginAttempt:
    """Credentials of a request, and what the server knows of the connection."""

    authorization: str | None = None
    token: str | None = field(default=None, repr=False)
    """Header X-Auth-Token."""
    project_id: str | None = None
    """Header X-Project-Id."""
    address: str = ""
    """Counting key of the client address (`acceptor.counted_as`)."""
    disconnected: asyncio.Event | None = None
    """Event that is set when the client disconnects."""
    query: str = ""
    """Query string of the URL."""
    certificate: bytes | None = None
    """Client certificate in DER, if the listening socket requests one; TLS has proven possession of its key. On the
    main socket it is signed by the configured CA; on LXD's socket it may be self-signed."""


Authenticate: TypeAlias = Callable[[LoginAttempt], Awaitable[Identity | None]]
"""Authenticate a request; None if credentials are missing or wrong. Raises TooManyChecks, NobodyToAsk, SpeaksForNone,
NotValidNow, and Gone if the client has disconnected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    identity: Identity
    hash: bytes
    """Empty for a user without a password, authenticated by certificate."""


async def authenticate_as_admin(attempt: LoginAttempt) -> Identity | None:
    """Accept every caller as an administrator of the project it names: no authentication."""
    named = "".join(filter(str.isprintable, attempt.project_id or ""))
    return Identity(user="anybody", project_id=named[:MAX_PROJECT_ID_LENGTH] or DEFAULT_PROJECT, roles=ROLES)


class Failures(RateLimiter):
    """Rate limiter of failed log-ins by address."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(FAILURES, FAILURE_RECOVERY_SECONDS, clock)


def read_password_file(path: Path) -> dict[str, User]:
    """Read and validate an htpasswd file. Raises BadPasswordFile."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise BadPasswordFile(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise BadPasswordFile(f"{path}: the file is not UTF-8 text") from None
    users: dict[str, User] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.strip().split(":")
        roles = frozenset(parts[3].split(",")) if len(parts) in (4, 5) else frozenset()
        chassis = frozenset(parts[4].split(",")) if len(parts) == 5 else frozenset()
        if parts[0] in users:
            raise BadPasswordFile(f"{path}:{number}: duplicate user '{parts[0]}'")
        if "" in chassis or (chassis and "service" not in roles):
            raise BadPasswordFile(f"{path}:{number}: the fifth column lists chassis and requires role service")
        has_form = parts[1:2] == [BY_CERTIFICATE] or bool(parts[1:] and BCRYPT.match(parts[1]))
        if not roles or not has_form or not roles <= ROLES or len(parts[2]) > MAX_PROJECT_ID_LENGTH:
            raise BadPasswordFile(
                f"{path}:{number}: expected user:bcrypt hash:project:role,role, and for an agent :chassis,chassis;"
                f" roles are {', '.join(sorted(ROLES))}"
            )
        identity = Identity(user=parts[0], project_id=parts[2], roles=roles, chassis=chassis)
        users[parts[0]] = User(identity=identity, hash=b"" if parts[1] == BY_CERTIFICATE else parts[1].encode())
    return users


class HttpBasic:
    """Authenticate callers against the users of a password file."""

    def __init__(self, users: dict[str, User]) -> None:
        self.failures = Failures()
        self._turns = FairSemaphore(
            at_once=MAX_CONCURRENT_CHECKS, of_one=MAX_CONCURRENT_CHECKS, waiting=MAX_QUEUED, in_all=MAX_QUEUED_TOTAL
        )
        self._key = secrets.token_bytes(32)
        self._users, self._dummy = users, _make_dummy(users)
        self._valid_credentials: dict[bytes, Identity] = {}

    async def replace(self, users: dict[str, User]) -> None:
        """Replace the users and clear the cache of successful credentials."""
        dummy = await asyncio.to_thread(_make_dummy, users)
        self._users, self._dummy, self._valid_credentials = users, dummy, {}

    async def __call__(self, attempt: LoginAttempt) -> Identity | None:
        credentials = read_credentials(attempt.authorization)
        if credentials is None:
            return self._shown(attempt.certificate) if attempt.authorization is None else None
        name, password = credentials
        digest = hmac.digest(self._key, name.encode() + b"\0" + password, "sha256")
        if digest in self._valid_credentials:
            return self._valid_credentials[digest]
        self._refuse_after_failures(attempt.address)
        try:
            async with self._turns.turn(attempt.address, CHECK_TIMEOUT, attempt.disconnected):
                if attempt.disconnected is not None and attempt.disconnected.is_set():
                    raise ClientDisconnected
                self._refuse_after_failures(attempt.address)  # earlier checks of this address may have failed
                return await self._check(name, password, digest, attempt.address)
        except (WaitQueueFull, TimeoutError):
            raise TooManyLogins(1) from None

    def _shown(self, certificate: bytes | None) -> Identity | None:
        """Return the identity named by a certificate that the CA signed. It is looked up for each request, so removing
        a user from the file takes effect immediately."""
        user = None if certificate is None else self._users.get(common_name(certificate))
        return user.identity if user is not None and not user.hash else None

    def _refuse_after_failures(self, address: str) -> None:
        """Raise TooManyChecks if this address has failed too often."""
        wait = self.failures.wait(address)
        if wait > 0:
            raise TooManyLogins(retry_after(wait))

    async def _check(self, name: str, password: bytes, digest: bytes, address: str) -> Identity | None:
        user, right_ones = self._users.get(name), self._valid_credentials
        # unknown names cost the same time as known ones
        hashed = user.hash if user and user.hash else self._dummy
        right = await asyncio.to_thread(bcrypt.checkpw, password[:72], hashed) and hashed is not self._dummy
        if user is None or not right:
            self.failures.add(address)
            return None
        if len(right_ones) >= MAX_CACHED:
            right_ones.clear()
        right_ones[digest] = user.identity  # cached for the users that the check used; they may have been replaced
        return user.identity if self._users.get(name) == user else None


def _make_dummy(users: dict[str, User]) -> bytes:
    costs = [int(user.hash.split(b"$")[2]) for user in users.values() if user.hash]
    return bcrypt.hashpw(b"nobody", bcrypt.gensalt(max(costs, default=4)))


def common_name(certificate: bytes) -> str:
    """Return the common name of the certificate's subject; empty unless there is exactly one."""
    try:
        names = x509.load_der_x509_certificate(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(names[0].value) if len(names) == 1 else ""
    except ValueError:
        return ""


def read_credentials(authorization: str | None) -> tuple[str, bytes] | None:
    """Decode user and password of HTTP basic; None for any other value."""
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
        return (name.decode(), password) if colon and b"\0" not in password else None
    except ValueError:  # invalid Base64 or UTF-8
        return None

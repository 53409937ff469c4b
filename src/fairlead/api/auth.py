"""Who calls: nobody in particular (on loopback and unix sockets only), or a user of an htpasswd file; or whom Keystone
knows (`fairlead.api.keystone`).

HTTP basic is what the stock clients speak as `auth_type: http_basic` (RFC 7617). A line of the file is

    user:bcrypt hash:project:role,role
    user:bcrypt hash:project:service:chassis,chassis

as `htpasswd -nB user` writes its first two columns; an agent's user names the chassis for which it may speak. Who has
the word `certificate` instead of a hash has no password: they show a certificate with their name (`server.client_ca`).

A bcrypt check takes tens of milliseconds by design, so what was right once is remembered under a key that only this
process knows; the password itself is not. A caller who was right before never waits. All other checks take turns by
address, in lines with an end. Failures make their address wait, and a caller who has hung up is not checked. So
strangers with wrong passwords keep themselves waiting, and not a caller who comes for the first time.
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

from fairlead.api.pace import Pace
from fairlead.changes.identity import DEFAULT_PROJECT, LONGEST_PROJECT, Identity
from fairlead.store.fair_semaphore import FairSemaphore, Gone, TooMany

ROLES = frozenset(
    {
        *("admin", "member", "reader", "service"),
        *("load-balancer_admin", "load-balancer_global_observer", "load-balancer_member"),
        *("load-balancer_observer", "load-balancer_quota_admin"),
    }
)
"""Keystone's, and the older ones that Octavia has of its own."""
REMEMBERED = 10_000
CHECKS_AT_ONCE = max(1, min(2, (os.cpu_count() or 2) - 1))
"""The others' requests must not wait for bcrypt: it has a thread, and one processor stays free."""
WAITING, WAITING_IN_ALL = 16, 256
"""Checks that wait, of one address and of all."""
CHECK_PATIENCE = 10.0
"""Seconds for which a check waits for its turn."""
FAILURES = 30
"""That an address has at once; each comes back after FORGIVEN seconds."""
FORGIVEN = 2.0
BCRYPT = re.compile(r"^\$2[abxy]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}$")
BY_CERTIFICATE = "certificate"
"""Instead of a hash."""
LONGEST_USER = 255


class BadPasswordFile(Exception):
    """The message names the file, the line and what would be right."""


class TooManyChecks(Exception):
    """Of this address: it may come again after so many seconds."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"try again in {seconds} s")
        self.seconds = seconds


class NobodyToAsk(Exception):
    """Who calls cannot be found out now; it may be tried again after so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"try again in {seconds:.0f} s")
        self.seconds = seconds


class SpeaksForNone(Exception):
    """It is known who calls, and they speak for no project."""


class NotValidNow(Exception):
    """The certificate of the caller has expired, or is not valid yet; the message says whose and since when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginAttempt:
    """What a caller says of itself, and what is seen of it."""

    authorization: str | None = None
    token: str | None = field(default=None, repr=False)
    """The header X-Auth-Token."""
    project_id: str | None = None
    """The header X-Project-Id."""
    address: str = ""
    """As it is counted (`acceptor.counted_as`)."""
    gone: asyncio.Event | None = None
    """Set when it hangs up."""
    query: str = ""
    """Of the URL."""
    certificate: bytes | None = None
    """DER, of the client, where the listener asks for one: they have shown that they have its key. On the listener of
    all doors an authority of ours vouches for it; on LXD's nobody does."""


Authenticate: TypeAlias = Callable[[LoginAttempt], Awaitable[Identity | None]]
"""The caller; None when they have to say who they are. Raises TooManyChecks, NobodyToAsk, SpeaksForNone, NotValidNow,
and Gone when they have hung up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    identity: Identity
    hash: bytes
    """Of no password: they show a certificate."""


async def anybody(attempt: LoginAttempt) -> Identity | None:
    """No authentication: everybody is the administrator, of the project that they name."""
    named = "".join(filter(str.isprintable, attempt.project_id or ""))
    return Identity(user="anybody", project_id=named[:LONGEST_PROJECT] or DEFAULT_PROJECT, roles=ROLES)


class Failures(Pace):
    """The failures of each address lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(FAILURES, FORGIVEN, clock)


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
        roles = frozenset(parts[3].split(",")) if len(parts) in (4, 5) else frozenset()
        chassis = frozenset(parts[4].split(",")) if len(parts) == 5 else frozenset()
        if parts[0] in users:
            raise BadPasswordFile(f"{path}:{number}: the user is there already")
        if "" in chassis or (chassis and "service" not in roles):
            raise BadPasswordFile(f"{path}:{number}: the fifth column names chassis, of a user with the role service")
        has_form = parts[1:2] == [BY_CERTIFICATE] or bool(parts[1:] and BCRYPT.match(parts[1]))
        if not roles or not has_form or not roles <= ROLES or len(parts[2]) > LONGEST_PROJECT:
            raise BadPasswordFile(
                f"{path}:{number}: a line is user:bcrypt hash:project:role,role, and for an agent :chassis,chassis;"
                f" roles are {', '.join(sorted(ROLES))}"
            )
        identity = Identity(user=parts[0], project_id=parts[2], roles=roles, chassis=chassis)
        users[parts[0]] = User(identity=identity, hash=b"" if parts[1] == BY_CERTIFICATE else parts[1].encode())
    return users


class HttpBasic:
    """Checks a caller against the users of a password file."""

    def __init__(self, users: dict[str, User]) -> None:
        self.failures = Failures()
        self._turns = FairSemaphore(
            at_once=CHECKS_AT_ONCE, of_one=CHECKS_AT_ONCE, waiting=WAITING, in_all=WAITING_IN_ALL
        )
        self._key = secrets.token_bytes(32)
        self._users, self._dummy = users, _make_dummy(users)
        self._right: dict[bytes, Identity] = {}

    async def replace(self, users: dict[str, User]) -> None:
        """From now on these; what was right before has to be shown again."""
        dummy = await asyncio.to_thread(_make_dummy, users)
        self._users, self._dummy, self._right = users, dummy, {}

    async def __call__(self, attempt: LoginAttempt) -> Identity | None:
        credentials = read_credentials(attempt.authorization)
        if credentials is None:
            return self._shown(attempt.certificate) if attempt.authorization is None else None
        name, password = credentials
        digest = hmac.digest(self._key, name.encode() + b"\0" + password, "sha256")
        if digest in self._right:
            return self._right[digest]
        self._refuse_after_failures(attempt.address)
        try:
            async with self._turns.turn(attempt.address, CHECK_PATIENCE, attempt.gone):
                if attempt.gone is not None and attempt.gone.is_set():
                    raise Gone
                self._refuse_after_failures(attempt.address)  # those before it in the line may have failed
                return await self._check(name, password, digest, attempt.address)
        except (TooMany, TimeoutError):
            raise TooManyChecks(1) from None

    def _shown(self, certificate: bytes | None) -> Identity | None:
        """Whose name is in a certificate that was vouched for. Looked up at each request: who is taken out of the file
        comes in no more."""
        user = None if certificate is None else self._users.get(common_name(certificate))
        return user.identity if user is not None and not user.hash else None

    def _refuse_after_failures(self, address: str) -> None:
        """Raises TooManyChecks when this address has failed too often lately."""
        wait = self.failures.wait(address)
        if wait > 0:
            raise TooManyChecks(int(wait) + 1)

    async def _check(self, name: str, password: bytes, digest: bytes, address: str) -> Identity | None:
        user, right_ones = self._users.get(name), self._right
        # a name that is not there costs the same time as one that is
        hashed = user.hash if user and user.hash else self._dummy
        right = await asyncio.to_thread(bcrypt.checkpw, password[:72], hashed) and hashed is not self._dummy
        if user is None or not right:
            self.failures.add(address)
            return None
        if len(right_ones) >= REMEMBERED:
            right_ones.clear()
        right_ones[digest] = user.identity  # of the users that it was checked against: they may be others by now
        return user.identity if self._users.get(name) == user else None


def _make_dummy(users: dict[str, User]) -> bytes:
    costs = [int(user.hash.split(b"$")[2]) for user in users.values() if user.hash]
    return bcrypt.hashpw(b"nobody", bcrypt.gensalt(max(costs, default=4)))


def common_name(certificate: bytes) -> str:
    """Of its subject; empty for one that has not just one."""
    try:
        names = x509.load_der_x509_certificate(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(names[0].value) if len(names) == 1 else ""
    except ValueError:
        return ""


def read_credentials(authorization: str | None) -> tuple[str, bytes] | None:
    """User and password of HTTP basic; None when it is none."""
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
        return (name.decode(), password) if colon and b"\0" not in password else None
    except ValueError:  # not base64, or not text
        return None

"""Access control before any API front end: admission, authentication, request limits per project, and the audit log.

* Without authentication every caller is an administrator and only the loopback address protects the server. A browser
  on the same machine is inside that boundary, with every page it shows. Host must therefore be an address the server
  listens on (a DNS rebinding attack sends its own host name), and cross-site requests are rejected.
* A project has a limited number of concurrent requests. More requests wait in a bounded queue of the project. An
  administrator has a separate queue in each project. While a body is being received, the request occupies only a slot
  of its sender.
* Each change and each failed log-in writes one bounded audit line: caller, address, request and result.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from ipaddress import ip_address
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead.api.http.acceptor import connection_key
from fairlead.api.http.authentication import (
    MAX_USER_LENGTH,
    Authenticate,
    ClientCertificateNotValid,
    IdentityProviderUnavailable,
    LoginAttempt,
    NoProjectScope,
    TooManyLogins,
    read_credentials,
)
from fairlead.api.http.front_end import ApiError, json_response
from fairlead.api.keys import CALLER_CREDENTIALS
from fairlead.changes.identity import Identity
from fairlead.keystores.interface import Requester
from fairlead.reconciler.loop import CAUSE
from fairlead.runtime.fair_semaphore import ClientDisconnected, FairSemaphore
from fairlead.runtime.logging import AUDIT, RateLimit, TokenBucket, sanitize
from fairlead.store.model import CHANGED_OWNERS, REQUEST_PROJECT

LOG = logging.getLogger(__name__)
AUDIT_LOG = logging.getLogger(AUDIT)
UNAUTHENTICATED_LOG = logging.getLogger(f"{__name__}.strangers")
"""Rate-limited log of unauthenticated requests."""
UNAUTHENTICATED_PER_MINUTE, FAILED_LOGINS_A_MINUTE = 60, 120
MAX_PATH_LENGTH = 200
"""Maximum characters of a path in the log."""
MAX_LOGGED_OBJECTS = 20
"""Maximum objects named in an audit line; the rest is counted."""
MAX_CONCURRENT, MAX_QUEUED = 8, 64
"""Maximum concurrent and queued requests of a project; reads and writes count separately."""
MAX_QUEUED_REPORTS = 4000
"""Maximum queued reports of nodes, which may share one user and arrive together."""
QUEUE_TIMEOUT = 10.0
"""Maximum seconds in a queue."""
LOG_FORMAT = (
    "%(request)s %(method)s %(path)s by %(user)r of %(project)r from %(from)s: %(status)s in %(milliseconds)s ms"
)
READS = frozenset({"GET", "HEAD", "OPTIONS"})
HEALTH_PATHS = frozenset({"/healthz", "/readyz"})
"""Health endpoints; they answer every caller, for any Host."""
NO_PROJECT = "The token has no project scope. Log in with a project, or with system scope."
UNAUTHENTICATED = Identity(user="", project_id="", roles=frozenset())
UNAUTHENTICATED_LOG.addFilter(RateLimit(UNAUTHENTICATED_PER_MINUTE))


def names_of(listen: str, more: Iterable[str], tls: bool) -> frozenset[str]:
    """Return the valid Host headers of an address: the address with its port, loopback names if it is a loopback
    address, and `more`. The default port of the scheme may be omitted (RFC 9110, section 4.2)."""
    host, _, port = listen.rpartition(":")
    hosts = {host.lower()}
    if host == "localhost" or _is_loopback(host):
        hosts |= {"localhost", "127.0.0.1", "[::1]"}
    found = {f"{each}:{port}" for each in hosts} | {each.lower() for each in more}
    return frozenset(found | (hosts if port == ("443" if tls else "80") else set()))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(kw_only=True)
class RequestRecord:
    """Request state for logs, metrics and audit."""

    scope: Scope
    id: str
    address: str
    began: float = field(default_factory=perf_counter)
    caller: Identity | None = None
    objects: list[str] = field(default_factory=list)
    """Owners changed by the request."""
    claimed: str = ""
    """User name of a failed log-in."""
    waited: list[float] = field(default_factory=list)
    """Seconds spent in long polls, which do not count as latency."""
    is_unauthenticated: bool = False
    """The request was not authenticated: rejected, or for a public path."""
    delayed: bool = False
    """The request has waited, or waits, in a queue of its project or user."""

    @property
    def named_objects(self) -> list[str]:
        more = len(self.objects) - MAX_LOGGED_OBJECTS
        return [*self.objects[:MAX_LOGGED_OBJECTS], *([f"and {more} more"] if more > 0 else [])]

    def audit_fields(self, status: int) -> dict[str, object]:
        return {
            "request": self.id,
            "method": self.scope["method"],
            "path": sanitize(self.scope["raw_path"].decode("latin-1"), MAX_PATH_LENGTH),
            "user": self.caller.user if self.caller else sanitize(self.claimed, MAX_USER_LENGTH),
            "project": self.caller.project_id if self.caller else "",
            "roles": sorted(self.caller.roles) if self.caller else [],
            "from": self.address,
            "status": status,
            "milliseconds": round((perf_counter() - self.began) * 1000, 1),
            "objects": self.named_objects,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """Answered request, for the metrics."""

    path: str
    method: str
    status: int
    seconds: float
    """Duration without long polls."""
    delayed: bool
    """The request waited in a queue of its project or user, and was not refused (429)."""


BASIC = 'Basic realm="fairlead"'
"""WWW-Authenticate header of HTTP basic (RFC 7617)."""


def _plain(message: str, status: int) -> Response:
    return json_response({"error": message}, status)


def _plain_fault(_: str, error: ApiError) -> Response:
    return _plain(error.message, error.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPolicy:
    """Access policy of a listening socket."""

    authenticate: Authenticate
    names: frozenset[str] | None = None
    """Valid Host headers (`names_of`); None for any."""
    public: frozenset[str] = frozenset({"", *HEALTH_PATHS})
    """Paths that need no authentication, without a trailing slash."""
    refusal: Callable[[str, int], Response] = _plain
    """Function that formats the rejection of a request before any front end."""
    fault: Callable[[str, ApiError], Response] = _plain_fault
    """Function that formats an error for the front end of a path."""
    challenge: str = BASIC
    """Header WWW-Authenticate for requests without credentials."""


class ConcurrencyLimits:
    """Concurrency limits per project, shared by all listening sockets."""

    def __init__(self) -> None:
        self._reads = FairSemaphore(of_one=MAX_CONCURRENT, waiting=MAX_QUEUED)
        self._writes = FairSemaphore(of_one=MAX_CONCURRENT, waiting=MAX_QUEUED)
        self._nodes = FairSemaphore(of_one=MAX_CONCURRENT, waiting=MAX_QUEUED_REPORTS)
        self._own = FairSemaphore(of_one=MAX_CONCURRENT, waiting=MAX_QUEUED)

    def of(self, scope: Scope) -> FairSemaphore:
        if scope["path"].startswith("/agent/"):
            return self._nodes
        return self._reads if scope["method"] in READS else self._writes

    def enter(self, record: RequestRecord, line: str) -> AbstractAsyncContextManager[None]:
        """A turn among the requests of this line. Raises what `FairSemaphore.turn` does."""
        return _noted(self.of(record.scope), record, line)

    def take_own(self, record: RequestRecord, line: str) -> AbstractAsyncContextManager[None]:
        """A turn for receiving the body; the line is the user's, so that a slow body delays only its sender. Raises
        what `FairSemaphore.turn` does."""
        return _noted(self._own, record, line)


def _noted(turns: FairSemaphore, record: RequestRecord, line: str) -> AbstractAsyncContextManager[None]:
    """Return a context that holds a concurrency slot for the request, and record whether the request must wait."""
    record.delayed = record.delayed or not turns.has_room(line)
    return turns.turn(line, QUEUE_TIMEOUT, _disconnect_event(record.scope))


class AccessControl:
    """Outermost ASGI application of a listening socket."""

    def __init__(
        self,
        app: ASGIApp,
        way: AccessPolicy,
        new_id: Callable[[], str],
        observe: Callable[[Answered], None],
        turns: ConcurrencyLimits,
    ) -> None:
        self._app = app
        self._policy = way
        self._new_id = new_id
        self._observe = observe
        self._turns = turns
        self._failed = TokenBucket(FAILED_LOGINS_A_MINUTE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope.setdefault("method", "GET")  # a WebSocket scope has no method
        client = scope.get("client")
        record = RequestRecord(scope=scope, id=f"req-{self._new_id()}", address=client[0] if client else "")
        CAUSE.set(record.id)
        CHANGED_OWNERS.set(record.objects)

        async def send_with_id(message: Any) -> None:
            if message["type"] == "websocket.accept":
                self._log_request(record, 101)
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = [*message["headers"], (b"x-openstack-request-id", record.id.encode())]
                if message["status"] == 429 and not any(name == b"retry-after" for name, _ in headers):
                    headers.append((b"retry-after", b"1"))
                message["headers"] = headers
                self._log_request(record, message["status"])
            await send(message)

        answer = await self._receive(record, dict(scope["headers"]))
        if answer is not None:
            await answer(scope, receive, send_with_id)
            return
        await self._app(self._admitted(record), receive, send_with_id)

    async def _receive(self, record: RequestRecord, headers: Mapping[bytes, bytes]) -> Response | None:
        """Authenticate the request. Return the rejection, or None after setting the caller."""
        path = record.scope["path"].rstrip("/")
        record.is_unauthenticated = True
        if path not in HEALTH_PATHS and (reason := self._rejection_reason(headers)):
            return self._policy.refusal(reason, 403)
        if path in self._policy.public:
            record.caller = UNAUTHENTICATED
            return None
        try:
            record.caller = await self._policy.authenticate(_login_attempt(record, headers))
        except TooManyLogins as error:
            return _too_many_checks(error.seconds)
        except IdentityProviderUnavailable as error:
            return self._provider_unavailable(path, error.seconds)
        except ClientCertificateNotValid as error:
            return self._policy.fault(path, ApiError(401, str(error), "Unauthorized"))
        except NoProjectScope:
            return self._policy.fault(path, ApiError(403, NO_PROJECT, "PolicyNotAuthorized"))
        except ClientDisconnected:
            return Response(status_code=400)  # the client is gone
        if record.caller is None:
            credentials = read_credentials(_header(headers, b"authorization"))
            record.claimed = credentials[0] if credentials else ""
            return _unauthorized(self._policy.challenge)
        record.is_unauthenticated = not record.caller.roles
        return None

    def _provider_unavailable(self, path: str, seconds: float) -> Response:
        text = "The identity service does not respond, so the request cannot be authenticated. It was not processed."
        response = self._policy.fault(path, ApiError(503, text, "HTTPServiceUnavailable"))
        response.headers["retry-after"] = str(math.ceil(seconds))
        return response

    def _rejection_reason(self, headers: Mapping[bytes, bytes]) -> str:
        """Return the reason to reject a request that may be cross-site or for another host; empty if there is none."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        names = self._policy.names
        if names is not None and host not in names:
            allowed = ", ".join(sorted(names))
            return f"Host '{sanitize(host, 100)}' is not allowed; without authentication it must be one of: {allowed}"
        if headers.get(b"sec-fetch-site", b"none").lower() not in (b"none", b"same-origin"):
            return "cross-site requests are rejected"
        if (origin := headers.get(b"origin")) is not None and not _is_same_site(origin.decode("latin-1"), host):
            return "cross-site requests are rejected"
        return ""

    def _admitted(self, record: RequestRecord) -> Scope:
        caller, scope = record.caller, record.scope
        assert caller is not None  # noqa: S101 - _receive has seen to it
        REQUEST_PROJECT.set(caller.project_id)
        CALLER_CREDENTIALS.set(Requester(token=_header(dict(scope["headers"]), b"x-auth-token") or ""))
        admitted = {**scope, "identity": caller, "request_id": record.id, "waited": record.waited}
        if caller is not UNAUTHENTICATED:
            line = _queue_key(caller, record.address)
            own = f"{line}\0{caller.user}\0{_node(scope)}"
            admitted["turn"] = lambda: self._turns.enter(record, line)
            admitted["own_turn"] = lambda: self._turns.take_own(record, own)
        return admitted

    def _log_request(self, record: RequestRecord, status: int) -> None:
        facts = record.audit_fields(status)
        self._observe(
            Answered(
                path=record.scope["path"],
                method=record.scope["method"],
                status=status,
                seconds=perf_counter() - record.began - sum(record.waited),
                delayed=record.delayed and status != 429,
            )
        )
        if record.is_unauthenticated and status >= 400 and record.caller and record.caller is not UNAUTHENTICATED:
            record.claimed = record.caller.user if record.scope["method"] not in READS else ""
        if record.claimed:
            self._log_failed_login({**facts, "user": sanitize(record.claimed, MAX_USER_LENGTH)})
        elif record.is_unauthenticated and not record.objects:
            if status >= 400:
                UNAUTHENTICATED_LOG.info(LOG_FORMAT, facts, extra={"fields": facts})
        elif record.scope["path"].startswith("/agent/") and status < 400:
            LOG.debug(LOG_FORMAT, facts, extra={"fields": facts})  # every node reports every few seconds
        elif record.scope["method"] not in READS:
            named = ", ".join(record.named_objects)
            words = f"{LOG_FORMAT}: %(named)s" if named else LOG_FORMAT
            AUDIT_LOG.info(words, {**facts, "named": named}, extra={"fields": facts})
        elif status >= 400:
            LOG.info(LOG_FORMAT, facts, extra={"fields": facts})

    def _log_failed_login(self, facts: dict[str, object]) -> None:
        left_out = self._failed.rejected
        if self._failed.take():
            words = "%(request)s login failed: %(user)r from %(from)s at %(method)s %(path)s"
            facts = {**facts, "log_in": "failed", "left_out": left_out}
            words = f"{words} (and {left_out} more)" if left_out else words
            AUDIT_LOG.warning(words, facts, extra={"fields": facts})
            self._failed.rejected = 0


def _queue_key(caller: Identity, address: str) -> str:
    """Return the queue key of a request. Unauthenticated callers share the queue of their address, so that no project
    waits for them. An administrator does not wait for tenants of the project, because the request may be meant to stop
    them."""
    if not caller.roles:
        return f"address {connection_key(address)}"
    return f"{caller.user}\0{caller.project_id}" if caller.is_admin else caller.project_id or f"user {caller.user}"


def _node(scope: Scope) -> str:
    """Return the path for a report of a node, because all nodes may share one user; otherwise empty."""
    path: str = scope["path"]
    return path if path.startswith("/agent/") else ""


def _login_attempt(record: RequestRecord, headers: Mapping[bytes, bytes]) -> LoginAttempt:
    return LoginAttempt(
        authorization=_header(headers, b"authorization"),
        token=_header(headers, b"x-auth-token"),
        project_id=_header(headers, b"x-project-id"),
        address=connection_key(record.address),
        disconnected=_disconnect_event(record.scope),
        query=record.scope["query_string"].decode("latin-1"),
        certificate=record.scope.get("extensions", {}).get("fairlead.certificate", {}).get("der"),
    )


def _disconnect_event(scope: Scope) -> Any:
    """Return the event that is set when the client disconnects, if the server provides one."""
    return scope.get("extensions", {}).get("fairlead.gone", {}).get("event")


def _is_same_site(origin: str, host: str) -> bool:
    """Return whether the Origin (RFC 6454) has the host of the request."""
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == host
    except ValueError:  # "http://[", which no browser sends
        return False


def _unauthorized(challenge: str) -> Response:
    """Return 401 with the text of keystonemiddleware (auth_token)."""
    response = _keystone_error(401, "Unauthorized", "The request you have made requires authentication.")
    response.headers["www-authenticate"] = challenge
    return response


def _too_many_checks(seconds: int) -> Response:
    text = (
        "Too many passwords or tokens of this address were wrong or are waiting for validation."
        " Credentials that were valid before are accepted."
    )
    response = _keystone_error(429, "Too Many Requests", text)
    response.headers["retry-after"] = str(seconds)
    return response


def _keystone_error(code: int, title: str, message: str) -> Response:
    return json_response({"error": {"code": code, "title": title, "message": message}}, code)


def _header(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")

"""Keystone client with the service user's token (Identity API v3, Authentication and token management).

Only a 200 validates a token, and only a 404 rejects it (invalid, expired, revoked, or of a disabled project or user).
Any other response leaves the token's validity unknown. While Keystone is unavailable one request at a time probes it;
all others fail immediately.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from fairlead.api.http.authentication import IdentityProviderUnavailable
from fairlead.api.keystone.token_responses import NotUnderstood, ValidToken, may_validate, read_own, read_token
from fairlead.http.client import HttpEndpoint, HttpResponse, NoAnswer, send_request
from fairlead.runtime.logging import RateLimit

LOG = logging.getLogger(__name__)
UNEXPECTED_LOG = logging.getLogger(f"{__name__}.odd")
"""Rate-limited log of unexpected responses, which a crafted token may cause."""
UNEXPECTED_LOG.addFilter(RateLimit(10))
TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
"""Valid token: printable without spaces. Keystone's tokens have some hundred characters: 183 (fernet), 700 (JWS)."""
VALIDATION_TIMEOUT = 8.0
"""Timeout of a validation in seconds, including a log-in of the service user."""
UNAVAILABLE_RETRY_SECONDS, MISUSED_SECONDS = 2.0, 20.0
"""Retry intervals in seconds: after no response, and after a rejection of the service user, which must not be locked
out."""
MARGIN = 60.0
"""Seconds before its expiry at which the service user's token is replaced."""
UNAVAILABLE_STATUSES = frozenset({502, 503, 504})


class UnexpectedResponse(IdentityProviderUnavailable):
    """Keystone's response does not determine the token's validity."""


class ServiceUserRejected(Exception):
    """Keystone rejects the service user or URL; the message names the option to check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceUser:
    """Service user of this deployment."""

    name: str
    password: str = field(repr=False)
    project: str
    user_domain: str
    project_domain: str

    def __str__(self) -> str:
        return f"user '{self.name}' of project '{self.project}'"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnToken:
    text: str = field(repr=False)
    user_id: str
    until: float
    """Time of replacement, by the monotonic clock."""
    may_validate: bool


class Keystone:
    def __init__(self, place: HttpEndpoint, user: ServiceUser, clock: Callable[[], float] = time.monotonic) -> None:
        self._endpoint, self._user = place, user
        self._clock = clock
        self._own: OwnToken | None = None
        self._logging_in: asyncio.Task[OwnToken] | None = None
        self._outage_reason, self._retry_at = "", 0.0
        """Reason why Keystone is unavailable, and the time of the next attempt."""
        self._is_retrying = False

    @property
    def is_available(self) -> bool:
        """True if the last request to Keystone succeeded, or none was made."""
        return not self._outage_reason

    def replace(self, place: HttpEndpoint, user: ServiceUser) -> None:
        """Replace the endpoint and the service user."""
        self._endpoint, self._user = place, user
        self._own = self._logging_in = None
        self._outage_reason = ""

    async def check(self) -> None:
        """Log in and check the service user's roles. Raises Misused, NotTrusted; NoAnswer if Keystone is
        unavailable."""
        own = await self._log_in()
        if not own.may_validate:
            raise ServiceUserRejected(f"{self._user} is not allowed to validate tokens: grant it the role 'service'")
        self._own = own

    async def validate(self, token: str) -> ValidToken | None:
        """Validate a token; None if it is rejected. Raises NobodyToAsk."""
        if self._outage_reason and (self._is_retrying or self._clock() < self._retry_at):
            raise IdentityProviderUnavailable(UNAVAILABLE_RETRY_SECONDS)
        self._is_retrying = bool(self._outage_reason)
        try:
            async with asyncio.timeout(VALIDATION_TIMEOUT):
                found = await self._validate(token)
        except TimeoutError:
            raise self._record_outage("connection timed out", UNAVAILABLE_RETRY_SECONDS) from None
        except NoAnswer as error:
            raise self._record_outage(str(error), UNAVAILABLE_RETRY_SECONDS) from None
        except ServiceUserRejected as error:
            raise self._record_outage(str(error), MISUSED_SECONDS) from None
        finally:
            self._is_retrying = False
        if self._outage_reason:
            LOG.info("Keystone at %s responds again", self._endpoint.url)
            self._outage_reason = ""
        return found

    def _record_outage(self, why: str, seconds: float) -> IdentityProviderUnavailable:
        if why != self._outage_reason:
            LOG.error("Keystone at %s: %s; requests with tokens that are not cached get 503", self._endpoint.url, why)
        self._outage_reason, self._retry_at = why, self._clock() + seconds
        return IdentityProviderUnavailable(UNAVAILABLE_RETRY_SECONDS)

    async def _validate(self, token: str) -> ValidToken | None:
        own = await self.own_token()
        answer = await self._ask_about(token, own)
        if answer.status == 401:  # the service user's token is rejected
            own = await self.own_token(instead_of=own)
            answer = await self._ask_about(token, own)
        match answer.status:
            case 200:
                return self._read(answer)
            case 404:
                return None
            case 401 | 403:
                raise ServiceUserRejected(
                    f"{self._user} is not allowed to validate tokens: grant it the role 'service'"
                )
            case status if status in UNAVAILABLE_STATUSES:
                raise NoAnswer(f"it returned status {status}")
        raise self._unexpected_response(answer)

    def _read(self, answer: HttpResponse) -> ValidToken:
        try:
            return read_token(answer.body)
        except NotUnderstood:
            raise self._unexpected_response(answer) from None

    def _unexpected_response(self, answer: HttpResponse) -> UnexpectedResponse:
        UNEXPECTED_LOG.warning(
            "Keystone at %s: cannot parse the response with status %d to a token validation",
            self._endpoint.url,
            answer.status,
        )
        return UnexpectedResponse(UNAVAILABLE_RETRY_SECONDS)

    async def _ask_about(self, token: str, own: OwnToken) -> HttpResponse:
        headers = {"X-Auth-Token": own.text, "X-Subject-Token": token}
        return await send_request(self._endpoint, "GET /auth/tokens?nocatalog", headers)

    async def own_token(self, instead_of: OwnToken | None = None) -> OwnToken:
        """Return the service user's token. Concurrent callers share one log-in and its failure. Raises Misused,
        NoAnswer."""
        if self._own is None or self._own is instead_of or self._clock() >= self._own.until:
            if self._logging_in is None or self._logging_in.done():
                self._logging_in = asyncio.create_task(self._log_in())
                self._logging_in.add_done_callback(_retrieve_result)
            self._own = await asyncio.shield(self._logging_in)
        return self._own

    async def _log_in(self) -> OwnToken:
        """Log in as the service user. Raises Misused, NoAnswer."""
        answer = await send_request(self._endpoint, "POST /auth/tokens?nocatalog", {}, _login(self._user))
        match answer.status:
            case 201:
                return self._read_own(answer)
            case 401 | 403:
                raise ServiceUserRejected(
                    f"it rejects {self._user}: check keystone.user, keystone.password_file, keystone.project and their"
                    " domains, and that the user has a role in the project"
                )
            case status if status >= 500 or status == 429:
                raise NoAnswer(f"it returned status {status}")
        raise ServiceUserRejected(
            f"it returned status {answer.status} to a login: keystone.url must be the URL of the Identity API v3"
        )

    def _read_own(self, answer: HttpResponse) -> OwnToken:
        text = answer.headers.get("x-subject-token", "")
        try:
            user, ends = read_own(answer.body)
            seconds = (ends - datetime.now(UTC)).total_seconds()
            may = may_validate(answer.body)
        except NotUnderstood:
            text = ""
        if not TOKEN.fullmatch(text):
            raise ServiceUserRejected(
                "its response to a login has no token: keystone.url must be the URL of the Identity API v3"
            )
        # with a minimum lifetime in spite of clock skew, to avoid a log-in per request
        return OwnToken(text=text, user_id=user, until=self._clock() + max(seconds - MARGIN, MARGIN), may_validate=may)


def _retrieve_result(task: "asyncio.Task[OwnToken]") -> None:
    """Retrieve the result of a log-in, so that asyncio does not warn if no caller waits for it."""
    if not task.cancelled():
        task.exception()


def _login(user: ServiceUser) -> bytes:
    who = {"name": user.name, "domain": {"name": user.user_domain}, "password": user.password}
    scope = {"project": {"name": user.project, "domain": {"name": user.project_domain}}}
    identity = {"methods": ["password"], "password": {"user": who}}
    return msgspec.json.encode({"auth": {"identity": identity, "scope": scope}})

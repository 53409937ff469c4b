"""Authentication of callers by token, from the cache or by Keystone.

A cached token never waits. Other tokens are validated in turns by address, in bounded queues, with one request for
concurrent callers of the same token. Rejected tokens delay their address. A user with a recently valid token has a
separate turn and does not wait for unknown callers. Clients with invalid tokens therefore delay only their own address.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from fairlead.api.http.authentication import (
    Authenticate,
    IdentityProviderUnavailable,
    LoginAttempt,
    NoProjectScope,
    TooManyLogins,
)
from fairlead.api.http.rate_limit import RateLimiter, retry_after
from fairlead.api.keystone.cache import CachedToken, TokenCache
from fairlead.api.keystone.client import TOKEN, UNAVAILABLE_RETRY_SECONDS, Keystone, UnexpectedResponse
from fairlead.api.keystone.counters import CacheHit, TokenCounters, ValidationResult
from fairlead.changes.identity import Identity
from fairlead.runtime.fair_semaphore import FairSemaphore, WaitQueueFull, wait_unless_gone

MAX_CONCURRENT, MAX_CONCURRENT_PER_KEY = 6, 3
"""Maximum concurrent requests to Keystone: in total and per address for unknown tokens, in total and per user for
recently valid ones."""
MAX_QUEUED, MAX_QUEUED_TOTAL = 16, 256
"""Maximum queued requests: per address or user, and in total."""
QUEUE_TIMEOUT = 10.0
"""Maximum seconds for which a request is queued."""
FAILURES, FAILURE_RECOVERY_SECONDS = 60, 0.5
"""Rate limit of rejected tokens per address: burst size, and seconds until one unit is available again. Many users may
share an address, and after an idle hour each client sends an expired token."""


_Ask: TypeAlias = Callable[[], Coroutine[Any, Any, Identity | None]]


@dataclass(slots=True, eq=False)
class _PendingValidation:
    """Validation in progress, shared by concurrent callers of the token."""

    task: "asyncio.Task[Identity | None]"
    waiters: int = 0


class KeystoneTokens:
    """Authenticate callers with tokens; requests without one are passed to `others`."""

    def __init__(
        self,
        keystone: Keystone,
        memory: TokenCache,
        others: Authenticate | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keystone = keystone
        self.cache = memory
        self.others = others
        self.failures = RateLimiter(FAILURES, FAILURE_RECOVERY_SECONDS, clock)
        self.counters = TokenCounters()
        self._clock = clock
        self._unknown_tokens = _make_queue()
        self._known = _make_queue()
        self._pending: dict[bytes, _PendingValidation] = {}

    async def __call__(self, attempt: LoginAttempt) -> Identity | None:
        """Authenticate a request. Raises the exceptions of `Authenticate`."""
        if attempt.token is None:
            return await self.others(attempt) if self.others else None
        found = await self._find(attempt.token, attempt) if TOKEN.fullmatch(attempt.token) else None
        if found is not None and not found.project_id and not found.system:
            raise NoProjectScope
        return found

    async def _find(self, token: str, attempt: LoginAttempt) -> Identity | None:
        digest = self.cache.digest(token)
        known = self.cache.find(digest)
        if known is not None and self.cache.is_fresh(known):
            self.counters.cache_hits[CacheHit.FRESH] += 1
            return known.identity
        if self.cache.is_refused(digest):
            self.counters.cache_hits[CacheHit.REFUSED] += 1
            return None
        try:
            return await self._join_validation(
                digest, lambda: self._validate_in_turn(digest, token, attempt.address, known), attempt.disconnected
            )
        except IdentityProviderUnavailable:
            if known is None:
                raise
            self.counters.cache_hits[CacheHit.OUTAGE] += 1
            return known.identity

    async def _join_validation(self, digest: bytes, ask: _Ask, gone: asyncio.Event | None) -> Identity | None:
        """Share one validation between callers of the same token; it is cancelled when all of them have disconnected.
        Raises Gone."""
        question = self._pending.get(digest)
        if question is None:
            question = self._pending[digest] = _PendingValidation(asyncio.create_task(ask()))
        question.waiters += 1
        try:
            await wait_unless_gone(question.task, gone)
            return question.task.result()
        finally:
            question.waiters -= 1
            if not question.waiters:
                del self._pending[digest]
                question.task.cancel()

    async def _validate_in_turn(
        self, digest: bytes, token: str, address: str, known: CachedToken | None
    ) -> Identity | None:
        line, key = (self._unknown_tokens, address) if known is None else (self._known, known.identity.user)
        if known is None:
            self._refuse_after_failures(address)
        try:
            async with line.turn(key, QUEUE_TIMEOUT):
                if known is None:
                    self._refuse_after_failures(address)  # earlier requests of this address may have failed
                return await self._validate(digest, token, address)
        except WaitQueueFull:
            raise TooManyLogins(1) from None
        except TimeoutError:
            raise IdentityProviderUnavailable(UNAVAILABLE_RETRY_SECONDS) from None

    async def _validate(self, digest: bytes, token: str, address: str) -> Identity | None:
        began, outcome = self._clock(), ValidationResult.NO_RESPONSE
        try:
            found = await self.keystone.validate(token)
            outcome = ValidationResult.REFUSED if found is None else ValidationResult.VALID
        except UnexpectedResponse:
            self.failures.add(address)
            raise
        finally:
            self.counters.requests[outcome] += 1
            self.counters.seconds += self._clock() - began
        if found is None:
            self.failures.add(address)
            self.cache.refuse(digest)
            return None
        self.cache.add(digest, found.identity, (found.ends - datetime.now(UTC)).total_seconds())
        return found.identity

    def _refuse_after_failures(self, address: str) -> None:
        """Raise TooManyChecks if too many tokens of this address were rejected."""
        wait = self.failures.wait(address)
        if wait > 0:
            raise TooManyLogins(retry_after(wait))


def _make_queue() -> FairSemaphore:
    return FairSemaphore(
        at_once=MAX_CONCURRENT, of_one=MAX_CONCURRENT_PER_KEY, waiting=MAX_QUEUED, in_all=MAX_QUEUED_TOTAL
    )

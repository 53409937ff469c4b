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

from fairlead.api.http.authentication import Authenticate, LoginAttempt, NobodyToAsk, SpeaksForNone, TooManyChecks
from fairlead.api.http.rate_limit import Pace, retry_after
from fairlead.api.keystone.cache import Memory, Remembered
from fairlead.api.keystone.client import AWAY_SECONDS, TOKEN, Keystone, OddAnswer
from fairlead.api.keystone.counters import Asked, Known, TokenFigures
from fairlead.changes.identity import Identity
from fairlead.runtime.fair_semaphore import FairSemaphore, TooMany, unless_gone

AT_ONCE, OF_ONE = 6, 3
"""Maximum concurrent requests to Keystone: in total and per address for unknown tokens, in total and per user for
recently valid ones."""
WAITING, WAITING_IN_ALL = 16, 256
"""Maximum queued requests: per address or user, and in total."""
LINE_PATIENCE = 10.0
"""Maximum seconds for which a request is queued."""
FAILURES, FORGIVEN = 60, 0.5
"""Rate limit of rejected tokens per address: burst size, and seconds until one unit is available again. Many users may
share an address, and after an idle hour each client sends an expired token."""


_Ask: TypeAlias = Callable[[], Coroutine[Any, Any, Identity | None]]


@dataclass(slots=True, eq=False)
class _Question:
    """Validation in progress, shared by concurrent callers of the token."""

    task: "asyncio.Task[Identity | None]"
    asking: int = 0


class KeystoneTokens:
    """Authenticate callers with tokens; requests without one are passed to `others`."""

    def __init__(
        self,
        keystone: Keystone,
        memory: Memory,
        others: Authenticate | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keystone = keystone
        self.memory = memory
        self.others = others
        self.failures = Pace(FAILURES, FORGIVEN, clock)
        self.figures = TokenFigures()
        self._clock = clock
        self._strangers = _line()
        self._known = _line()
        self._questions: dict[bytes, _Question] = {}

    async def __call__(self, attempt: LoginAttempt) -> Identity | None:
        """Authenticate a request. Raises the exceptions of `Authenticate`."""
        if attempt.token is None:
            return await self.others(attempt) if self.others else None
        found = await self._find(attempt.token, attempt) if TOKEN.fullmatch(attempt.token) else None
        if found is not None and not found.project_id and not found.system:
            raise SpeaksForNone
        return found

    async def _find(self, token: str, attempt: LoginAttempt) -> Identity | None:
        digest = self.memory.digest(token)
        known = self.memory.find(digest)
        if known is not None and self.memory.is_fresh(known):
            self.figures.known[Known.FRESH] += 1
            return known.identity
        if self.memory.is_refused(digest):
            self.figures.known[Known.REFUSED] += 1
            return None
        try:
            return await self._share(digest, lambda: self._ask(digest, token, attempt.address, known), attempt.gone)
        except NobodyToAsk:
            if known is None:
                raise
            self.figures.known[Known.OUTAGE] += 1
            return known.identity

    async def _share(self, digest: bytes, ask: _Ask, gone: asyncio.Event | None) -> Identity | None:
        """Share one validation between callers of the same token; it is cancelled when all of them have disconnected.
        Raises Gone."""
        question = self._questions.get(digest)
        if question is None:
            question = self._questions[digest] = _Question(asyncio.create_task(ask()))
        question.asking += 1
        try:
            await unless_gone(question.task, gone)
            return question.task.result()
        finally:
            question.asking -= 1
            if not question.asking:
                del self._questions[digest]
                question.task.cancel()

    async def _ask(self, digest: bytes, token: str, address: str, known: Remembered | None) -> Identity | None:
        line, key = (self._strangers, address) if known is None else (self._known, known.identity.user)
        if known is None:
            self._refuse_after_failures(address)
        try:
            async with line.turn(key, LINE_PATIENCE):
                if known is None:
                    self._refuse_after_failures(address)  # earlier requests of this address may have failed
                return await self._validate(digest, token, address)
        except TooMany:
            raise TooManyChecks(1) from None
        except TimeoutError:
            raise NobodyToAsk(AWAY_SECONDS) from None

    async def _validate(self, digest: bytes, token: str, address: str) -> Identity | None:
        began, outcome = self._clock(), Asked.NOBODY
        try:
            found = await self.keystone.validate(token)
            outcome = Asked.REFUSED if found is None else Asked.GOOD
        except OddAnswer:
            self.failures.add(address)
            raise
        finally:
            self.figures.asked[outcome] += 1
            self.figures.seconds += self._clock() - began
        if found is None:
            self.failures.add(address)
            self.memory.refuse(digest)
            return None
        self.memory.keep(digest, found.identity, (found.ends - datetime.now(UTC)).total_seconds())
        return found.identity

    def _refuse_after_failures(self, address: str) -> None:
        """Raise TooManyChecks if too many tokens of this address were rejected."""
        wait = self.failures.wait(address)
        if wait > 0:
            raise TooManyChecks(retry_after(wait))


def _line() -> FairSemaphore:
    return FairSemaphore(at_once=AT_ONCE, of_one=OF_ONE, waiting=WAITING, in_all=WAITING_IN_ALL)

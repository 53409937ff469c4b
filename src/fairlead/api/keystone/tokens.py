"""A caller's token: remembered, or asked for.

Who comes with a token that was good lately waits for nobody. Others take turns with Keystone by address, in lines with
an end, and one question is asked for all who bring the same token. Tokens that are refused make their address wait. A
user whose token has to be looked at again takes turns with themselves, and no stranger is before them. So whoever sends
nonsense keeps themselves waiting.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from fairlead.api.auth import Authenticate, LoginAttempt, NobodyToAsk, SpeaksForNone, TooManyChecks
from fairlead.api.keystone.asking import AWAY_SECONDS, TOKEN, Keystone, OddAnswer
from fairlead.api.keystone.figures import Asked, Known, TokenFigures
from fairlead.api.keystone.remembered import Memory, Remembered
from fairlead.api.pace import Pace
from fairlead.changes.identity import Identity
from fairlead.store.fair_semaphore import FairSemaphore, TooMany, unless_gone

AT_ONCE, OF_ONE = 6, 3
"""Questions to Keystone about tokens that were not good lately, of all and of one address; and as many about those that
were, of all and of one user."""
WAITING, WAITING_IN_ALL = 16, 256
"""Questions that wait, of one address or user, and of all."""
LINE_PATIENCE = 10.0
"""Seconds for which a question waits for its turn."""
FAILURES, FORGIVEN = 60, 0.5
"""Tokens of an address that are refused, at once; each comes back after so many seconds. Many users may share one: each
client that comes back after an hour brings a token that has ended."""


_Ask: TypeAlias = Callable[[], Coroutine[Any, Any, Identity | None]]


@dataclass(slots=True, eq=False)
class _Question:
    """About one token, for all who bring it."""

    task: "asyncio.Task[Identity | None]"
    asking: int = 0


class KeystoneTokens:
    """Checks callers with tokens; those without are for `others` to check."""

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
        """Raises what `Authenticate` does."""
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
        """Who has hung up does not wait, and nobody is asked for those who all have. Raises Gone."""
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
                    self._refuse_after_failures(address)  # those before it in the line may have failed
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
        """Raises TooManyChecks when this address has brought too many that were refused lately."""
        wait = self.failures.wait(address)
        if wait > 0:
            raise TooManyChecks(int(wait) + 1)


def _line() -> FairSemaphore:
    return FairSemaphore(at_once=AT_ONCE, of_one=OF_ONE, waiting=WAITING, in_all=WAITING_IN_ALL)

"""What Keystone said of tokens lately. Tokens are known by a digest under a key that only this process has.

A token is believed for some time without asking, and for some more while nobody can be asked; never longer than it is
good. So one that is revoked is refused when that time is over. All that is kept has a size. One user's tokens push out
that user's own: nobody can make others ask again.
"""

import hmac
import secrets
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from fairlead.changes.identity import Identity

REMEMBERED, REMEMBERED_OF_ONE = 10_000, 100
"""Tokens that are good: of all, and of one user."""
REFUSED, REFUSED_SECONDS = 1000, 10.0
"""Tokens that are not; and how long that is known. It spares Keystone who tries again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A token that was good when Keystone was asked. Times are those of the clock."""

    identity: Identity
    fresh_until: float
    """Nobody is asked before."""
    ends: float
    """Nor after, if nobody can be asked in between."""


class Memory:
    def __init__(
        self, fresh_seconds: float, outage_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`outage_seconds` for which a token goes on when it is no longer fresh, and nobody can be asked."""
        self._fresh, self._outage = fresh_seconds, outage_seconds
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._good: OrderedDict[bytes, Remembered] = OrderedDict()
        self._of_user: defaultdict[str, OrderedDict[bytes, None]] = defaultdict(OrderedDict)
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        """Until when."""

    def __len__(self) -> int:
        return len(self._good)

    def digest(self, token: str) -> bytes:
        return hmac.digest(self._key, token.encode(), "sha256")

    def is_fresh(self, known: Remembered) -> bool:
        return self._clock() < known.fresh_until

    def find(self, digest: bytes) -> Remembered | None:
        """A token that was good, and has not ended."""
        known = self._good.get(digest)
        if known is not None and self._clock() >= known.ends:
            self._drop(digest)
            return None
        return known

    def is_refused(self, digest: bytes) -> bool:
        return self._clock() < self._refused.get(digest, 0.0)

    def keep(self, digest: bytes, identity: Identity, seconds: float) -> None:
        """It is good for so long, by what Keystone says now."""
        self._drop(digest)
        now = self._clock()
        until = now + min(seconds, self._fresh)
        if until <= now:
            return
        self._good[digest] = Remembered(
            identity=identity, fresh_until=until, ends=now + min(seconds, self._fresh + self._outage)
        )
        own = self._of_user[identity.user]
        own[digest] = None
        if len(own) > REMEMBERED_OF_ONE:
            self._drop(next(iter(own)))
        elif len(self._good) > REMEMBERED:
            self._drop(next(iter(self._good)))

    def refuse(self, digest: bytes) -> None:
        self._drop(digest)
        self._refused[digest] = self._clock() + REFUSED_SECONDS
        self._refused.move_to_end(digest)
        if len(self._refused) > REFUSED:
            self._refused.popitem(last=False)

    def forget(self) -> None:
        """All of it."""
        self._good.clear()
        self._of_user.clear()
        self._refused.clear()

    def _drop(self, digest: bytes) -> None:
        known = self._good.pop(digest, None)
        if known is not None:
            own = self._of_user[known.identity.user]
            del own[digest]
            if not own:
                del self._of_user[known.identity.user]

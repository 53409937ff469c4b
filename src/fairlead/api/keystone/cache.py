"""Cache of token validations, keyed by an HMAC of the token under a key of this process.

A valid token is accepted from the cache for a time, and for a grace period while Keystone is unavailable, but never
beyond its expiry. A revoked token is rejected after that time. All caches are bounded. A user's tokens evict only those
of the same user, so a user cannot evict others' tokens.
"""

import hmac
import secrets
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from fairlead.changes.identity import Identity

MAX_CACHED, MAX_CACHED_PER_USER = 10_000, 100
"""Maximum valid tokens: in total, and of one user."""
REFUSED, REFUSED_SECONDS = 1000, 10.0
"""Maximum rejected tokens, and seconds for which a rejection is cached. It protects Keystone from repeated requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedToken:
    """Validated token. Times are of the monotonic clock."""

    identity: Identity
    fresh_until: float
    """Time until which the token is accepted without a request."""
    ends: float
    """Time until which it is accepted while Keystone is unavailable."""


class TokenCache:
    def __init__(
        self, fresh_seconds: float, outage_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`fresh_seconds` is the time without a request, `outage_seconds` the grace period while Keystone is
        unavailable."""
        self._fresh, self._outage = fresh_seconds, outage_seconds
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._valid: OrderedDict[bytes, CachedToken] = OrderedDict()
        self._of_user: defaultdict[str, OrderedDict[bytes, None]] = defaultdict(OrderedDict)
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        """Digest -> time until which the rejection is cached."""

    def __len__(self) -> int:
        return len(self._valid)

    def digest(self, token: str) -> bytes:
        return hmac.digest(self._key, token.encode(), "sha256")

    def is_fresh(self, known: CachedToken) -> bool:
        return self._clock() < known.fresh_until

    def find(self, digest: bytes) -> CachedToken | None:
        """Return a validated token that has not ended."""
        known = self._valid.get(digest)
        if known is not None and self._clock() >= known.ends:
            self._drop(digest)
            return None
        return known

    def is_refused(self, digest: bytes) -> bool:
        return self._clock() < self._refused.get(digest, 0.0)

    def add(self, digest: bytes, identity: Identity, seconds: float) -> None:
        """Cache a token that is valid for `seconds`."""
        self._drop(digest)
        now = self._clock()
        until = now + min(seconds, self._fresh)
        if until <= now:
            return
        self._valid[digest] = CachedToken(
            identity=identity, fresh_until=until, ends=now + min(seconds, self._fresh + self._outage)
        )
        own = self._of_user[identity.user]
        own[digest] = None
        if len(own) > MAX_CACHED_PER_USER:
            self._drop(next(iter(own)))
        elif len(self._valid) > MAX_CACHED:
            self._drop(next(iter(self._valid)))

    def refuse(self, digest: bytes) -> None:
        self._drop(digest)
        self._refused[digest] = self._clock() + REFUSED_SECONDS
        self._refused.move_to_end(digest)
        if len(self._refused) > REFUSED:
            self._refused.popitem(last=False)

    def clear(self) -> None:
        """Clear the cache."""
        self._valid.clear()
        self._of_user.clear()
        self._refused.clear()

    def _drop(self, digest: bytes) -> None:
        known = self._valid.pop(digest, None)
        if known is not None:
            own = self._of_user[known.identity.user]
            del own[digest]
            if not own:
                del self._of_user[known.identity.user]

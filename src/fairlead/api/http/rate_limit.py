"""Rate limit per client address: a burst of requests, with tokens that are restored one by one."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

MAX_TRACKED_ADDRESSES = 10_000
MIN_RETRY_AFTER, MAX_RETRY_AFTER = 1, 60
"""Seconds. A longer wait is capped; a caller that returns after it may be rejected again."""


def retry_after(seconds: float) -> int:
    """Return the value of Retry-After (RFC 9110, section 10.2.3: whole seconds) for a wait in seconds."""
    return max(MIN_RETRY_AFTER, math.ceil(min(seconds, MAX_RETRY_AFTER)))


class RateLimiter:
    """Rate limiter per address. The table is bounded: the least recently seen address is evicted."""

    def __init__(self, at_once: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`at_once` is the burst; `seconds` the time after which one request of it is allowed again."""
        self._burst = at_once
        self._seconds = seconds
        self._clock = clock
        self._until: OrderedDict[str, float] = OrderedDict()
        """Maps addresses to the time when their full burst is available again."""

    def wait(self, address: str) -> float:
        """Return the seconds until this address may send another request; 0 if it may now."""
        until = self._until.get(address, 0.0)
        return max(0.0, until - self._clock() - (self._burst - 1) * self._seconds)

    def add(self, address: str) -> None:
        until = max(self._until.get(address, 0.0), self._clock()) + self._seconds
        self._until[address] = until
        self._until.move_to_end(address)
        if len(self._until) > MAX_TRACKED_ADDRESSES:
            self._until.popitem(last=False)

    def __len__(self) -> int:
        return len(self._until)

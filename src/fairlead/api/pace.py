"""How often each address may do something that costs us: so many at once, and each comes back after a while."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

REMEMBERED_ADDRESSES = 10_000
MIN_RETRY_AFTER, MAX_RETRY_AFTER = 1, 60
"""Seconds. A caller that comes again after the longest one may be paced again, and no caller stays away for longer."""


def retry_after(seconds: float) -> int:
    """The value of Retry-After (RFC 9110, section 10.2.3: whole seconds) for a wait of so many seconds."""
    return max(MIN_RETRY_AFTER, math.ceil(min(seconds, MAX_RETRY_AFTER)))


class Pace:
    """The table is bounded: the address that was seen longest ago goes first."""

    def __init__(self, at_once: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`seconds` after which one of them comes back."""
        self._at_once = at_once
        self._seconds = seconds
        self._clock = clock
        self._until: OrderedDict[str, float] = OrderedDict()
        """Address -> when all of its own are back."""

    def wait(self, address: str) -> float:
        """Seconds until this address may do it again; 0 when it may now."""
        until = self._until.get(address, 0.0)
        return max(0.0, until - self._clock() - (self._at_once - 1) * self._seconds)

    def add(self, address: str) -> None:
        until = max(self._until.get(address, 0.0), self._clock()) + self._seconds
        self._until[address] = until
        self._until.move_to_end(address)
        if len(self._until) > REMEMBERED_ADDRESSES:
            self._until.popitem(last=False)

    def __len__(self) -> int:
        return len(self._until)

"""Change feed: ids of load balancers with a status that may have changed, for a service that polls.

Each change has a number. A cursor is the name of the feed and the last number that a client has received; another
server, and this one after a restart, has another name. A client with a cursor of another feed, or an evicted one,
must read all load balancers. A change may be reported although the status is the same.
"""

import asyncio
import contextlib
import re
from collections import OrderedDict
from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

from fairlead.model.documents.owner import Kind, Owner

MAX_TRACKED = 20_000
"""Maximum load balancers with a remembered last change."""
MAX_IDS_PER_RESPONSE = 500
"""Maximum ids in one response."""
MAX_LONG_POLLS = 4
"""Maximum concurrent long polls; further requests return immediately, because each long poll occupies a concurrency
slot of its project."""
MAX_POLL_SECONDS = 30
"""Maximum seconds of a long poll."""
CURSOR_NUMBER = re.compile("[0-9]{1,18}")


class ChangedBalancers(NamedTuple):
    cursor: str
    ids: tuple[str, ...]
    is_resync_needed: bool
    """True if the changes since the cursor are unknown, so that the client must read all load balancers."""


class StatusFeed:
    def __init__(self, name: str, known: int = MAX_TRACKED) -> None:
        self._name = name
        self._max_tracked = known
        self._newest = OrderedDict[str, int]()
        """Load balancer -> number of its last change, in ascending order."""
        self._number = 0
        self._forgotten = 0
        """Number of the newest evicted change."""
        self._changed = asyncio.Event()
        self._waiting = 0

    def record(self, owners: Iterable[Owner]) -> None:
        """Record changes of owners."""
        heard = self._number
        for owner in owners:
            if owner.kind is Kind.LOAD_BALANCER:
                self._number += 1
                self._newest[owner.id] = self._number
                self._newest.move_to_end(owner.id)
        while len(self._newest) > self._max_tracked:
            _, self._forgotten = self._newest.popitem(last=False)
        if self._number > heard:
            self._changed.set()

    async def changes_after(self, cursor: str, seconds: int) -> ChangedBalancers:
        """Return the changes after the cursor; if there are none, wait for `seconds`."""
        news = self._changes(cursor)
        if news.ids or news.is_resync_needed or self._waiting >= MAX_LONG_POLLS:
            return news
        self._waiting += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while not news.ids:
                        self._changed.clear()
                        await self._changed.wait()
                        news = self._changes(cursor)
        finally:
            self._waiting -= 1
        return news

    def _changes(self, cursor: str) -> ChangedBalancers:
        name, _, number = cursor.rpartition(":")
        heard = int(number) if name == self._name and CURSOR_NUMBER.fullmatch(number) else -1
        if not self._forgotten <= heard <= self._number:
            return ChangedBalancers(self._cursor(self._number), (), is_resync_needed=True)
        later = list(takewhile(lambda item: item[1] > heard, reversed(self._newest.items())))
        told = later[: -MAX_IDS_PER_RESPONSE - 1 : -1]
        last = told[-1][1] if told else heard
        return ChangedBalancers(self._cursor(last), tuple(each for each, _ in told), is_resync_needed=False)

    def _cursor(self, number: int) -> str:
        return f"{self._name}:{number}"

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

MOST_KNOWN = 20_000
"""Maximum load balancers with a remembered last change."""
MOST_TOLD = 500
"""Maximum ids in one response."""
MOST_WAITING = 4
"""Maximum concurrent long polls; further requests return immediately, because each long poll occupies a concurrency
slot of its project."""
LONGEST_WAIT = 30
"""Maximum seconds of a long poll."""
LONG = re.compile("[0-9]{1,18}")


class News(NamedTuple):
    cursor: str
    ids: tuple[str, ...]
    is_whole: bool
    """True if the changes since the cursor are unknown, so that the client must read all load balancers."""


class StatusFeed:
    def __init__(self, name: str, known: int = MOST_KNOWN) -> None:
        self._name = name
        self._most = known
        self._newest = OrderedDict[str, int]()
        """Load balancer -> number of its last change, in ascending order."""
        self._number = 0
        self._forgotten = 0
        """Number of the newest evicted change."""
        self._heard = asyncio.Event()
        self._waiting = 0

    def hear(self, owners: Iterable[Owner]) -> None:
        """Record changes of owners."""
        heard = self._number
        for owner in owners:
            if owner.kind is Kind.LOAD_BALANCER:
                self._number += 1
                self._newest[owner.id] = self._number
                self._newest.move_to_end(owner.id)
        while len(self._newest) > self._most:
            _, self._forgotten = self._newest.popitem(last=False)
        if self._number > heard:
            self._heard.set()

    async def since(self, cursor: str, seconds: int) -> News:
        """Return the changes after the cursor; if there are none, wait for `seconds`."""
        news = self._told(cursor)
        if news.ids or news.is_whole or self._waiting >= MOST_WAITING:
            return news
        self._waiting += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while not news.ids:
                        self._heard.clear()
                        await self._heard.wait()
                        news = self._told(cursor)
        finally:
            self._waiting -= 1
        return news

    def _told(self, cursor: str) -> News:
        name, _, number = cursor.rpartition(":")
        heard = int(number) if name == self._name and LONG.fullmatch(number) else -1
        if not self._forgotten <= heard <= self._number:
            return News(self._cursor(self._number), (), is_whole=True)
        later = list(takewhile(lambda item: item[1] > heard, reversed(self._newest.items())))
        told = later[: -MOST_TOLD - 1 : -1]
        last = told[-1][1] if told else heard
        return News(self._cursor(last), tuple(each for each, _ in told), is_whole=False)

    def _cursor(self, number: int) -> str:
        return f"{self._name}:{number}"

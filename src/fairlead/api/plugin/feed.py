"""Which load balancers may stand otherwise than before: a service that asks for news is told their ids.

Each piece of news has a number. A cursor is the number up to which somebody has heard, after the name of the feed that
counted: another server, or this one after a restart, has another name. Who brings a cursor of another feed, or one that
is too old, has to look at everything. News may concern a load balancer whose status is the same as before.
"""

import asyncio
import contextlib
import re
from collections import OrderedDict
from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

from fairlead.model.owner import Kind, Owner

MOST_KNOWN = 20_000
"""Load balancers whose newest news is remembered."""
MOST_TOLD = 500
"""Ids in one answer."""
MOST_WAITING = 4
"""Who would wait besides is answered at once: each of them holds a turn of their project."""
LONGEST_WAIT = 30
"""Seconds."""
LONG = re.compile("[0-9]{1,18}")


class News(NamedTuple):
    cursor: str
    ids: tuple[str, ...]
    is_whole: bool
    """Whether everything has to be looked at: what has changed since the cursor is not known."""


class StatusFeed:
    def __init__(self, name: str, known: int = MOST_KNOWN) -> None:
        self._name = name
        self._most = known
        self._newest = OrderedDict[str, int]()
        """Load balancer -> the number of its newest news, in the order of these."""
        self._number = 0
        self._forgotten = 0
        """Up to this number not all is known any more."""
        self._heard = asyncio.Event()
        self._waiting = 0

    def hear(self, owners: Iterable[Owner]) -> None:
        """There may be news of these."""
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
        """What was heard after that; when there is nothing, whatever comes in so many seconds."""
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

"""Costly work that many want at once, as when a thousand agents come back together: one of them has each turn of the
event loop, so that nobody else waits for all of them."""

import asyncio
from collections import deque


class LoopTurns:
    """One does its work in a turn of the event loop, and then the next one."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    async def take(self) -> None:
        """Until it is the caller's turn: it works until it waits for something."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._schedule()
        await turn

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        self._is_scheduled = False
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # who has hung up is not waited for
                turn.set_result(None)
                break
        self._schedule()

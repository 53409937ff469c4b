"""Scheduler that spreads expensive work of many tasks over event-loop turns, one task per turn, so that other tasks run
between them, as when a thousand agents reconnect together."""

import asyncio
from collections import deque


class TurnScheduler:
    """Queue of tasks that each receive one event-loop turn."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    async def wait_for_turn(self) -> None:
        """Wait for a turn; it lasts until the caller next awaits."""
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
            if not turn.done():  # skip a cancelled task
                turn.set_result(None)
                break
        self._schedule()

"""An agent that listens, as the channel has it: told at once, or when it has heard its slice."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

Write: TypeAlias = Callable[[bytes], None]
MOST_BEHIND = 8 * 2**20
"""Bytes that an agent may be behind with listening: then it has to come again."""


@dataclass(eq=False, slots=True)
class Watch:
    """An agent that listens."""

    chassis: str
    write: Write | None = None
    """None until the list was sent: what comes meanwhile waits."""
    end: Callable[[], None] = lambda: None
    waiting: list[bytes] = field(default_factory=list)
    behind: int = 0
    """Bytes of what waits."""

    def tell(self, message: bytes) -> None:
        if self.write is not None:
            self.write(message)
            return
        self.waiting.append(message)
        self.behind += len(message)
        if self.behind > MOST_BEHIND:
            self.end()

    def let_go(self) -> None:
        """It listens no more: what is still told goes nowhere, and nothing of the connection is held."""
        self.write, self.end = lambda _: None, lambda: None
        self.waiting.clear()

    def go_live(self, write: Write) -> None:
        """The list was sent: what has waited goes, and what comes goes at once."""
        for message in self.waiting:
            write(message)
        self.waiting.clear()
        self.write = write

"""Watch of an agent in the push channel: buffers messages until the initial list is sent, then writes directly."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

Write: TypeAlias = Callable[[bytes], None]
MAX_BUFFERED_BYTES = 8 * 2**20
"""Maximum bytes buffered for an agent; above it the watch ends, and the agent reconnects."""


@dataclass(eq=False, slots=True)
class Watch:
    """Open watch of an agent."""

    chassis: str
    write: Write | None = None
    """Write function; None until the initial list is sent, while messages are buffered."""
    end: Callable[[], None] = lambda: None
    buffered: list[bytes] = field(default_factory=list)
    buffered_bytes: int = 0
    """Bytes in `waiting`."""

    def send(self, message: bytes) -> None:
        if self.write is not None:
            self.write(message)
            return
        self.buffered.append(message)
        self.buffered_bytes += len(message)
        if self.buffered_bytes > MAX_BUFFERED_BYTES:
            self.end()

    def detach(self) -> None:
        """Detach the connection: later messages are dropped, and no reference to the connection remains."""
        self.write, self.end = lambda _: None, lambda: None
        self.buffered.clear()

    def go_live(self, write: Write) -> None:
        """Write the buffered messages, and from now on every message directly."""
        for message in self.buffered:
            write(message)
        self.buffered.clear()
        self.write = write

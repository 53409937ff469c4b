"""Client of HAProxy's runtime API on its Unix socket (management guide, 9.3)."""

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path

from fairlead.drivers.interface import DriverError, Unavailable

PATIENCE = 5.0
"""Seconds for one command."""
LONGEST = 2**24
"""Maximum bytes of a response."""
_DONE = re.compile(
    r"New server registered|Server deleted|no need to change|.*changed from"
    r"|New empty|Transaction |Inserting certificate|Committing|Entry .* deleted|Certificate .* deleted"
)
"""Start of a response that reports success. Most commands return an empty response."""


class CommandFailed(DriverError):
    """The process rejected a command."""


async def ask(socket: Path, text: str, payload: str = "") -> str:
    """Send a command and return the response. Raises Unavailable."""
    said = f"{text} <<\n{payload.rstrip()}\n\n" if payload else f"{text}\n"
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_unix_connection(str(socket), limit=LONGEST)
            try:
                writer.write(said.encode())
                await writer.drain()
                return (await reader.read(LONGEST)).decode(errors="replace").strip()
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        raise Unavailable(f"{socket}: {error or f'no answer for {PATIENCE:.0f} s'}") from None


async def tell(socket: Path, commands: Iterable[tuple[str, str, bool]]) -> None:
    """Send commands: each is its text, its payload, and whether it may fail. Raises CommandFailed, Unavailable."""
    for text, payload, may_fail in commands:
        answer = await ask(socket, text, payload)
        if answer and not may_fail and not _DONE.match(answer):
            raise CommandFailed(f"{text}: {answer.splitlines()[0]}")


async def running_pid(socket: Path) -> int | None:
    """Return the pid of the process that responds on the socket; None if none does."""
    try:
        answer = await ask(socket, "show info")
    except Unavailable:
        return None
    found = dict(line.split(": ", 1) for line in answer.splitlines() if ": " in line)
    return int(found["Pid"]) if found.get("Pid", "").isdecimal() else None

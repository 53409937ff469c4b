"""What a running process is told and asked: the runtime API of its socket (management guide, 9.3)."""

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path

from fairlead.drivers.interface import DriverError, Unavailable

PATIENCE = 5.0
"""Seconds for one command."""
LONGEST = 2**24
"""Bytes of an answer."""
_DONE = re.compile(
    r"New server registered|Server deleted|no need to change|.*changed from"
    r"|New empty|Transaction |Inserting certificate|Committing|Entry .* deleted|Certificate .* deleted"
)
"""How an answer begins that is no complaint; most commands answer nothing."""


class CommandFailed(DriverError):
    """The process refused it."""


async def ask(socket: Path, text: str, payload: str = "") -> str:
    """What it answers. Raises Unavailable."""
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
    """Each command, its payload, and whether it may fail. Raises CommandFailed, Unavailable."""
    for text, payload, may_fail in commands:
        answer = await ask(socket, text, payload)
        if answer and not may_fail and not _DONE.match(answer):
            raise CommandFailed(f"{text}: {answer.splitlines()[0]}")


async def running_pid(socket: Path) -> int | None:
    """The process that answers there; None when none does."""
    try:
        answer = await ask(socket, "show info")
    except Unavailable:
        return None
    found = dict(line.split(": ", 1) for line in answer.splitlines() if ": " in line)
    return int(found["Pid"]) if found.get("Pid", "").isdecimal() else None

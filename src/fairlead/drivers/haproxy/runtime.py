"""Client of HAProxy's runtime API on its Unix socket (management guide, 9.3)."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path

from fairlead.drivers.interface import DriverError, Unavailable

COMMAND_TIMEOUT = 5.0
"""Seconds for one command."""
MAX_RESPONSE_BYTES = 2**24
"""Maximum bytes of a response."""
_PROMPT = b"\n> "
"""End of each response on a connection with `prompt`."""
_DONE = re.compile(
    r"New server registered|Server deleted|no need to change|.*changed from"
    r"|New empty|Transaction |Inserting certificate|Committing|Entry .* deleted|Certificate .* deleted"
)
"""Start of a response that reports success. Most commands return an empty response."""


class CommandFailed(DriverError):
    """The process rejected a command."""


async def send_command(socket: Path, text: str, payload: str = "") -> str:
    """Send a command and return the response. Raises Unavailable."""
    said = f"{text} <<\n{payload.rstrip()}\n\n" if payload else f"{text}\n"
    with _unavailable(socket):
        async with asyncio.timeout(COMMAND_TIMEOUT):
            reader, writer = await asyncio.open_unix_connection(str(socket), limit=MAX_RESPONSE_BYTES)
            try:
                writer.write(said.encode())
                await writer.drain()
                return (await reader.read(MAX_RESPONSE_BYTES)).decode(errors="replace").strip()
            finally:
                writer.close()


async def send_commands(socket: Path, commands: Iterable[tuple[str, str, bool]]) -> None:
    """Send commands: each is its text, its payload, and whether it may fail. Raises CommandFailed, Unavailable.

    One connection carries all commands without a payload, one after the other (management guide, 9.3, `prompt`). A
    payload needs a connection of its own, because the prompts between its lines cannot be told from the response.
    """
    async with contextlib.AsyncExitStack() as stack:
        tell_next: Callable[[str], Awaitable[str]] | None = None
        for text, payload, may_fail in commands:
            if payload:
                answer = await send_command(socket, text, payload)
            else:
                if tell_next is None:
                    tell_next = await stack.enter_async_context(_dialog(socket))
                answer = await tell_next(text)
            if answer and not may_fail and not _DONE.match(answer):
                raise CommandFailed(f"{text}: {answer.splitlines()[0]}")


@contextlib.asynccontextmanager
async def _dialog(socket: Path) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    """Open a connection for several commands; yield a function that sends one and returns the response. Raises
    Unavailable."""
    with _unavailable(socket):
        async with asyncio.timeout(COMMAND_TIMEOUT):
            reader, writer = await asyncio.open_unix_connection(str(socket), limit=MAX_RESPONSE_BYTES)

    async def tell_next(text: str) -> str:
        with _unavailable(socket):
            async with asyncio.timeout(COMMAND_TIMEOUT):
                writer.write(f"{text}\n".encode())
                await writer.drain()
                answer = await reader.readuntil(_PROMPT)
        return answer.removesuffix(_PROMPT).decode(errors="replace").strip()

    try:
        await tell_next("prompt")
        yield tell_next
    finally:
        writer.close()


@contextlib.contextmanager
def _unavailable(socket: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, asyncio.LimitOverrunError, TimeoutError) as error:
        raise Unavailable(f"{socket}: {error or f'no answer for {COMMAND_TIMEOUT:.0f} s'}") from None


async def running_pid(socket: Path) -> int | None:
    """Return the pid of the process that responds on the socket; None if none does."""
    try:
        answer = await send_command(socket, "show info")
    except Unavailable:
        return None
    found = dict(line.split(": ", 1) for line in answer.splitlines() if ": " in line)
    return int(found["Pid"]) if found.get("Pid", "").isdecimal() else None

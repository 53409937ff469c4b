"""Termination of asyncio child processes."""

from asyncio.subprocess import Process


async def kill(process: Process) -> None:
    """Kill a child if it runs, and close its pipes.

    asyncio closes the pipes of a finished child in later turns of the loop. If the loop ends before that, as when an
    agent exits, the interpreter prints a traceback for each child.
    """
    if process.returncode is None:
        process.kill()
        await process.wait()
    process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio has no other way

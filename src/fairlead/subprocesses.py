"""Ends child processes of an event loop."""

from asyncio.subprocess import Process


async def kill(process: Process) -> None:
    """Kills a child if it runs, and closes its pipes.

    asyncio closes the pipes of a child that has ended in later turns of the loop. If the loop ends before, as when an
    agent ends, the interpreter prints a traceback for each child.
    """
    if process.returncode is None:
        process.kill()
        await process.wait()
    process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio has no other way

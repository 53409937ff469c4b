"""Child processes of an event loop end with all of their pipes."""

import asyncio
import gc
import sys

import pytest

from fairlead.runtime.subprocesses import kill


@pytest.mark.parametrize("ended", [False, True])
def test_no_pipe_outlives_its_event_loop(capfd: pytest.CaptureFixture[str], ended: bool) -> None:
    """No pipe outlives its event loop, for which the interpreter would print a traceback. `ended`: the child exits by
    itself."""

    async def work() -> None:
        pipe = asyncio.subprocess.PIPE
        program = "" if ended else "input()"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdin=pipe, stdout=pipe, stderr=pipe
        )
        if ended:
            await process.wait()
        await kill(process)

    with asyncio.Runner() as runner:
        runner.run(work())
    gc.collect()
    assert capfd.readouterr().err == ""

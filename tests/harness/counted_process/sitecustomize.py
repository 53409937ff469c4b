"""Counts the steps of Fairlead's servers and agents that end-to-end tests start.

Python imports this module in every process with this folder in PYTHONPATH (module site). A process that exceeds the
limit of steps between two returns to its event loop reports the callback to a file in the folder that COUNTED_PROCESSES
names; tests/harness/counted_processes.py reads it. The event loop is that of asyncio, because uvloop is written in C
and cannot be counted.
"""

import asyncio
import os
import sys
from pathlib import Path

if "fairlead.cli.main" in sys.orig_argv or any(word.endswith("/bin/fairlead") for word in sys.orig_argv):
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from harness import step_counter

    sys.path.pop(0)
    step_counter.install()

    import uvloop

    from fairlead.runtime import cooperative

    uvloop.new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]
    cooperative.perf_counter = step_counter.clock_of_steps  # type: ignore[assignment]
    bound = int(os.environ["COUNTED_STEPS"])
    found = Path(os.environ["COUNTED_PROCESSES"]) / str(os.getpid())
    longest, run = step_counter.Longest(steps=bound), asyncio.events.Handle._run

    def counting(handle: asyncio.Handle) -> None:
        before, known = step_counter.step(), longest.steps
        run(handle)
        longest.note(step_counter.step() - before - 1, handle._callback)
        if longest.steps > known:
            found.write_text(f"{longest.steps} {' '.join(sys.orig_argv[1:5])} {longest.where}")

    asyncio.events.Handle._run = counting  # type: ignore[method-assign]

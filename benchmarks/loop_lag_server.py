"""A Fairlead server that reports how long its event loop is blocked, for the benchmark of the causes.

    HOLDS_FILE=FILE python benchmarks/loop_lag_server.py      otherwise like `fairlead server`

The report is in a file mapped into memory, so reading it does not disturb the server.
"""

import asyncio
import gc
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from fairlead.cli.main import main

LAG_VARIABLE = "HOLDS_FILE"
_SHAPE = struct.Struct("=ddd100s")


class LagRecord(NamedTuple):
    """CPU time in seconds of the loop's thread, which is independent of other load on the machine."""

    longest: float
    garbage: float
    """The longest garbage collection."""
    total: float
    """Sum of all steps."""
    name: bytes
    """Callback of the longest step."""


def create_lag_file(path: Path) -> None:
    path.write_bytes(bytes(_SHAPE.size))


def reset_lag(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(_SHAPE.size))


def read_lag(path: Path) -> LagRecord:
    return LagRecord(*_SHAPE.unpack(path.read_bytes()))


def record_lag(told: mmap.mmap) -> None:
    """Measure each step of every loop, and each garbage collection."""
    run: Callable[[Any], None] = asyncio.events.Handle._run  # noqa: SLF001 - there is no other place
    began = 0.0

    def timed(handle: Any) -> None:
        before = time.thread_time()
        run(handle)
        took = time.thread_time() - before
        now = LagRecord(*_SHAPE.unpack(told[:]))
        name = now.name
        if took > now.longest:
            called = handle._callback  # noqa: SLF001
            name = repr(getattr(called, "__self__", called)).encode()[:100]
        told[:] = _SHAPE.pack(max(now.longest, took), now.garbage, now.total + took, name)

    def collected(phase: str, _: object) -> None:
        nonlocal began
        if phase == "start":
            began = time.thread_time()
        else:
            now = LagRecord(*_SHAPE.unpack(told[:]))
            garbage = max(now.garbage, time.thread_time() - began)
            told[:] = _SHAPE.pack(now.longest, garbage, now.total, now.name)

    asyncio.events.Handle._run = timed  # type: ignore[method-assign]  # noqa: SLF001
    gc.callbacks.append(collected)


if __name__ == "__main__":
    uvloop.new_event_loop = asyncio.new_event_loop  # type: ignore[assignment] # its steps are written in Python
    with open(os.environ[LAG_VARIABLE], "r+b") as file:
        record_lag(mmap.mmap(file.fileno(), _SHAPE.size))
        sys.exit(main(["server"]))

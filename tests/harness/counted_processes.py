"""Step limit for servers and agents that end-to-end tests start.

COUNT_STEPS=1 enables it, as in `make test-all PART=long`. Without it these processes run on uvloop, as in production,
and are not counted.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_STEPS = 500_000
"""Between two returns to the event loop: 100 to 200 ms, including work that is done only at a start or a resync."""
COUNT_VARIABLE = "COUNT_STEPS"


@contextmanager
def counted_processes(folder: Path) -> Iterator[None]:
    """Count the steps of product processes started in this context, and fail if one exceeds the limit.

    The folder must be empty: processes that exceed the limit write a report to it.
    """
    if not os.environ.get(COUNT_VARIABLE):
        yield
        return
    own = {
        "COUNTED_PROCESSES": str(folder),
        "COUNTED_STEPS": str(MAX_STEPS),
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).with_name("counted_process")), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    exceeded = sorted(path.read_text() for path in folder.iterdir())
    assert not exceeded, exceeded

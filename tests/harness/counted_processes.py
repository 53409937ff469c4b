"""The bound on steps for servers and agents that end-to-end tests start: on with COUNT_STEPS=1, as in
`make test-all PART=long`. Without it these processes run on uvloop, as an operator's do, and nothing counts.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_STEPS = 500_000
"""Between two returns to the event loop: 100 to 200 ms, with what only a start or a resync does."""
VARIABLE = "COUNT_STEPS"


@contextmanager
def counted_processes(folder: Path) -> Iterator[None]:
    """Processes of the product that are started meanwhile count, and may not exceed the bound. The folder is empty."""
    if not os.environ.get(VARIABLE):
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

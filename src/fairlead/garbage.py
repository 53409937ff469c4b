"""The garbage collector, for a process that holds ten thousand load balancers."""

import contextlib
import gc
from collections.abc import Iterator

SMALL_PARTS = (700, 10, 1)
"""Objects, and how often younger ones are looked at before older ones are (Python: 10)."""


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """What lives is looked through for garbage once, and never again: with ten thousand load balancers every client
    would wait for half a second. Frozen objects are freed when nothing refers to them, like all others. What is new is
    looked through in small parts: what a thousand agents bring that come together took 60 ms.

    Afterwards all of it may be collected again: circles that stay frozen are for ever."""

    def freeze(phase: str, information: dict[str, int]) -> None:
        if phase == "stop" and information["generation"] == 2:
            gc.freeze()

    gc.freeze()
    gc.callbacks.append(freeze)
    before = gc.get_threshold()
    gc.set_threshold(*SMALL_PARTS)
    gc.enable()
    try:
        yield
    finally:
        gc.callbacks.remove(freeze)
        gc.unfreeze()
        gc.set_threshold(*before)

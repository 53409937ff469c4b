"""Garbage collector tuning for a process with ten thousand load balancers."""

import contextlib
import gc
from collections.abc import Iterator

GC_THRESHOLDS = (700, 10, 1)
"""Thresholds for gc.set_threshold: each middle collection is followed by a full one (Python: every tenth)."""


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Freeze all live objects, so that the collector does not traverse them again during the context.

    With ten thousand load balancers a full collection would delay every request by half a second. Frozen objects are
    still freed when their reference count drops to zero. New objects are collected in small steps: one collection of
    the objects from a thousand agents that connect together took 60 ms. At the end everything is unfrozen, because
    frozen reference cycles are never freed.
    """

    def freeze(phase: str, information: dict[str, int]) -> None:
        if phase == "stop" and information["generation"] == 2:
            gc.freeze()

    gc.freeze()
    gc.callbacks.append(freeze)
    before = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    try:
        yield
    finally:
        gc.callbacks.remove(freeze)
        gc.unfreeze()
        gc.set_threshold(*before)

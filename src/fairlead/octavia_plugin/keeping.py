"""Keeps the agent going when one of its processes is killed alone, which octavia-driver-agent does not see.

octavia-driver-agent starts a provider agent's process once. So the agent is a line of three: the first is that process,
and watches the second; the second watches the third, which works. Whoever watches has nothing open and remembers
nothing, so it can be forked whenever that is needed. Each ends when the one before it is gone, but that the second
takes the place of the first while octavia-driver-agent is there. So any one of them may be killed.
"""

import multiprocessing
import os
import select
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

BEAT = 0.5
"""Seconds between two looks, and before another one is started."""
PATIENCE = 10.0
"""Seconds that a process has to end by itself."""
IsOver: TypeAlias = Callable[[], bool]
Work: TypeAlias = Callable[[IsOver], None]
"""Works until it is told that it is over."""
_FORK = multiprocessing.get_context("fork")  # Octavia's configuration is read, and so are its options


class ExitEvent(Protocol):
    def is_set(self) -> bool: ...


def keep(work: Work, exit_event: ExitEvent) -> None:
    """Until the event is set, or the process that started this one is gone."""
    starter = multiprocessing.parent_process()
    agent = os.pidfd_open(os.getppid())
    if starter is None or os.getppid() != starter.pid:
        return  # it was gone at once

    def is_over() -> bool:
        return exit_event.is_set() or bool(select.select([agent], [], [], 0)[0])

    try:
        _first(work, is_over)
    finally:
        os.close(agent)


def _first(work: Work, is_over: IsOver) -> None:
    while not is_over():
        _watch(lambda: _second(work, is_over), is_over)


def _second(work: Work, is_over: IsOver) -> None:
    is_alone = _parting()
    while not is_alone():
        _watch(lambda: work(_parting()), is_alone)
    _first(work, is_over)


def _parting() -> IsOver:
    """Whether the process that started this one is gone."""
    first = os.getppid()
    return lambda: os.getppid() != first


def _watch(task: Callable[[], None], is_over: IsOver) -> None:
    """Do it in a process of its own, until that ends or it is over. It ends with this one."""
    process = _FORK.Process(target=task)
    process.start()
    try:
        while process.is_alive() and not is_over():
            process.join(BEAT)
    finally:
        process.terminate()
        process.join(PATIENCE)
        process.kill()
        process.join()
        process.close()
    if not is_over():
        time.sleep(BEAT)

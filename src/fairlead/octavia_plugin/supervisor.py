"""Process supervisor for the agent, because octavia-driver-agent does not restart a provider agent that was killed.

octavia-driver-agent starts a provider agent's process once. So the agent is a chain of three processes: the first is
that process and watches the second; the second watches the third, which does the work. Watchers have nothing open and
no state, so they can fork at any time. Each ends when its parent is gone, except that the second replaces the first
while octavia-driver-agent runs. So any one of them may be killed.
"""

import multiprocessing
import os
import select
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

CHECK_INTERVAL = 0.5
"""Seconds between checks, and before a restart."""
EXIT_TIMEOUT = 10.0
"""Seconds that a process has for a graceful exit."""
IsOver: TypeAlias = Callable[[], bool]
Work: TypeAlias = Callable[[IsOver], None]
"""Runs until the given predicate is true."""
_FORK = multiprocessing.get_context("fork")  # the child needs Octavia's configuration and options


class ExitEvent(Protocol):
    def is_set(self) -> bool: ...


def supervise(work: Work, exit_event: ExitEvent) -> None:
    """Run until the event is set or the process that started this one is gone."""
    starter = multiprocessing.parent_process()
    agent = os.pidfd_open(os.getppid())
    if starter is None or os.getppid() != starter.pid:
        return  # it has exited already

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
    is_alone = _parent_exit()
    while not is_alone():
        _watch(lambda: work(_parent_exit()), is_alone)
    _first(work, is_over)


def _parent_exit() -> IsOver:
    """Return a predicate: whether the parent process is gone."""
    first = os.getppid()
    return lambda: os.getppid() != first


def _watch(task: Callable[[], None], is_over: IsOver) -> None:
    """Run the task in a child process until either ends. Terminates the child at the end."""
    process = _FORK.Process(target=task)
    process.start()
    try:
        while process.is_alive() and not is_over():
            process.join(CHECK_INTERVAL)
    finally:
        process.terminate()
        process.join(EXIT_TIMEOUT)
        process.kill()
        process.join()
        process.close()
    if not is_over():
        time.sleep(CHECK_INTERVAL)

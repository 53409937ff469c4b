"""Waits for real programs: the only code of the tests that sleeps until a condition is true.

A program may take as long as it needs: the deadline only ends a test that would hang. No test asserts the duration of a
wait. A failure prints the last observation.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from time import monotonic, sleep
from typing import Any, TypeVar

from fairlead.lab.timeouts import scale_timeout

DEADLINE = scale_timeout(120.0)  # seconds
INTERVAL = 0.02  # seconds between two observations
_T = TypeVar("_T")


def wait_until(
    observe: Callable[[], _T],
    what: str = "",
    *,
    is_enough: Callable[[_T], object] = bool,
    retry: tuple[type[Exception], ...] = (),
    seconds: float = DEADLINE,
) -> _T:
    """Return the first observation that is enough: by default, the first true one.

    `what` completes "waited for ..." in the failure. An observation that raises one of `retry` is not enough.
    """
    deadline = monotonic() + seconds
    while True:
        found: Any
        try:
            found = observe()
        except retry as error:
            found = error
        else:
            if is_enough(found):
                return found
        if monotonic() > deadline:
            raise AssertionError(_failure(observe, what, found, seconds))
        sleep(INTERVAL)


def wait_equal(
    observe: Callable[[], _T],
    expected: _T,
    *,
    retry: tuple[type[Exception], ...] = (),
    seconds: float = DEADLINE,
) -> None:
    """Wait until the observation equals the expected value."""
    wait_until(observe, f"{expected!r}", is_enough=lambda found: found == expected, retry=retry, seconds=seconds)


async def eventually(
    observe: Callable[[], _T | Awaitable[_T]],
    what: str = "",
    *,
    is_enough: Callable[[_T], object] = bool,
    retry: tuple[type[Exception], ...] = (),
    seconds: float = DEADLINE,
) -> _T:
    """Wait as `wait_until` does, by the clock of the running event loop, so a virtual clock takes no real time.

    An observation may be awaitable.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        found: Any
        try:
            found = observe()
            if inspect.isawaitable(found):
                found = await found
        except retry as error:
            found = error
        else:
            if is_enough(found):
                return found  # type: ignore[no-any-return]
        if loop.time() > deadline:
            raise AssertionError(_failure(observe, what, found, seconds))
        await asyncio.sleep(INTERVAL)


async def eventually_equal(
    observe: Callable[[], _T | Awaitable[_T]],
    expected: _T,
    *,
    retry: tuple[type[Exception], ...] = (),
    seconds: float = DEADLINE,
) -> None:
    """Wait until the observation equals the expected value."""
    await eventually(observe, f"{expected!r}", is_enough=lambda found: found == expected, retry=retry, seconds=seconds)


async def run_ready_tasks(count: int = 50) -> None:
    """Run every ready task of this loop `count` times, for work that needs no other process and no timer."""
    for _ in range(count):
        await asyncio.sleep(0)


def assert_holds(
    seconds: float, observe: Callable[[], _T], what: str = "", *, holds: Callable[[_T], object] = bool
) -> None:
    """Assert that the observation holds during `seconds`, for events that must not happen.

    A slow machine observes less often, so this never fails by chance.
    """
    end = monotonic() + seconds
    while True:
        found = observe()
        assert holds(found), f"{what or _text(observe)}: {found!r}"
        if monotonic() > end:
            return
        sleep(INTERVAL)


async def assert_holds_on_loop(
    seconds: float, observe: Callable[[], _T], what: str = "", *, holds: Callable[[_T], object] = bool
) -> None:
    """Assert as `watch` does, by the clock of the running event loop, while its other tasks run."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        found = observe()
        assert holds(found), f"{what or _text(observe)}: {found!r}"
        if loop.time() > end:
            return
        await asyncio.sleep(INTERVAL)


def pause(seconds: float) -> None:
    """Let a load or another program run for a while if its progress cannot be observed.

    Waiting for an expected state with it is forbidden.
    """
    sleep(seconds)


async def pause_loop(seconds: float) -> None:
    """Pause as `pause` does, by the clock of the running event loop, for a test server that answers slowly."""
    await asyncio.sleep(seconds)


def _failure(observe: Callable[..., object], what: str, found: object, seconds: float) -> str:
    return f"waited {seconds:.0f} s in vain for {what or _text(observe)}; last observation: {found!r}"


def _text(observe: Callable[..., object]) -> str:
    try:
        return " ".join(inspect.getsource(observe).split())[:300]
    except (OSError, TypeError):
        return repr(observe)

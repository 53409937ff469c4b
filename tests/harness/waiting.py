"""Waiting for a real program, the only place in the tests that sleeps until something is true.

A program has as long as it needs: the deadline ends a test that would hang. It is not about speed, and no test asserts
how long a wait took. A failure prints the last observation.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from time import monotonic, sleep
from typing import Any, TypeVar

DEADLINE = 120.0  # seconds
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
    """As `wait_until`, by the time of the running event loop: on a virtual clock it costs no time. An observation may
    be awaitable.
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


async def turns(count: int = 50) -> None:
    """Let every task of this loop that is ready run, `count` times: for what needs no other process and no timer."""
    for _ in range(count):
        await asyncio.sleep(0)


def watch(seconds: float, observe: Callable[[], _T], what: str = "", *, holds: Callable[[_T], object] = bool) -> None:
    """Assert that the observation holds for a while: for what must not happen. A slow machine observes less often, so
    this never fails by chance.
    """
    end = monotonic() + seconds
    while True:
        found = observe()
        assert holds(found), f"{what or _text(observe)}: {found!r}"
        if monotonic() > end:
            return
        sleep(INTERVAL)


async def watch_loop(
    seconds: float, observe: Callable[[], _T], what: str = "", *, holds: Callable[[_T], object] = bool
) -> None:
    """As `watch`, by the time of the running event loop, whose other tasks run meanwhile."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        found = observe()
        assert holds(found), f"{what or _text(observe)}: {found!r}"
        if loop.time() > end:
            return
        await asyncio.sleep(INTERVAL)


def pause(seconds: float) -> None:
    """Let a load or another program run for a while, when nothing that it does tells how far it is. Never wait for an
    expected state with it.
    """
    sleep(seconds)


async def pause_loop(seconds: float) -> None:
    """As `pause`, by the time of the running event loop: for a server of a test that answers slowly."""
    await asyncio.sleep(seconds)


def _failure(observe: Callable[..., object], what: str, found: object, seconds: float) -> str:
    return f"waited {seconds:.0f} s in vain for {what or _text(observe)}; last observation: {found!r}"


def _text(observe: Callable[..., object]) -> str:
    try:
        return " ".join(inspect.getsource(observe).split())[:300]
    except (OSError, TypeError):
        return repr(observe)

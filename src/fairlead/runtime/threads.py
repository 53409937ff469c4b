"""Work in threads that no cancellation leaves behind."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def in_thread(work: Callable[_P, _T], *args: _P.args, **known: _P.kwargs) -> _T:
    """Run in a thread. A cancelled call returns after the work has ended, so no two threads write the same files."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **known))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise

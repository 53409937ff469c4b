"""Event loops on which the product runs, uvloop's and asyncio's, for tests of behaviour that differs between them."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import uvloop

LOOPS: Mapping[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
_T = TypeVar("_T")


def run_on(name: str, story: Coroutine[Any, Any, _T]) -> _T:
    with asyncio.Runner(loop_factory=LOOPS[name]) as runner:
        return runner.run(story)

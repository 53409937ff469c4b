"""Plants bugs into imported modules, each in a fork of one process, so that tests are collected once.

Functions get the code of the changed source, including those imported elsewhere. Code of import time (constants,
decorators, class bodies) cannot be changed this way; `planted` returns False for it.
"""

import gc
import importlib.util
import os
import signal
from collections.abc import Callable, Collection, Iterator
from functools import partial
from importlib.abc import SourceLoader
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from _pytest.runner import runtestprotocol


def plant_bug(module: str, before: str, after: str) -> bool:
    """Replace the code of an imported module's functions by that of a changed source.

    Returns False, without a change, if the difference is in code of import time.
    """
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None or not isinstance(found.loader, SourceLoader):
        return False
    source = Path(found.origin).read_text()
    compiled = partial(found.loader.source_to_code, path=found.origin)  # with counted steps, if tests count them
    ours = list(_code_objects(compiled(source)))
    theirs = list(_code_objects(compiled(source.replace(before, after))))
    if [name for name, _ in ours] != [name for name, _ in theirs]:
        return False
    codes = {_position(old): new for (_, old), (_, new) in zip(ours, theirs, strict=True)}
    functions = [each for each in _functions(found.origin) if _position(each.__code__) in codes]
    reached = {_position(code) for function in functions for _, code in _code_objects(function.__code__)}
    changed = {
        _position(old)
        for (_, old), (_, new) in zip(ours, theirs, strict=True)
        if _own_content(old) != _own_content(new)
    }
    if not changed or not changed <= reached:
        return False
    for function in functions:
        function.__code__ = codes[_position(function.__code__)]
    return True


def _functions(file: str) -> list[FunctionType]:
    gc.unfreeze()
    return [each for each in gc.get_objects() if type(each) is FunctionType and each.__code__.co_filename == file]


def _code_objects(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """A code object and all those defined in it, in the order of the source."""
    yield code.co_qualname, code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_objects(constant)


def _position(code: CodeType) -> tuple[object, ...]:
    """Position in the source, because two code objects may have the same name and line."""
    return code.co_qualname, *code.co_positions()


def _own_content(code: CodeType) -> tuple[object, ...]:
    """Content of a code object, without nested ones and line numbers."""
    constants = [repr(each) for each in code.co_consts if not isinstance(each, CodeType)]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, constants


class ForkedRuns:
    """Plug-in of pytest that runs the collected tests for each bug, some of them concurrently.

    Args:
        bugs: function by name that plants the bug in its process, and returns False if it cannot.
        tests: files and folders of tests by name.
        told: callback with a name and whether a test failed; None if the bug could not be planted this way.
        together: maximum number of concurrent runs.
        forever: seconds after which a run counts as failed.
    """

    def __init__(
        self,
        bugs: dict[str, Callable[[], bool]],
        tests: dict[str, Collection[str]],
        told: Callable[[str, bool | None], None],
        together: int,
        forever: int,
    ) -> None:
        self._bugs, self._tests, self._on_result, self._concurrency, self._timeout = (
            bugs,
            tests,
            told,
            together,
            forever,
        )

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        running: dict[int, str] = {}
        for name, plant in self._bugs.items():
            if len(running) == self._concurrency:
                self._wait(session, running)
            items = [item for item in session.items if self._is_of(name, item)]
            pid = os.fork()
            if not pid:
                signal.alarm(self._timeout)
                code = KILLED
                try:
                    code = _run(items) if plant() else NOT_PLANTED
                finally:  # the process ends here, even if the bug affects pytest itself
                    os._exit(code)
            running[pid] = name
        while running:
            self._wait(session, running)
        return True

    def _is_of(self, name: str, item: pytest.Item) -> bool:
        path = item.path.relative_to(item.config.rootpath)
        return any(path.is_relative_to(each) for each in self._tests[name])

    def _wait(self, session: pytest.Session, running: dict[int, str]) -> None:
        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        capture = session.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            self._on_result(running.pop(pid), None if code == NOT_PLANTED else code != SURVIVED)


SURVIVED, KILLED, NOT_PLANTED = 0, 1, 2
"""Exit codes of such a process."""


def _run(items: list[pytest.Item]) -> int:
    """Run the tests, those first that cover most in the least time: rows of each story, then walks without faults."""
    ordered = sorted(
        items,
        key=lambda item: (item.get_closest_marker("extended") is not None, "[" in item.name and "faults" in item.name),
    )
    for item, following in zip(ordered, [*ordered[1:], None], strict=True):
        if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
            return KILLED
    return SURVIVED

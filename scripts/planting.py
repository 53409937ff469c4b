"""Plant bugs into modules that are imported already, each in a fork of one process: tests are collected once.

Functions get the code of the changed source, wherever else they were imported to. What is done while a module is
imported (constants, decorators, the bodies of classes) cannot be changed like that: `Planted.refuses` says so.
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


def planted(module: str, before: str, after: str) -> bool:
    """Give the functions of an imported module the code that they have where a piece of its text is another.

    False, with nothing changed, if the difference is one that only an import can make.
    """
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None or not isinstance(found.loader, SourceLoader):
        return False
    source = Path(found.origin).read_text()
    compiled = partial(found.loader.source_to_code, path=found.origin)  # with the steps that tests count, if they do
    ours = list(_within(compiled(source)))
    theirs = list(_within(compiled(source.replace(before, after))))
    if [name for name, _ in ours] != [name for name, _ in theirs]:
        return False
    codes = {_place(old): new for (_, old), (_, new) in zip(ours, theirs, strict=True)}
    functions = [each for each in _functions(found.origin) if _place(each.__code__) in codes]
    reached = {_place(code) for function in functions for _, code in _within(function.__code__)}
    changed = {_place(old) for (_, old), (_, new) in zip(ours, theirs, strict=True) if _itself(old) != _itself(new)}
    if not changed or not changed <= reached:
        return False
    for function in functions:
        function.__code__ = codes[_place(function.__code__)]
    return True


def _functions(file: str) -> list[FunctionType]:
    gc.unfreeze()
    return [each for each in gc.get_objects() if type(each) is FunctionType and each.__code__.co_filename == file]


def _within(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """It and all that is defined in it, in the order of the text."""
    yield code.co_qualname, code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _within(constant)


def _place(code: CodeType) -> tuple[object, ...]:
    """Where its text is: two may have one name and one line."""
    return code.co_qualname, *code.co_positions()


def _itself(code: CodeType) -> tuple[object, ...]:
    """What it does, without what is defined in it, and without its lines."""
    constants = [repr(each) for each in code.co_consts if not isinstance(each, CodeType)]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, constants


class Forks:
    """A plug-in of pytest that runs the tests collected once for each bug, some at the same time.

    Args:
        bugs: what plants each, by name, in its process: false if it cannot.
        tests: of each: files and folders.
        told: called with a name and whether a test noticed; None if the bug could not be planted like this.
        together: how many at once.
        forever: seconds after which a run counts as one that noticed: a story that does not end is one that fails.
    """

    def __init__(
        self,
        bugs: dict[str, Callable[[], bool]],
        tests: dict[str, Collection[str]],
        told: Callable[[str, bool | None], None],
        together: int,
        forever: int,
    ) -> None:
        self._bugs, self._tests, self._told, self._together, self._forever = bugs, tests, told, together, forever

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        running: dict[int, str] = {}
        for name, plant in self._bugs.items():
            if len(running) == self._together:
                self._wait(session, running)
            items = [item for item in session.items if self._is_of(name, item)]
            pid = os.fork()
            if not pid:
                signal.alarm(self._forever)
                code = NOTICED
                try:
                    code = _run(items) if plant() else CANNOT
                finally:  # whatever a bug does to pytest itself, its process ends here
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
            self._told(running.pop(pid), None if code == CANNOT else code != UNNOTICED)


UNNOTICED, NOTICED, CANNOT = 0, 1, 2
"""Exit codes of such a process."""


def _run(items: list[pytest.Item]) -> int:
    """Those first that look at most in the least time: the rows of each story, then its walks without faults."""
    ordered = sorted(
        items,
        key=lambda item: (item.get_closest_marker("extended") is not None, "[" in item.name and "faults" in item.name),
    )
    for item, following in zip(ordered, [*ordered[1:], None], strict=True):
        if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
            return NOTICED
    return UNNOTICED

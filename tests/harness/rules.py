"""Rules for tests, checked on the syntax tree by `tests/test_sdk_manages_l7_rules.py`.

A test has no clock, no sleep, no waiting loop, no event loop run by hand, and no import from a test module.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

TESTS = Path(__file__).parents[1]
CLOCKS = frozenset({"monotonic", "perf_counter", "process_time", "thread_time"})
CLOCKS |= {f"{name}_ns" for name in (*CLOCKS, "time")}
MIN_TIMEOUT = 30  # seconds; a shorter timeout for a real program would depend on the speed of the machine

CLOCK_EXCEPTIONS: Mapping[str, str] = {
    "harness/waiting.py": "waits for real programs",
    "harness/virtual_clock.py": "replaces the clock",
    "harness/octavia_plugin/launch.py": "a program in Octavia's own Python: it repeats a request that SQLite refuses",
    "harness/package/network_creator.py": "a program that paces its own requests, and prints the longest",
    "harness/package/systemctl.py": "a program for hosts without the harness: ends units as systemd does",
    "harness/rules.py": "names the clocks",
    "harness/ha/load.py": "timestamps a history, and writes at a steady rate",
    "harness/lab/moving.py": "benchmarks/moves.py reports what a move costs; the tests assert counts",
    "harness/lab/periodic_connections.py": "records when each connection began, for the same benchmark",
    "harness/siege/attackers.py": "paces slow attackers: a byte a second",
    "harness/siege/neighbour.py": "changes at a steady rate, and measures for `make siege`; no test asserts the times",
    "harness/siege/siege_server.py": "measures requests for the table of `make siege`; no test asserts the times",
}
"""Modules with the reason. Test modules are not allowed here."""
LOOP_EXCEPTIONS: Mapping[str, str] = {
    "api/test_agents_that_hang_up.py": "runs the server on uvloop too",
    "test_subprocesses.py": "shows what is left when the loop has ended",
}
"""Test modules with the reason. All modules of the harness may run a loop."""


@dataclass(frozen=True, slots=True)
class Finding:
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"tests/{self.path}:{self.line}: {self.text}"


def sources_of_tests() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(TESTS.rglob("*.py")):
        yield str(path.relative_to(TESTS)), ast.parse(path.read_text())


def check_module(path: str, tree: ast.Module) -> Iterator[Finding]:
    """All findings in one module; `path` is relative to the folder of tests."""
    may_wait = path in CLOCK_EXCEPTIONS
    for node, is_virtual in _nodes(tree):
        texts = _imports(path, node)
        if not may_wait:
            texts = chain(texts, _texts(path, node, is_virtual))
        yield from (Finding(path, node.lineno, text) for text in texts)


def _nodes(tree: ast.Module) -> Iterator[tuple[ast.stmt | ast.expr, bool]]:
    """All nodes that a rule concerns, and whether each runs on a virtual clock.

    The walk of half a million nodes takes a quarter of the time of `ast.walk`.
    """
    left: list[tuple[ast.AST, bool]] = [(tree, _is_virtual(_module_marks(tree)))]
    while left:
        node, is_virtual = left.pop()
        if isinstance(node, _RULED_NODES):
            yield node, is_virtual
        elif isinstance(node, _WITH_DECORATORS):
            is_virtual = is_virtual or _is_virtual(node.decorator_list)
        for field in node._fields:
            value = getattr(node, field, None)
            if type(value) is list:
                left += [(each, is_virtual) for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, _SKIPPED_NODES):
                left.append((value, is_virtual))


_RULED_NODES = (ast.Import, ast.ImportFrom, ast.Attribute, ast.Call, ast.While)
_WITH_DECORATORS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SKIPPED_NODES = (ast.Name, ast.Constant, ast.expr_context, ast.operator)


@cache
def _areas() -> frozenset[str]:
    """First names of test modules: folders and files."""
    folders = {each.name for each in TESTS.iterdir() if each.is_dir()} - {"harness"}
    return frozenset(folders | {each.stem for each in TESTS.glob("*.py")} | {"conftest"})


def _imports(path: str, node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ImportFrom(level=level) if level > 0 and not path.startswith("harness/"):
            yield "imports from its own folder: shared code belongs in tests/harness"
            return
        case ast.ImportFrom(module=str(module), level=0):
            names = [module]
        case ast.Import():
            names = [alias.name for alias in node.names]
        case _:
            return
    for name in names:
        is_program = path.startswith("harness/") and path.endswith("serve.py")  # runs in another Python environment
        if name.partition(".")[0] in _areas() and not is_program and (TESTS / _first(name)).exists():
            yield f"imports from {name}: shared code belongs in tests/harness"


def _first(name: str) -> str:
    area, _, rest = name.partition(".")
    folder = f"{area}/{rest.replace('.', '/')}" if rest else area
    return folder if (TESTS / folder).is_dir() else f"{folder}.py"


def _texts(path: str, node: ast.AST, is_virtual: bool) -> Iterator[str]:
    match node:
        case ast.ImportFrom(module="time"):
            for alias in node.names:
                if alias.name in CLOCKS | {"time", "sleep"}:
                    yield f"imports time.{alias.name}"
        case ast.Attribute(value=ast.Name(id="time"), attr=str(name)) if name in CLOCKS | {"time", "sleep"}:
            yield f"uses time.{name}"
        case ast.Call(func=ast.Attribute(attr="time"), args=[], keywords=[]) if not is_virtual:
            if _is_loop(node.func):
                yield "looks at the time of a real event loop"
        case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio"), attr="sleep"), args=[seconds]) if not is_virtual:
            if not (isinstance(seconds, ast.Constant) and seconds.value == 0):
                yield "sleeps on a real event loop"
        case ast.While() if any(map(_is_yield, ast.walk(node))):
            yield "waits by a loop of its own: use harness.waiting"
        case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio"), attr="run" | "Runner")):
            if not path.startswith("harness/") and path not in LOOP_EXCEPTIONS:
                yield "runs an event loop by hand: make the test a coroutine function"
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="asyncio"), attr="timeout" | "wait_for"),
            args=[*_, ast.Constant(value=value)],
        ) if not is_virtual and isinstance(value, int | float) and value < MIN_TIMEOUT:
            yield f"gives a real program {value} s: use harness.waiting, or at least {MIN_TIMEOUT}"


def _is_loop(func: ast.expr) -> bool:
    text = ast.unparse(func)
    return text in ("loop.time", "asyncio.get_running_loop().time", "asyncio.get_event_loop().time")


def _is_yield(node: ast.AST) -> bool:
    """Whether this is a call of `asyncio.sleep` or `sleep`, of any length."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("asyncio.sleep", "sleep", "time.sleep")


def _module_marks(tree: ast.Module) -> list[ast.expr]:
    marks: list[ast.expr] = []
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                marks += value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
    return marks


def _is_virtual(marks: list[ast.expr]) -> bool:
    return any("virtual_clock" in ast.unparse(mark) for mark in marks)

"""Counts the Python steps of the product between two returns to the event loop, without a clock.

An import hook adds a call to each function, and to each iteration of loops and comprehensions, of the product and of
the Python libraries that it runs. The call is `next` of a counter in C and takes about 40 ns, so whole suites can use
it.

A long call in C, such as `json` or `sqlite3`, counts as one step. The size of its input bounds it, and
`benchmarks/loop_lag.py` reports its time.

Counts are the same on every machine; 2,000 to 6,000 steps take a millisecond on the machine of benchmarks/RESULTS.md.
"""

import ast
import asyncio
import builtins
import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

COUNTED = frozenset({"fairlead", "starlette", "uvicorn", "prometheus_client", "yaml", "cattrs", "websockets"})
"""Packages with counted steps: the product, and the Python libraries that run on its event loop."""
STEP = "__counted_step__"
STEPS_PER_SECOND = 3_000_000
_VERSION = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]

_T = TypeVar("_T")

step = count(1).__next__
"""Take a step, and return the number of steps so far. It is never 0, so a comprehension can have it as a condition."""


class _Counting(ast.NodeTransformer):
    def _function(self, node: Any) -> Any:
        self.generic_visit(node)
        has_text = bool(ast.get_docstring(node, clean=False))
        node.body.insert(int(has_text), _call_before(node.body[min(int(has_text), len(node.body) - 1)]))
        return node

    def _loop(self, node: Any) -> Any:
        self.generic_visit(node)
        node.body.insert(0, _call_before(node.body[0]))
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        self.generic_visit(node)
        node.ifs.insert(0, _call(node.iter))
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _function  # noqa: N815 - ast's names
    visit_For = visit_AsyncFor = visit_While = _loop  # noqa: N815


def _call(place: ast.AST) -> ast.Call:
    call = ast.Call(func=ast.Name(id=STEP, ctx=ast.Load()), args=[], keywords=[])
    return ast.fix_missing_locations(ast.copy_location(call, place))


def _call_before(place: ast.AST) -> ast.Expr:
    return ast.copy_location(ast.Expr(value=_call(place)), place)


class _CountingLoader(SourceFileLoader):
    """Loader that stores its bytecode beside Python's own, under a different name."""

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        tree = _Counting().visit(ast.parse(data, path))
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)  # type: ignore[no-any-return]

    def get_data(self, path: Any) -> bytes:
        return super().get_data(_counted_path(path))

    def set_data(self, path: Any, data: Any, *, _mode: int = 0o666) -> None:
        super().set_data(_counted_path(path), data, _mode=_mode)  # type: ignore[call-arg]


def _counted_path(path: str) -> str:
    return f"{path.removesuffix('.pyc')}.counted-{_VERSION}.pyc" if path.endswith(".pyc") else path


class _CountingFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in COUNTED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _CountingLoader(fullname, spec.loader.path)
        return spec


def install() -> None:
    """Count in modules that are imported after this call. No counted package may be imported before."""
    if is_installed():
        return
    early = sorted(name for name in sys.modules if name.partition(".")[0] in COUNTED)
    assert not early, f"imported before their steps are counted: {early[:5]}"
    setattr(builtins, STEP, step)
    sys.meta_path.insert(0, _CountingFinder())


def is_installed() -> bool:
    return hasattr(builtins, STEP)


@dataclass
class Longest:
    """Largest number of steps between two returns to an event loop of this process."""

    steps: int = 0
    where: str = ""

    def note(self, steps: int, callback: object) -> None:
        if steps > self.steps:
            self.steps, self.where = steps, repr(getattr(callback, "__self__", callback))[:300]


def clock_of_steps() -> float:
    """Seconds on an imaginary machine on which all steps take the same time, for work that yields by a clock."""
    return step() / STEPS_PER_SECOND


@contextmanager
def counted() -> Iterator[Longest]:
    """Count between each two returns to any event loop of this process. Work that yields by a clock yields by steps."""
    assert is_installed(), "tests/conftest.py installs the counter"
    from fairlead.runtime import cooperative

    longest, run, clock = Longest(), asyncio.events.Handle._run, cooperative.perf_counter

    def counting(handle: asyncio.Handle) -> None:
        before = step()
        run(handle)
        longest.note(step() - before - 1, handle._callback)

    asyncio.events.Handle._run = counting  # type: ignore[method-assign]
    cooperative.perf_counter = clock_of_steps  # type: ignore[assignment]
    try:
        yield longest
    finally:
        asyncio.events.Handle._run = run  # type: ignore[method-assign]
        cooperative.perf_counter = clock  # type: ignore[assignment]


def longest_between_yields(work: Iterator[_T]) -> tuple[list[_T], int]:
    """Exhaust a generator; return its items, and the largest number of steps from one item to the next."""
    items, longest = [], 0
    while True:
        before = step()
        try:
            items.append(next(work))
        except StopIteration:
            return items, max(longest, step() - before - 1)
        longest = max(longest, step() - before - 1)

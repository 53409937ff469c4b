"""Options, hooks and fixtures of every test."""

import asyncio
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import settings

from harness import step_counter

step_counter.install()

from harness.counted_processes import counted_processes  # noqa: E402
from harness.step_limits import max_steps_of  # noqa: E402 - what follows imports modules that are counted
from harness.virtual_clock import VirtualClockLoop, time_of_loop  # noqa: E402

settings.register_profile("patient", deadline=None)
settings.register_profile("brief", deadline=None, max_examples=30)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "patient"))

sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]  # httpx looks for it at each request, in vain

LONGEST_FIRST = (
    "test_traffic_under_change",
    "test_octavia",
    "test_crash",
    "test_health",
    "test_server",
    "test_gateway",
    "test_doors",
    "test_image",
    "test_three_hosts",
)
"""Files that take a minute or more: started last, one of them would delay the end of the run."""


PURE = ("cases", "changes", "compilers", "dataplane", "model", "native", "reconciler", "toy", "haproxy/test_stories.py")
"""Folders of pure tests, and a module; modules directly in tests/ are pure as well."""
END_TO_END = ("lab", "keystone", "barbican")
ALONE = ("conformance", "fuzz", "ha", "neutron_lab", "package", "siege")
"""Folders of end-to-end tests, and of those that only a part of `make test-all` runs; the marks of both are below."""
ALONE_MARKS = {"fuzz", "neutron", "octavia", "package", "siege", "tempest"}
LONG_MARKS = {"lab", "client", "slow"}


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Add the marks by which the Makefile selects: `pure`, `end_to_end` and `alone`."""
    path = item.path.relative_to(Path(__file__).parent)
    folder = path.parts[0]
    marks = {mark.name for mark in item.iter_markers()}
    if folder in PURE or str(path) in PURE or len(path.parts) == 1:
        item.add_marker("pure")
    if folder in ALONE or marks & ALONE_MARKS:
        item.add_marker("alone")
    if folder in END_TO_END or marks & LONG_MARKS:
        item.add_marker("end_to_end")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(Path(item.path).stem, len(places)))


def pytest_collection_finish() -> None:
    """Freeze imported modules and tests, which live to the end: collecting them took a fifth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    is_virtual = item.get_closest_marker("virtual_clock") is not None
    return {"virtual": VirtualClockLoop} if is_virtual else {"real": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def _virtual_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("virtual_clock") is not None:
        monkeypatch.setattr(time, "monotonic", time_of_loop)


@pytest.fixture(autouse=True)
def _steps_are_bounded(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that no test blocks the product's event loop: `max_steps(N)` sets another bound for a test, with the
    reason."""
    bound = max_steps_of(request.path)
    if (marker := request.node.get_closest_marker("max_steps")) is not None:
        bound = marker.args[0]
    if bound is None:
        yield
        return
    with step_counter.counted() as longest:
        yield
    if (log := os.environ.get("STEPS_LOG")) is not None:
        with open(log, "a") as file:
            file.write(f"{longest.steps} {request.node.nodeid} {longest.where}\n")
    where = longest.where
    assert longest.steps <= bound, f"{longest.steps} steps, more than {bound}, without a return to the loop: {where}"


@pytest.fixture(autouse=True, scope="session")
def _counted_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with counted_processes(tmp_path_factory.mktemp("counted")):
        yield

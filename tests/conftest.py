"""What holds for all tests."""

import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("patient", deadline=None)  # a machine that has other things to do is no defect
settings.register_profile("brief", deadline=None, max_examples=30)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "patient"))

sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]  # httpx asks for it, in vain, at each request

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
"""Files that take a minute or several: whoever begins with one of them at the end keeps all others waiting."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(Path(item.path).stem, len(places)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why a test was tried once more: whoever passes then may still have found a defect."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"tried again: {report.nodeid}")
        terminalreporter.line(report.longreprtext)


def pytest_collection_finish() -> None:
    """All tests and what they import live to the end: looking through them for garbage was a fifth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)

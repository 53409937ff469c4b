"""What holds for all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("patient", deadline=None)  # a machine that has other things to do is no defect
settings.register_profile("brief", deadline=None, max_examples=30)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "patient"))

LONGEST_FIRST = (
    "test_traffic_under_change",
    "test_octavia",
    "test_crash",
    "test_health",
    "test_server",
    "test_gateway",
    "test_doors",
)
"""Files that take a minute or several: whoever begins with one of them at the end keeps all others waiting."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(Path(item.path).stem, len(places)))

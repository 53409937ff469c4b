from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.api import WITH_PROXIES, compile_owner, compile_with_proxies
from harness.front_ends.octavia_world import OctaviaFrontEnd


@pytest.fixture
def anything(tmp_path: Path) -> Iterator[OctaviaFrontEnd]:
    """Yield a site whose provider refuses nothing."""
    opened = OctaviaFrontEnd(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def ovn(tmp_path: Path) -> Iterator[OctaviaFrontEnd]:
    opened = OctaviaFrontEnd(tmp_path, compile_owner)
    yield opened
    opened.close()


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[OctaviaFrontEnd]:
    """Yield a site whose agents run proxies."""
    opened = OctaviaFrontEnd(tmp_path, compile_with_proxies, WITH_PROXIES)
    yield opened
    opened.close()

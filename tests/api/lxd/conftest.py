from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.front_ends.lxd_world import LxdFrontEnd


@pytest.fixture
def door(tmp_path: Path) -> Iterator[LxdFrontEnd]:
    opened = LxdFrontEnd(tmp_path)
    yield opened
    opened.close()

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.front_ends.lxd_world import Door


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    opened = Door(tmp_path)
    yield opened
    opened.close()

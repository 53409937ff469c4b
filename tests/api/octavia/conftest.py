from collections.abc import Iterator
from pathlib import Path

import pytest

from api.octavia.world import Door
from harness.api import compile_owner


@pytest.fixture
def anything(tmp_path: Path) -> Iterator[Door]:
    """With a provider that refuses nothing."""
    opened = Door(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def ovn(tmp_path: Path) -> Iterator[Door]:
    opened = Door(tmp_path, compile_owner)
    yield opened
    opened.close()

"""One lab of two chassis for all end-to-end tests that one process runs; several processes have a lab each.

Where it cannot be they are skipped; on CI, and where the root of its programs is named, they fail.
"""

import os
from collections.abc import Iterator

import pytest

from fairlead.lab import Lab, LabError, require_machine, take_down

NAME = f"test{os.environ.get('PYTEST_XDIST_WORKER', '')}"
"""Labs of different names are apart, whatever their machines and addresses are called."""


def require_lab() -> None:
    try:
        require_machine()
    except LabError as reason:
        if os.environ.get("CI") or os.environ.get("FAIRLEAD_LAB_ROOT"):
            pytest.fail(f"the lab must run here: {reason}")
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def machine() -> None:
    """A machine that can carry a lab."""
    require_lab()


@pytest.fixture(scope="session")
def lab(machine: None) -> Iterator[Lab]:
    take_down(NAME)
    try:
        yield Lab.up(NAME, chassis=2)
    finally:
        take_down(NAME)

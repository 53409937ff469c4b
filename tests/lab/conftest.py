"""One lab of two chassis for all end-to-end tests that one process runs, and one of three plain hosts.

Several processes have labs of their own. Where a lab cannot be its tests are skipped; on CI, and where the root of its
programs is named, they fail.
"""

import os
from collections.abc import Callable, Iterator

import pytest

from fairlead.lab import Lab, LabError, require_machine, take_down
from fairlead.lab.native import NativeLab
from fairlead.lab.native.lab import require_machine as require_native_machine

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
NAME = f"test{WORKER}"
"""Labs of different names are apart, whatever their machines and addresses are called."""


def require_lab(require: Callable[[], None] = require_machine) -> None:
    try:
        require()
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


@pytest.fixture(scope="session")
def native_machine() -> None:
    """A machine that can carry a lab of plain hosts."""
    require_lab(require_native_machine)


@pytest.fixture(scope="session")
def native(native_machine: None) -> Iterator[NativeLab]:
    name = f"testnative{WORKER}"
    take_down(name)
    try:
        yield NativeLab.up(name, chassis=3)
    finally:
        take_down(name)

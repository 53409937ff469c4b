"""Fixtures for tests in a lab: per process one lab of two chassis, and one of three plain hosts.

Tests are skipped if the machine cannot run a lab. On CI, and if FAIRLEAD_LAB_ROOT is set, they fail instead.
"""

from collections.abc import Iterator

import pytest

from fairlead.lab import Lab
from fairlead.lab.native import NativeLab
from fairlead.lab.native.lab import require_machine as require_native_machine
from harness.lab.labs import lab_of, leaving_nothing, native_lab_of, require_lab


@pytest.fixture(scope="session")
def tidy() -> Iterator[None]:
    """Assert that the run leaves nothing behind. All labs depend on it, so it ends after them."""
    with leaving_nothing():
        yield


@pytest.fixture(scope="session")
def machine(tidy: None) -> None:
    """Require a machine that can run a lab."""
    require_lab()


@pytest.fixture(scope="session")
def lab(machine: None) -> Iterator[Lab]:
    with lab_of(chassis=2) as made:
        yield made


@pytest.fixture(scope="session")
def native_machine(tidy: None) -> None:
    """Require a machine that can run a lab of plain hosts."""
    require_lab(require_native_machine)


@pytest.fixture(scope="session")
def native(native_machine: None) -> Iterator[NativeLab]:
    with native_lab_of("native", chassis=3) as made:
        yield made

"""Fixtures of tests in a lab: one lab of two chassis for all tests that one process runs, and one of three plain hosts.

Where a lab cannot be its tests are skipped; on CI, and where the root of its programs is named, they fail.
"""

from collections.abc import Iterator

import pytest

from fairlead.lab import Lab
from fairlead.lab.native import NativeLab
from fairlead.lab.native.lab import require_machine as require_native_machine
from harness.lab.labs import lab_of, leaving_nothing, native_lab_of, require_lab


@pytest.fixture(scope="session")
def tidy() -> Iterator[None]:
    """A run that leaves nothing behind. All labs depend on it, so that it ends after them."""
    with leaving_nothing():
        yield


@pytest.fixture(scope="session")
def machine(tidy: None) -> None:
    """A machine that can carry a lab."""
    require_lab()


@pytest.fixture(scope="session")
def lab(machine: None) -> Iterator[Lab]:
    with lab_of(chassis=2) as made:
        yield made


@pytest.fixture(scope="session")
def native_machine(tidy: None) -> None:
    """A machine that can carry a lab of plain hosts."""
    require_lab(require_native_machine)


@pytest.fixture(scope="session")
def native(native_machine: None) -> Iterator[NativeLab]:
    with native_lab_of("native", chassis=3) as made:
        yield made

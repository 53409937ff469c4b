"""One OpenStack for all tests of this folder. If the machine cannot run it, tests are skipped with the reason."""

import os
from collections.abc import Iterator

import pytest

from fairlead.lab import Lab
from harness.lab.labs import lab_of, require_lab
from harness.neutron_lab.cloud import OpenStackOnLab, cloud
from harness.neutron_lab.services import missing


@pytest.fixture(scope="session")
def openstack_lab() -> Iterator[Lab]:
    require_lab()
    if absent := missing():
        reason = f"needs {', '.join(each.name for each in absent)}: `make test-neutron` makes them"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    with lab_of("neutron", chassis=2) as lab:
        yield lab


@pytest.fixture(scope="session")
def stack(openstack_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenStackOnLab]:
    with cloud(tmp_path_factory.mktemp("openstack"), openstack_lab) as made:
        yield made

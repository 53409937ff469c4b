from collections.abc import Iterator
from pathlib import Path

import openstack
import pytest
from openstack.connection import Connection

from harness.front_ends.network_world import NetworkFrontEnd
from harness.served import served, write_clouds


@pytest.fixture
def door(tmp_path: Path) -> Iterator[NetworkFrontEnd]:
    opened = NetworkFrontEnd(tmp_path)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("served")
    with served(folder) as address:
        yield write_clouds(folder, address)


@pytest.fixture(scope="module")
def cloud(clouds: Path) -> Iterator[Connection]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OS_CLIENT_CONFIG_FILE", str(clouds))
        connection = openstack.connect(cloud="fairlead")
        yield connection
        connection.close()
